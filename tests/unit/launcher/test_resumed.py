"""A run that goes on in its folder does so with the model that it began with."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from domains.privacy_hopqa.domain import world_paths
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.world import generate, world_config
from pipelinerl.config import ConfigError
from pipelinerl.config.compose import compose
from pipelinerl.config.files import config_path, load, load_tree, save, typed
from pipelinerl.config.reference import groups
from pipelinerl.extras.viewer.source import RunSource
from pipelinerl.launcher.folder import RunFolder
from pipelinerl.launcher.resumed import changes, kept
from pipelinerl.report import main as report
from pipelinerl.run_state.snapshots import Snapshots
from pipelinerl.streams.__main__ import backend_of
from tests.support.one_line import check_one_line
from tests.unit.launcher.conftest import DryRun

GUESSING = ("+domain=guessing", "engine.max_model_len=64", "llm.parameters.max_tokens=16")


@pytest.fixture
def begun(dry_run: DryRun, tmp_path: Path) -> Path:
    """The folder of a run that has a checkpoint."""
    return run_with_checkpoint(dry_run, tmp_path)


def run_with_checkpoint(
    dry_run: DryRun, tmp_path: Path, *given: str, domain: tuple[str, ...] = GUESSING
) -> Path:
    assert dry_run(*domain, *given)[0] == 0
    for name in ("current", "training_state"):
        folder = tmp_path / "run/finetune" / name
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text('{"step": 4}')
    (tmp_path / "run/finetune/current/config.json").write_text("{}")
    return tmp_path / "run"


def test_half_a_checkpoint_is_refused_before_anything_starts(
    begun: Path, dry_run: DryRun, tmp_path: Path
) -> None:
    """Whoever moved the model away would else train from step 0, over the training state."""
    (begun / "finetune/current").rename(tmp_path / "mine")
    status, _, err = dry_run(*GUESSING)
    check_one_line(err, "launcher: ")
    assert status == 2 and "current is missing, training_state is of step 4; put back both" in err
    assert dry_run(*GUESSING, "debug.mode=actor", "max_lag=null")[0] == 0, "it trains nothing"
    (tmp_path / "mine").rename(begun / "finetune/current")
    assert dry_run(*GUESSING)[0] == 0
    shutil.rmtree(begun / "finetune/current")
    assert dry_run(*GUESSING, "force_restart=true")[0] == 0


@pytest.mark.parametrize("completed", [True, False])
def test_a_run_whose_trainer_lost_its_folder_is_refused(
    completed: bool, begun: Path, dry_run: DryRun
) -> None:
    """It would train from step 0 again, and report that beside what is left of the first time."""
    shutil.rmtree(begun / "finetune")
    Snapshots(begun, "actor").save(0, {})
    assert dry_run(*GUESSING)[0] == 0, "nothing was trained yet"
    shutil.rmtree(begun / "finetune")
    if completed:
        RunFolder(begun).mark_completed(4, None)
    else:
        Snapshots(begun, "actor").save(8, {})
    status, _, err = dry_run(*GUESSING)
    check_one_line(err, "launcher: ")
    said = "this run completed 4 steps" if completed else "this run trained 8 samples"
    assert status == 2 and f"finetune: has no checkpoint, although {said}; put it back" in err
    assert dry_run(*GUESSING, "debug.mode=actor", "max_lag=null")[0] == 0, "it trains nothing"
    assert dry_run(*GUESSING, "force_restart=true")[0] == 0


def test_a_run_whose_model_and_training_state_are_both_gone_is_refused(begun: Path, dry_run: DryRun) -> None:
    """What was kept of its checkpoints says that there was one."""
    for name in ("current", "training_state"):
        shutil.rmtree(begun / "finetune" / name)
    (begun / "finetune/intermediate/~2").mkdir(parents=True)
    assert dry_run(*GUESSING)[0] == 0, "nothing was saved yet"
    for step in (2, 4):
        (begun / f"finetune/intermediate/{step}").mkdir()
    status, _, err = dry_run(*GUESSING)
    check_one_line(err, "launcher: ")
    assert status == 2 and "has no checkpoint, although this run kept the model of step 4; put it back" in err
    assert dry_run(*GUESSING, "debug.mode=actor", "max_lag=null")[0] == 0, "it trains nothing"
    assert dry_run(*GUESSING, "force_restart=true")[0] == 0
    (begun / "finetune/~current").mkdir()
    assert dry_run(*GUESSING)[0] == 0, "the first save was interrupted"


def test_another_model_is_refused_beside_a_checkpoint(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    status, _, err = dry_run(*GUESSING, f"model_path={other}")
    assert status == 2 and err == (
        f"launcher: model_path={other}: this folder's run began with {model}; give that, another output_dir, "
        "or force_restart=true\n"
    )
    status, _, err = dry_run(*GUESSING, "model_path=owner/other")
    assert status == 2 and "this folder's run began with" in err
    assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
    shutil.rmtree(begun / "finetune")
    assert dry_run(*GUESSING, f"model_path={other}")[0] == 0, "nothing was trained yet"


def test_what_a_start_filled_in_is_not_asked_of_a_resume(dry_run: DryRun, tmp_path: Path) -> None:
    words = ("+domain=privacy_hopqa", "hardware=cpu")
    folder = run_with_checkpoint(dry_run, tmp_path, domain=words)
    began = load(folder)
    assert began.derived_ is not None and began.derived_.filled["privacy_hopqa.helper_service_url"] is None
    status, out, _ = dry_run(*words)
    assert status == 0 and "this resume changes" not in out, "nor is what refers to it"
    corpus = OmegaConf.load(config_path(folder)).privacy_hopqa.web_corpus_path
    assert Path(corpus).is_relative_to(folder)
    # The same data, named by hand, is no other.
    assert "web_corpus_path" not in dry_run(*words, f"privacy_hopqa.web_corpus_path={corpus}")[2]
    status, _, err = dry_run(*words, f"privacy_hopqa.web_corpus_path={tmp_path / 'other'}")
    assert status == 2 and "privacy_hopqa.web_corpus_path=" in err and "which a resume keeps" in err


@pytest.mark.parametrize("here", ["texts", "nothing"])
def test_a_named_service_may_move_where_its_world_is_compared(
    dry_run: DryRun, tmp_path: Path, here: str
) -> None:
    """Of a world that is only served nothing is here to compare: another address may be another world."""
    world = generate(world_config("tiny", seed=3), tmp_path / "made")
    words = ["+domain=privacy_hopqa", "hardware=cpu"]
    words += [f"{key}={value}" for key, value in world_paths(world).items() if "chains" in str(value)]
    words += [f"privacy_hopqa.task_data_root={world / 'tasks'}"] if here == "texts" else []
    key = "privacy_hopqa.helper_service_url"
    run_with_checkpoint(dry_run, tmp_path, f"{key}=http://127.0.0.1:8700", domain=tuple(words))
    moved = ("http://10.0.0.1:9000", "[http://127.0.0.1:8700,http://10.0.0.1:9000]")
    for url in moved:
        status, _, err = dry_run(*words, f"{key}={url}")
        assert (status == 0) is (here == "texts"), err
        assert (f"launcher: {key}=" in err and "which a resume keeps" in err) is (here == "nothing")
    status, _, err = dry_run(*words, f"{key}={moved[0]}", "privacy_hopqa.max_iterations=3")
    assert status == 2 and "privacy_hopqa.max_iterations=3: this folder's run began with" in err


def test_a_service_that_moved_is_asked_for_its_world_before_anything_starts(
    dry_run: DryRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["+domain=privacy_hopqa", "hardware=cpu"]
    run_with_checkpoint(dry_run, tmp_path, domain=tuple(words))
    asked = list[str]()

    def another_world(cfg: DictConfig, settings: PrivacyHopQASettings) -> str:
        asked.extend(settings.retrieval_urls)
        raise ConfigError("serves another world")

    monkeypatch.setattr("domains.privacy_hopqa.domain.ask_retrieval", another_world)
    monkeypatch.setenv("DRY_RUN", "0")
    status, _, err = dry_run(*words, "privacy_hopqa.helper_service_url=http://10.0.0.1:9000")
    assert (status, asked) == (2, ["http://10.0.0.1:9000"]) and "serves another world" in err


def test_another_model_is_refused_before_the_first_checkpoint_too(
    dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    """The evaluation of the first weights stands, and is what the end is compared with."""
    other = shutil.copytree(model, tmp_path / "other")
    assert dry_run(*GUESSING)[0] == 0
    Snapshots(tmp_path / "run", "actor").save(0, {"evaluated": 0})
    for _ in range(2):  # the first writes its own tree beside that of the start
        assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
    for key in (f"model_path={other}", "seed=7"):
        status, _, err = dry_run(*GUESSING, key)
        check_one_line(err, f"launcher: {key}: this folder's run began with ")
        assert status == 2
    status, out, _ = dry_run(*GUESSING, "test_llm.parameters.temperature=0.5")
    assert status == 0 and "this resume changes test_llm.parameters.temperature 1.0 -> 0.5" in out


def test_a_stopped_evaluation_may_begin_again_with_another_model(
    dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    alone = (*GUESSING, "debug.mode=evaluate")
    assert dry_run(*alone)[0] == 0
    Snapshots(tmp_path / "run", "actor").save(0, {})
    other = shutil.copytree(model, tmp_path / "other")
    assert dry_run(*alone, f"model_path={other}")[0] == 0


def test_a_dry_run_of_another_model_leaves_the_checkpoint_to_its_own(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    config_path(begun).chmod(0o600)
    other = shutil.copytree(model, tmp_path / "other")
    for _ in range(2):
        assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
        assert load(begun).model_path == str(other), "the scripts that it wrote read it"
    (kept,) = [path for path in config_path(begun).parent.glob("*.yaml") if path.stat().st_mode & 0o077 == 0]
    assert f"model_path: {model}" in kept.read_text()
    status, _, err = dry_run(*GUESSING, f"model_path={other}")
    assert status == 2 and f"this folder's run began with {model}" in err
    assert dry_run(*GUESSING)[0] == 0


def test_a_dry_run_changes_nothing_that_is_shown_of_a_run(begun: Path, dry_run: DryRun) -> None:
    """The streams of the run are files, of which one record was written; its rate was 2e-4."""
    (begun / "finetune/metrics.jsonl").write_text('{"stats/samples": 256}\n')
    asked = ("finetune.learning_rate=0.125", "streams=redis")
    for _ in range(2):
        status, out, _ = dry_run(*GUESSING, *asked)
        assert status == 0 and "start number 2" in out, "one start was made, whatever dry runs came after it"
    assert load(begun).finetune.learning_rate == 0.125, "the scripts that it wrote read it"
    assert report([str(begun)]) == 0
    page = (begun / "report/index.html").read_text()
    assert "learning_rate: 0.0002" in page and "0.125" not in page
    assert load_tree(begun).finetune.learning_rate == 0.0002
    assert RunSource(begun).tree["finetune"]["learning_rate"] == 0.0002
    with backend_of(begun):
        pass  # redis has nothing of this run, which would be an error


def test_a_first_start_after_dry_runs_does_not_resume(dry_run: DryRun) -> None:
    for _ in range(2):
        status, out, _ = dry_run(*GUESSING)
        assert status == 0 and "What this run uses" in out and "start number" not in out


def test_a_start_forgets_what_a_dry_run_had_kept(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
    monkeypatch.setenv("DRY_RUN", "0")
    monkeypatch.setattr("pipelinerl.launch.supervise", lambda *_: None)
    monkeypatch.setattr("pipelinerl.launch.report_run", lambda *_: None)
    assert dry_run(*GUESSING)[0] == 0
    assert {path.name for path in (begun / "conf").iterdir()} == {"accelerate.yaml", "exp_config.yaml"}


def test_starting_over_does_not_remove_what_the_run_reads(begun: Path, dry_run: DryRun, model: Path) -> None:
    """A further run from a run's own model, or an evaluation of it, in the run's folder."""
    trained = begun / "finetune/current"
    shutil.copytree(model, trained, dirs_exist_ok=True)
    (begun / "data").mkdir()
    for more in ((), ("debug.mode=evaluate",)):
        status, _, err = dry_run(*GUESSING, f"model_path={trained}", "force_restart=true", *more)
        check_one_line(err, f"launcher: model_path={trained}: force_restart=true would remove it before")
        assert status == 2
    link = begun.parent / "mine"
    link.symlink_to(trained)
    given = (f"model_path={link}", "force_restart=true")
    assert "would remove it" in dry_run(*GUESSING, *given)[2], "another way to the same folder"
    trained.rename(begun / "data/model")
    assert dry_run(*GUESSING, f"model_path={begun / 'data/model'}", "force_restart=true")[0] == 0


def test_the_same_model_may_be_given_in_another_way(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for given in ("link", "model", "./run/../model"):
        assert dry_run(*GUESSING, f"model_path={given}")[0] == 0
    (tmp_path / "moved").mkdir()
    (tmp_path / "link").unlink()
    shutil.move(model, tmp_path / "moved/model")
    assert dry_run(*GUESSING, f"model_path={tmp_path / 'moved/model'}")[0] == 0


def test_a_hub_s_model_of_another_owner_is_another_model(dry_run: DryRun, tmp_path: Path) -> None:
    """Its tokenizer would take the place of the one that the checkpoint was trained with."""
    named = "model_path=somebody/guesser"
    run_with_checkpoint(dry_run, tmp_path, named)
    assert dry_run(*GUESSING, named)[0] == 0
    for other in ("somebody/player", "other/guesser"):
        status, _, err = dry_run(*GUESSING, f"model_path={other}")
        check_one_line(
            err, f"launcher: model_path={other}: this folder's run began with somebody/guesser; give"
        )
        assert status == 2


def test_a_run_may_be_copied_with_the_model_in_it(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, begun / "theirs")
    tree = config_path(begun).read_text()
    config_path(begun).write_text(tree.replace(f"model_path: {model}", f"model_path: {begun / 'theirs'}"))
    copied = shutil.copytree(begun, tmp_path / "copied")
    assert dry_run(*GUESSING, f"output_dir={copied}", f"model_path={copied / 'theirs'}")[0] == 0


def test_the_table_says_how_to_leave_a_checkpoint(begun: Path, dry_run: DryRun) -> None:
    row = next(line for line in dry_run(*GUESSING)[1].splitlines() if " model " in line)
    assert "latest checkpoint" in row and "model_path=DIR" not in row and "force_restart=true" in row


KEPT = {
    "seed": "7",
    "finetune.model_class": "causal-language-modeling-with-value-head",
    "finetune.optim": "lion",
    "finetune.lora": "{enabled: true}",
    "finetune.rl.role_weights": "{guesser: 1}",
    "finetune.rl.loss_scale_scope": "chunk",
    "train_dataset_names": "[numbers]",
    "train_subset": "{begin: 0, end: 3}",
}
"""What a checkpoint, the buffers or the numbers of the problems are about, with another value."""
TOGETHER = {
    "finetune.model_class": ("finetune.rl.value_loss_coef=0.1",),
    "finetune.rl.loss_scale_scope": ("finetune.rl.batch_size_normalization=rollouts",),
}
"""Without it the value would be refused for another reason."""


def test_what_a_resume_keeps_is_refused_in_one_line(begun: Path, dry_run: DryRun) -> None:
    changed = {key: (*GUESSING, f"{key}={KEPT[key]}", *TOGETHER.get(key, ())) for key in KEPT}
    for key, words in changed.items():
        status, _, err = dry_run(*words)
        assert status == 2 and f"launcher: {key}" in err and err.count("\n") == 1, key
        assert "this folder's run began with" in err and "force_restart=true" in err, key
    assert dry_run(*GUESSING)[0] == 0, "the run's own values go on"
    shutil.rmtree(begun / "finetune")
    for words in changed.values():
        assert "began with" not in dry_run(*words)[2], "nothing was trained yet"


def test_every_key_may_change_or_is_kept() -> None:
    """A domain's own keys are kept, because nobody says what they decide."""
    named = {"finetune.config_name", "finetune.input", "preprocess.input", "preprocess.output", "model_path"}
    named |= {"dataset_loader", "domain_hooks", "actor.rollout_policy", "actor.domain_rollouts"}
    named |= {"finetune.rl.role_lengths", "guessing.numbers"}
    lora = {f"finetune.lora.{name}" for name in ("enabled", "r", "alpha", "target_modules")}
    assert dict(kept(typed(composed()))).keys() - named == (KEPT.keys() - {"finetune.lora"}) | lora


def test_a_resume_says_what_it_trains_and_samples_otherwise(begun: Path, dry_run: DryRun) -> None:
    assert "this resume changes" not in dry_run(*GUESSING)[1], "the same command changes nothing"
    other = (
        *("finetune.learning_rate=0.05", "finetune.rl.policy_loss=ppo", "finetune.rl.entropy_bonus=0.125"),
        *("llm.parameters.max_tokens=8", "test_llm.parameters.temperature=0.5", "actor.sampling=difficulty"),
        "watchdog.progress_deadline_s=7000",
    )
    expected = (
        "launcher: this resume changes finetune.learning_rate 0.0002 -> 0.05; finetune.rl.policy_loss "
        "reinforce -> ppo; finetune.rl.entropy_bonus 0.0 -> 0.125; finetune.rl.final_entropy_bonus "
        "0.0 -> 0.125; llm.parameters.max_tokens 16 -> 8; test_llm.parameters.temperature 1.0 -> 0.5; "
        "actor.sampling uniform -> difficulty"
    )
    for _ in range(2):  # the first dry run has not become what the run began with
        status, out, err = dry_run(*GUESSING, *other)
        assert (status, err) == (0, "") and expected in out.splitlines(), out + err
    assert " changed " in out, "the table, and with it the report, says so too"
    assert "this resume changes" not in dry_run(*GUESSING, *other, "force_restart=true")[1]
    shutil.rmtree(begun / "finetune")
    assert "this resume changes" not in dry_run(*GUESSING, *other)[1], "nothing was trained yet"


def test_a_resume_says_when_it_ends_or_evaluates_otherwise(begun: Path, dry_run: DryRun) -> None:
    given = (
        "finetune.max_epochs=3",
        "eval_every_n_versions=128",
        "eval_at_end=false",
        "weights.kv=recompute",
    )
    status, out, err = dry_run(*GUESSING, *given)
    (line,) = [line for line in out.splitlines() if line.startswith("launcher: this resume changes")]
    assert (status, err) == (0, "") and "finetune.max_epochs null -> 3" in line
    assert "eval_at_end true -> false" in line and "weights.kv keep -> recompute" in line
    assert re.search(r"eval_every_n_versions \d+ -> 128", line)


def test_what_a_resume_changes_is_said_without_secrets_and_on_one_line(
    dry_run: DryRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, teacher = ("+domain=counting", *GUESSING[1:]), "teacher.url=${oc.env:TEACHER}"
    monkeypatch.setenv("TEACHER", "http://user:old-secret@127.0.0.1:9")
    run_with_checkpoint(dry_run, tmp_path, "actor.system_prompt=Be brief", teacher, domain=words)
    monkeypatch.setenv("TEACHER", "http://user:new-secret@127.0.0.1:9")
    prompt = "Be\x1b[2J\nlong, " + "very " * 99
    status, out, err = dry_run(*words, teacher, f"actor.system_prompt='{prompt}'")
    (line,) = [line for line in out.splitlines() if line.startswith("launcher: this resume changes")]
    assert (status, err) == (0, "") and "-secret" not in out and "\x1b" not in out
    assert "teacher.url (masked) -> (masked)" in line and "actor.system_prompt Be brief -> Be" in line
    assert len(line) < 250


def test_a_resume_may_have_other_secrets_of_the_domain(
    dry_run: DryRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is renewed while a run stands still; it opens the door to the same data."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "defaults: [base, _self_]\ndataset_loader: domains.guessing.stepwise.load_problems\n"
        "actor: {rollout_policy: domains.guessing.stepwise.generate_guessing_rollout}\n"
        "hub_token: ${oc.env:TOKEN, null}\n"
        "judge: {url: 'http://host/a', keys: ['${oc.env:TOKEN, none}']}\n"
    )
    words = ("--config-dir", str(tmp_path / "conf"), "--config-name", "mine", *GUESSING[1:])
    words = (*words, "test_llm.parameters.max_tokens=16")
    monkeypatch.setenv("TOKEN", "old-token-1111")
    run_with_checkpoint(dry_run, tmp_path, domain=words)
    for token in ("new-token-2222", None):
        monkeypatch.setenv("TOKEN", token) if token else monkeypatch.delenv("TOKEN")
        status, out, err = dry_run(*words)
        (line,) = [line for line in out.splitlines() if line.startswith("launcher: this resume changes")]
        assert (status, err) == (0, "") and "hub_token (masked) -> " in line and "judge.keys" in line
        assert "1111" not in out and "2222" not in out
    status, _, err = dry_run(*words, "judge.url=http://host/b")
    assert status == 2 and "judge.url=http://host/b: this folder's run began with http://host/a" in err


def test_a_resume_that_cannot_be_compared_says_so(begun: Path, dry_run: DryRun) -> None:
    path = config_path(begun)
    path.write_text(path.read_text().replace("learning_rate: 0.0002", "learning_rate: many"))
    status, out, err = dry_run(*GUESSING)
    (line,) = [line for line in out.splitlines() if "is compared with no earlier start" in line]
    assert (status, err) == (0, "") and "finetune.learning_rate='many'" in line
    for tree in begun.glob("conf/*.yaml"):
        tree.write_text("")
    status, out, _ = dry_run(*GUESSING)
    (line,) = [line for line in out.splitlines() if "is compared with no earlier start" in line]
    assert status == 0 and "empty; start the run again" in line


PACE = {
    *(
        "output_dir",
        "validate",
        "force_restart",
        "attempt",
        "jobs",
        "derived",
        "me",
        "domain_name",
        "domain_keys",
    ),
    *("fp32_layer_prefix", "eval_every_n_versions", "eval_at_end", "accelerate_config"),
    *("use_deepspeed", "deepspeed_config", "use_fsdp"),
    *("actor.llm_max_rollouts", "actor.rollout_workers", "actor.problem_queue_size"),
    *("actor.result_queue_size", "actor.throughput_window_size", "actor.max_rollout_retries"),
    *("actor.rollout_retry_initial_delay_s", "actor.rollout_retry_max_delay_s"),
    *("actor.rollout_deadline_s", "actor.max_failed_fraction"),
    *(f"finetune.{name}" for name in ("load_as_bf16", "use_flash_attention", "max_epochs", "compile")),
    *(f"finetune.{name}" for name in ("interrupt_train_steps", "gradient_checkpointing", "seq_length")),
    *(f"finetune.{name}" for name in ("reentrant_checkpointing", "seq_packing", "share_prefixes")),
    *(f"finetune.{name}" for name in ("seq_parallel", "save_checkpoint_steps", "also_save_steps")),
    *(f"finetune.{name}" for name in ("keep_intermediate_checkpoints", "save_final_training_state")),
    *(f"finetune.{name}" for name in ("use_safetensors", "trust_remote_code", "cuda_empty_cache")),
    *(f"finetune.{name}" for name in ("log_each_n_steps", "send_weight_updates")),
}
"""Keys of arithmetic, memory, pace, deadlines and files, in sections that also hold others."""
PACE_SECTIONS = {
    *("streams", "finetune.memory_debug", "fsdp", "hardware", "world", "engine", "vllm_config", "weights"),
    *("preprocess", "wandb", "observe", "watchdog", "debug", "bootstrap", "bootstrap.shape", "derived"),
}


def test_a_new_key_is_kept_is_said_or_is_one_of_pace(tmp_path: Path) -> None:
    """Every value that a resume may change is changed; those that are said are the rest of the schema."""
    tree = composed().copy()
    tree.output_dir = str(tmp_path)
    checkpoint = tmp_path / "finetune/current"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    free = [
        key.name
        for group in groups()
        for key in group.keys
        if not key.kept and key.name not in PACE and group.name not in PACE_SECTIONS
    ]
    assert len(free) > 80
    earlier = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    for key in free:
        OmegaConf.update(earlier, key, _another(key, OmegaConf.select(earlier, key)), force_add=True)
    save(earlier, tmp_path)
    said = [line.partition(" ")[0] for line in changes(tree)]
    of_key = {key: [one for one in said if one == key or one.startswith(f"{key}.")] for key in free}
    assert [key for key in free if not of_key[key]] == [] and len(said) == sum(map(len, of_key.values()))


def _another(key: str, value: object) -> object:
    """Some other value of a key's type; of a choice, a name or an address one that the schema takes."""
    choices = {
        "finetune.lr_scheduler_type": "linear",
        "finetune.rl.batch_size_normalization": "rollouts",
        "finetune.rl.routing": "free",
        "finetune.rl.correction.level": "sequence",
        "finetune.rl.correction.mode": "mask",
        "actor.sampling": "difficulty",
        "actor.on_rollout_error": "stop",
        "actor.domain_mix": {"guessing": 1.0},
        "environment": {"_target_": "a.b"},
        "environments": {"one": {"_target_": "a.b"}},
        "finetune.rl.correction.high": 3.0,
        "actor.difficulty.most": 3.0,
        "test_dataset_names": ["other"],
    }
    if key in choices:
        return choices[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and key.rpartition(".")[2] not in _FRACTIONS:
        return value + 1
    if isinstance(value, int | float):
        return 0.5 if value != 0.5 else 0.25
    if isinstance(value, ListConfig):
        return [7] if key.endswith("ids") else ["other"]
    if isinstance(value, DictConfig):
        return {"other": "x"}
    return "other" if value is not None and isinstance(value, str) else _OF_NULL.get(key, 0.5)


_FRACTIONS = {"top_p", "min_p", "discount_factor", "dropout", "uniform_share", "newest_weight"}
_OF_NULL = {
    **dict.fromkeys(("environment_key", "teacher.model_path", "finetune.rl.advantage_estimator"), "other"),
    "teacher.url": "http://127.0.0.1:9",
    "llm.parameters.seed": 7,
    "test_llm.parameters.seed": 7,
    "max_lag": 7,
}


@cache
def composed() -> DictConfig:
    return compose(["+domain=guessing", "hardware=cpu"]).tree


NUMBERS = [
    "finetune.max_train_steps",
    "finetune.max_epochs",
    "finetune.interrupt_train_steps",
    "finetune.learning_rate",
    "finetune.gradient_accumulation_passes",
    "finetune.weight_update_interval",
    "finetune.attempts",
    "finetune.seq_length",
    "finetune.save_checkpoint_steps",
    "finetune.num_warmup_steps",
    "max_lag",
    "actor.llm_max_rollouts",
    "actor.rollout_workers",
    "engine.count",
    "preprocess.ring_buffer_size",
    "preprocess.chunk_n_groups",
    "eval_every_n_versions",
    "llm.parameters.temperature",
    "finetune.rl.kl_coef",
]


@pytest.mark.parametrize("steps_done", [0, 8])
@pytest.mark.parametrize("larger", [True, False])
@pytest.mark.parametrize("key", NUMBERS)
def test_a_resumed_run_needs_what_its_remaining_steps_need(key: str, larger: bool, steps_done: int) -> None:
    """Eight steps of 256 texts are trained; then a key is doubled or halved."""
    base = {"finetune.max_train_steps": 12, "finetune.gradient_accumulation_passes": 256, "max_lag": 1024}
    base |= {"finetune.max_epochs": 4, "finetune.interrupt_train_steps": 10, "finetune.num_warmup_steps": 4}
    tree = composed().copy()
    old = base.get(key, OmegaConf.select(tree, key)) or 1
    assert key not in dict(kept(typed(composed())))
    new = old * 2 if larger else max(1, old // 2) if isinstance(old, int) else old / 2
    for name, value in (base | {key: new}).items():
        OmegaConf.update(tree, name, value)
    texts = int(tree.finetune.gradient_accumulation_passes)
    tree.derived = {"trainer_ranks": 1, "texts_per_step": texts, "texts_per_update": texts}
    cfg = typed(tree)
    last = min(int(tree.finetune.max_train_steps), int(tree.finetune.interrupt_train_steps))
    expected = 256 * steps_done + texts * max(0, last - steps_done)
    assert cfg.total_texts(steps_done, 256 * steps_done) == expected


ADAPTERS = "finetune.lora.enabled=true"


@pytest.mark.parametrize(
    ("given", "sent", "because"),
    [
        ((), "sent alone", "engines add them to their weights, so that no token costs more"),
        (("weights.lora=adapter",), "sent alone", "given"),
        (("weights.lora=merged",), "sent merged", "given"),
    ],
)
def test_engines_that_are_sent_adapters_alone_begin_with_the_model_and_not_with_the_checkpoint(
    dry_run: DryRun, tmp_path: Path, model: Path, given: tuple[str, ...], sent: str, because: str
) -> None:
    """A checkpoint's model has its adapters merged: those that are sent would count twice."""
    begun = run_with_checkpoint(dry_run, tmp_path, ADAPTERS)
    status, out, err = dry_run(*GUESSING, ADAPTERS, *given)
    assert (status, err) == (0, "")
    (row,) = [line for line in out.splitlines() if " adapters " in line]
    assert sent in row and because.split()[0] in row
    script = (begun / "actor_vllm_0/start.sh").read_text()
    loaded = begun / "finetune/current" if "merged" in sent else model
    assert f"--model {loaded} " in script


def test_engines_that_nobody_sends_adapters_begin_with_the_checkpoint(
    dry_run: DryRun, tmp_path: Path
) -> None:
    begun = run_with_checkpoint(dry_run, tmp_path, ADAPTERS)
    assert dry_run(*GUESSING, ADAPTERS, "debug.mode=actor", "max_lag=null")[0] == 0
    assert f"--model {begun / 'finetune/current'} " in (begun / "actor_vllm_0/start.sh").read_text()
