"""What the launcher writes before it starts anything, and what it refuses."""

import io
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.config.compose import compose
from pipelinerl.config.files import load, load_tree
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.launch import main
from pipelinerl.launcher.choices import Row, choices_table, table
from pipelinerl.launcher.folder import RunFolder
from pipelinerl.launcher.open_backend import open_backend
from pipelinerl.launcher.plan import Facts, plan
from pipelinerl.observe.progress import Output
from tests.unit.launcher.conftest import ON_GPUS, QWEN_1_7B, DryRun, Placed, Refused, python

MINE = """
defaults: [base, _self_]
dataset_loader: domains.guessing.load_problems
actor: {rollout_policy: domains.guessing.generate_guessing_rollout}
"""


@pytest.mark.parametrize(
    ("names", "because"),
    [
        ("train_dataset_names: [mine]\ntest_dataset_names: [x]", "mine; evaluation: x of your file"),
        ("", "train; evaluation: test nobody names any"),
    ],
)
def test_datasets_are_shown_as_what_they_are(
    names: str, because: str, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own.yaml").write_text(MINE + names)
    given = (f"model_path={model}", "hardware=cpu", f"output_dir={tmp_path / 'run'}")
    status, out, err = dry_run(f"--config-dir={tmp_path / 'conf'}", "--config-name=own", *given)
    assert status == 0, err
    (row,) = [line for line in out.splitlines() if line.strip(" │|").startswith("datasets")]
    assert because in " ".join(row.replace("│", " ").split())


@pytest.mark.parametrize(
    ("mode", "shown"),
    [("offline", "offline"), ("disabled", "disabled"), ("online", "WANDB_MODE=online: there is no key; ")],
)
def test_the_mode_of_wandb_is_shown_as_it_is_and_must_be_possible(
    mode: str, shown: str, placed: Placed, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    if mode == "online":
        assert shown in refused()
        return
    _, out = placed()
    (row,) = [line for line in out.splitlines() if f"WANDB_MODE={mode}" in line]
    assert "wandb" in row and shown in row
    assert (tmp_path / "run/wandb/start.sh").exists() is (mode != "disabled")


def rows(output_dir: Path, *arguments: str) -> dict[str, str]:
    """Reasons of the table by what they are about, and what was chosen behind an `=`."""
    composition = compose([*arguments, f"output_dir={output_dir}"])
    with open_backend(composition, True) as backend:
        made = plan(composition, backend.hosts, Facts(dry_run=True))
    found = table(made)
    return {row.subject: row.because for row in found} | {f"{row.subject}=": row.chosen for row in found}


def test_weights_in_files_on_a_shared_card_are_said_to_be_so_because_it_is_shared(
    tmp_path: Path, model: Path
) -> None:
    card = ["hardware=gpu", "hardware.devices=1xH100-80GB", "world.share_device=true", f"model_path={model}"]
    shown = rows(tmp_path / "run", "+domain=guessing", *card)
    assert shown["weight updates"].startswith("one GPU for engine and trainer")


@pytest.mark.parametrize("sizes", [{}, QWEN_1_7B], ids=["sizes unknown", "planned"])
def test_a_shared_card_is_said_to_be_one_and_the_change_that_is_named_divides_cards(
    tmp_path: Path, model: Path, sizes: dict[str, int]
) -> None:
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
    card = ["hardware=gpu", "hardware.devices=1xH100-80GB", "world.share_device=true", f"model_path={model}"]

    def division(*more: str) -> Row:
        composition = compose(["+domain=guessing", *card, f"output_dir={tmp_path / 'run'}", *more])
        with open_backend(composition, True) as backend:
            made = plan(composition, backend.hosts, Facts(dry_run=True))
        assert (made.memory is None) is not bool(sizes)
        return next(row for row in table(made) if row.subject == "division of GPUs")

    shared = division()
    assert shared.because == "there is one"
    change = shared.change.replace("=N", "=2xH100-80GB").split()
    assert division(*change).chosen == "1 engine, 1 trainer rank" != shared.chosen


def test_a_batch_that_no_division_of_the_ranks_gives_is_not_said_to_be_given(
    tmp_path: Path, model: Path
) -> None:
    cards = ["hardware=gpu", "hardware.devices=4xH100-80GB", "world.actor_fraction=1", f"model_path={model}"]
    size = "finetune.gradient_accumulation_passes="
    shown = rows(tmp_path / "run", "+domain=guessing", *cards, "world.finetune_fraction=3", f"{size}1000")
    assert shown["optimizer step="].startswith("1002 samples")
    assert shown["optimizer step"] == "given, else default; 1000 do not divide among 3 trainer ranks"
    shown = rows(tmp_path / "run", "+domain=guessing", *cards, "world.finetune_fraction=3", f"{size}999")
    assert shown["optimizer step"] == "given, else default", "nobody gave the number of steps"


def test_what_was_given_is_said_to_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    """And what was not has a reason that is none of a given key."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    of_row = {
        "hardware": "hardware=cpu",
        "model": f"model_path={model}",
        "datasets": "train_dataset_names=[x]",
        "engines": "engine.count=2",
        "rollouts at once": "actor.llm_max_rollouts=7",
        "weight updates": "weights.transport=file",
        "optimizer step": "finetune.gradient_accumulation_passes=128",
        "age of weights": "max_lag=300",
        "evaluation": "eval_every_n_versions=512",
    }
    every = list(of_row.values())
    given = rows(tmp_path / "run", "+domain=guessing", *every)
    assert {subject for subject, because in given.items() if because.startswith("given")} >= of_row.keys()
    assert "no GPU" not in given["hardware"] and given["hardware="] == "cpu"
    without = rows(tmp_path / "run", "+domain=guessing", of_row["hardware"], of_row["model"])
    for subject in of_row.keys() - {"hardware", "model"}:
        assert "given" not in without[subject], subject
    # The number of requests is that of rollouts, unless it has a value of its own.
    requests = rows(tmp_path / "run", "+domain=guessing", "hardware=cpu", of_row["rollouts at once"])
    assert requests["engines"] == "actor.llm_max_rollouts given, else hardware=cpu, this domain"
    own = ("actor.llm_max_rollouts=9", "engine.max_num_seqs=7")
    assert rows(tmp_path / "run", "+domain=guessing", "hardware=cpu", *own)["engines"] == (
        "engine.max_num_seqs given, else hardware=cpu, this domain"
    )


OWN = f"""{MINE}
model_path: domains/guessing/checkpoint
max_lag: 256
engine: {{max_model_len: 256}}
llm: {{parameters: {{max_tokens: 16}}}}
test_llm: {{parameters: {{max_tokens: 16}}}}
finetune: {{seq_length: 256, gradient_accumulation_passes: 64}}
"""


def test_what_a_file_says_is_said_to_be_of_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By file: the user's, a domain's, a preset's, the profile's; what none says is the default."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    conf = tmp_path / "conf"
    (conf / "finetune").mkdir(parents=True)
    (conf / "own.yaml").write_text(OWN)
    (conf / "finetune" / "short.yaml").write_text("defaults: [base]\nmax_train_steps: 3\n")

    def reasons(*given: str, **files: Any) -> dict[str, str]:
        composition = compose(["hardware=cpu", f"output_dir={tmp_path / 'run'}", *given], **files)
        with open_backend(composition, True) as backend:
            return {
                row.subject: row.because
                for row in table(plan(composition, backend.hosts, Facts(dry_run=True)))
            }

    own = {"config_name": "own", "config_dir": conf}
    found = reasons(**own)
    assert [found[row] for row in ("model", "age of weights", "optimizer step")] == ["own.yaml"] * 3
    assert found["rollouts at once"] == found["evaluation"] == "default"
    assert reasons("finetune=short", **own)["optimizer step"] == "own.yaml, finetune=short"
    assert reasons("finetune.attempts=2", **own)["optimizer step"] == "finetune.attempts given, else own.yaml"
    step = ["finetune.gradient_accumulation_passes=64", "finetune.train_batch_size=2"]
    assert reasons("+domain=guessing", *step)["optimizer step"] == "given, else this domain"
    step += ["finetune.attempts=4", "finetune.max_train_steps=5"]
    assert reasons("+domain=guessing", *step)["optimizer step"] == "given"
    found = reasons("+domain=guessing")
    assert {found[row] for row in ("model", "age of weights", "rollouts at once", "evaluation")} == {
        "this domain"
    }
    # One attempt at a problem is of a file that the chosen one includes, over the domain's eight.
    ppo = ("finetune=ppo", "finetune.rl.filter_zero_advantage_groups=false")
    assert reasons("+domain=privacy_hopqa", *ppo)["optimizer step"] == "this domain, finetune=ppo"
    found = reasons("+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch", f"model_path={tmp_path}")
    assert found["age of weights"] == "preset=privacy_hopqa_from_scratch"
    for given, reason in {
        "train_dataset_names=[x]": "given, evaluation of this domain",
        "test_dataset_names=[x]": "of this domain, evaluation given",
    }.items():
        assert reasons("+domain=guessing", given)["datasets"] == reason


def test_a_value_of_a_file_is_not_said_to_be_chosen(tmp_path: Path, model: Path) -> None:
    """Nor is what the hardware's file says ascribed to the kind of engine."""
    domain = tmp_path / "conf" / "domain"
    domain.mkdir(parents=True)
    cards = ("hardware=gpu", "hardware.devices=4xH100-80GB", f"model_path={model}")

    def reasons(text: str, *given: str) -> dict[str, str]:
        (domain / "own.yaml").write_text(f"# @package _global_\ndefaults: [math]\n{text}\n")
        composition = compose(["+domain=own", *cards, *given], config_dir=tmp_path / "conf")
        with open_backend(composition, True) as backend:
            made = plan(composition, backend.hosts, Facts(dry_run=True))
        return {row.subject: row.because for row in table(made)}

    open_still = reasons("")
    assert open_still["weight updates"] == "hardware=gpu; the model's sizes are not known"
    assert open_still["environments"] == "mode remote"
    for subject, text in {
        "output folder": f"output_dir: {tmp_path / 'run'}",
        "engines": "vllm_config: {version: 0.30.0}",
        "division of GPUs": "world: {actor_fraction: 2, finetune_fraction: 2}",
        "trainer": "use_fsdp: true",
        "environments": "world: {env_replicas: 3}",
        "weight updates": "weights: {transport: file, kv: recompute}",
    }.items():
        assert reasons(text)[subject] == "this domain", subject
        assert "this domain" not in open_still[subject], subject
    kept = reasons("weights: {kv: recompute, ahead: true}")["weight updates"]
    assert kept == "hardware=gpu, this domain"
    assert reasons("use_fsdp: auto")["trainer"] == open_still["trainer"], "which leaves it open"
    assert reasons("", "world.env_replicas=3")["environments"] == "given"
    length = reasons("vllm_config: {vllm_kwargs: {max_model_len: 4096}}")["engines"]
    assert length == f"{open_still['engines']}; this domain"


@pytest.mark.parametrize(
    ("max_lag", "reason"),
    [
        ("100", "given; an update of 256 samples is more than that"),
        ("600", "given; an update of 256 samples is not cut"),
        ("512", "given"),
        ("0", "given"),
        ("null", "given"),
    ],
)
def test_the_reason_for_the_age_of_weights_is_true(
    max_lag: str, reason: str, tmp_path: Path, model: Path
) -> None:
    found = rows(
        tmp_path / "run", "+domain=guessing", "hardware=cpu", f"model_path={model}", f"max_lag={max_lag}"
    )
    assert found["age of weights"] == reason


def test_a_vllm_that_is_not_here_is_no_reason_for_a_version(tmp_path: Path, model: Path) -> None:
    there = ("+domain=guessing", "hardware=gpu", f"model_path={model}", "hardware.devices=2xH100-80GB")
    found = rows(tmp_path / "run", *there)
    if installed_version() is None:
        assert found["engines"].startswith("no vLLM is installed here, and this package is made for 0.")
    assert found["hardware"] == "given" and found["hardware="] == "gpu, 2 GPUs, none of them here"
    assert rows(tmp_path / "run", *there, "vllm_config.version=0.32.0")["engines"] == "given"
    shares = ("world.actor_fraction=3", "world.finetune_fraction=2")
    found = rows(tmp_path / "run", *there[:-1], *shares)
    assert found["hardware="] == "gpu, 5 GPUs, none of them here"
    assert found["hardware"] == "given; as many GPUs as the shares of world", "nobody gave 5"
    assert rows(tmp_path / "run", *there[:-1], "hardware.devices=2")["hardware"] == "given"


def test_a_dry_run_writes_every_start_script_and_starts_nothing(placed: Placed, tmp_path: Path) -> None:
    cfg, out = placed()
    run = tmp_path / "run"
    scripts = sorted(run.rglob("start.sh"))
    names = ["actor", "actor_vllm_0", "finetune", "preprocess", "wandb"]
    assert [path.parent.name for path in scripts] == names
    for script in scripts:
        assert os.access(script, os.X_OK)
        subprocess.run(["sh", "-n", script], check=True)
    assert not list(run.rglob("stdout.log"))
    assert [job.name for job in cfg.jobs] == ["actor_vllm_0", "actor", "preprocess", "finetune"]
    assert cfg.output_dir == str(run)
    assert "pipelinerl.actor" in (run / "actor/start.sh").read_text()
    for subject in ("hardware", "engines", "model", "wandb", "age of weights"):
        assert subject in out


def test_the_back_end_of_retrieval_is_among_the_choices(dry_run: DryRun) -> None:
    status, out, _ = dry_run("+domain=privacy_hopqa", "privacy_hopqa.world.size=tiny")
    assert status == 0
    assert "rank_bm25" in out


def test_replicas_of_a_service_have_ports_logs_and_one_key(dry_run: DryRun, tmp_path: Path) -> None:
    """Each is a process of its own; the rollouts get the list of their addresses and wait for all."""
    replicas = ("privacy_hopqa.retrieval_replicas=2", "privacy_hopqa.scoring_server_options=[]")
    assert dry_run("+domain=privacy_hopqa", "privacy_hopqa.world.size=tiny", *replicas)[0] == 0
    servers = {job.name: job for job in load(tmp_path / "run").jobs_of("service")}
    assert list(servers) == ["retrieval_0", "retrieval_1", "scoring"]
    assert len({job.port for job in servers.values()}) == 3
    block = load_tree(tmp_path / "run").privacy_hopqa
    assert list(block.helper_service_url) == [servers["retrieval_0"].url, servers["retrieval_1"].url]
    assert block.privacy_reward_service_url == servers["scoring"].url
    for name in ("retrieval_0", "retrieval_1"):
        script = (tmp_path / "run/services" / name / "start.sh").read_text()
        assert f"--port {servers[name].port}" in script


NAMED = ("+domain=privacy_hopqa", "privacy_hopqa.helper_service_url=http://127.0.0.1:9")


def test_a_retrieval_service_of_the_user_is_among_the_choices(dry_run: DryRun, tmp_path: Path) -> None:
    status, out, _ = dry_run(*NAMED, "privacy_hopqa.world.size=tiny")
    assert status == 0  # a dry run asks nobody
    (row,) = [line for line in out.splitlines() if "service retrieval" in line]
    assert "http://127.0.0.1:9" in row and "given" in row
    assert not (tmp_path / "run/services").exists()


def test_a_named_service_that_is_not_there_is_one_line_and_removes_nothing(
    dry_run: DryRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run(*NAMED, "privacy_hopqa.world.size=tiny")
    monkeypatch.delenv("DRY_RUN", raising=False)
    monkeypatch.setattr("domains.privacy_hopqa.agent.transport.Retries.wait_s", lambda *_: 0.0)
    kept = tmp_path / "run/finetune/current/model.safetensors"
    kept.parent.mkdir()
    kept.write_bytes(b"weights")
    overrides = ("hardware=cpu", f"output_dir={tmp_path / 'run'}", "force_restart=true")
    assert main([*NAMED, *overrides]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("launcher: privacy_hopqa.helper_service_url=http://127.0.0.1:9: ")
    assert kept.exists()


def test_a_dry_run_removes_nothing(dry_run: DryRun, tmp_path: Path) -> None:
    dry_run("+domain=guessing")
    checkpoint = tmp_path / "run/finetune/current/model.safetensors"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"weights")
    assert dry_run("+domain=guessing", "force_restart=true")[0] == 0
    assert checkpoint.exists()


def test_a_gpu_profile_dry_runs_on_a_machine_without_one(placed: Placed, tmp_path: Path) -> None:
    placed(*ON_GPUS, "vllm_config.api_server_count=1")
    engine = (tmp_path / "run/actor_vllm_3/start.sh").read_text()
    assert "-m vllm.entrypoints.cli.main serve" in engine and "--enable-scale-out" in engine
    assert "export CUDA_VISIBLE_DEVICES=3" in engine and "VLLM_SERVER_DEV_MODE=1" in engine
    trainer = (tmp_path / "run/finetune/start.sh").read_text()
    assert "accelerate.commands.launch --num_processes 4" in trainer
    assert "export CUDA_VISIBLE_DEVICES=4,5,6,7" in trainer


@pytest.mark.parametrize(("seed", "first"), [("42", 42), ("7", 7), ("-1", 2**32 - 1)])
def test_engines_draw_from_seeds_of_their_own_as_upstreams_do(
    seed: str, first: int, placed: Placed, tmp_path: Path
) -> None:
    """Upstream's launcher gives each the run's seed plus its index; without a flag vLLM takes 0 for all."""
    placed(*ON_GPUS, f"seed={seed}", "hardware.devices=4")
    commands = [(tmp_path / f"run/actor_vllm_{index}/start.sh").read_text() for index in range(2)]
    found = [int(command.split(" --seed ")[1].split()[0]) for command in commands]
    assert found == [first, (first + 1) % 2**32]


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("\n", "the file is empty")])
def test_a_file_without_a_key_for_wandb_is_said(
    content: str | None, said: str, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY_PATH", str(tmp_path / "key"))
    line = refused()
    assert line.startswith(f"launcher: WANDB_API_KEY_PATH={tmp_path / 'key'}: no key there (")
    assert said in line


def test_devices_can_be_named_for_a_dry_run(placed: Placed) -> None:
    cfg, _ = placed(*ON_GPUS, "hardware.devices=2")
    assert [job.gpus for job in cfg.jobs_of("finetune")] == [[1]]


def test_an_older_vllm_gets_its_own_flags_and_what_it_lacks_is_said(placed: Placed, tmp_path: Path) -> None:
    _, out = placed(*ON_GPUS, "vllm_config.version=0.26.0")
    assert "--enable-scale-out" not in (tmp_path / "run/actor_vllm_0/start.sh").read_text()
    assert "lower bounds" in out


def test_validate_stops_before_anything_is_written(dry_run: DryRun, tmp_path: Path) -> None:
    status, out, _ = dry_run("+domain=guessing", "validate=true")
    assert status == 0 and "the configuration is valid" in out
    assert not (tmp_path / "run").exists()


def test_problems_are_single_lines_on_stderr(dry_run: DryRun, tmp_path: Path) -> None:
    status, out, err = dry_run("+domain=guessing", "finetune.attempts=1", "llm.parameters.top_p=0.5")
    assert status == 2 and out == ""
    lines = err.splitlines()
    assert len(lines) == 2 and all(line.startswith("launcher: ") for line in lines)
    assert not (tmp_path / "run").exists()


def test_the_composed_tree_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+domain=guessing", "--cfg", "job", "seed=3"]) == 0
    assert "seed: 3" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "+domain=NAME" in capsys.readouterr().out


def test_a_foreign_folder_is_not_written_to(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("x")
    assert "holds thesis.tex, which no run made" in refused()


def test_a_second_launcher_is_refused(refused: Refused, placed: Placed, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run"):
        assert f"in use by launcher process {os.getpid()} on {socket.gethostname()};" in refused()
    placed()


@pytest.mark.parametrize("nested", [False, True])
def test_layers_that_mix_texts_are_refused_before_an_engine_starts(
    refused: Refused, placed: Placed, model: Path, nested: bool
) -> None:
    def write(*kinds: str) -> None:
        text = {"layer_types": kinds}
        (model / "config.json").write_text(json.dumps({"text_config": text} if nested else text))

    write("linear_attention", "full_attention")
    assert "layers of linear_attention; only full_attention and sliding_attention can" in refused()
    write("full_attention", "sliding_attention")
    placed()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("doge", "attention with masks that its layers compute for each token"),
        ("falcon", "attention that cannot be replaced"),
        ("bloom", "attention that cannot be replaced"),
        ("bart", "positions that are counted over a whole row"),
        ("jamba", "layers that pass a state from token to token"),
        ("roberta", "an output head of several layers"),
    ],
)
def test_a_type_that_takes_no_rows_is_refused_before_an_engine_starts(
    refused: Refused, model: Path, kind: str, said: str, nested: bool
) -> None:
    text = {"model_type": kind}
    (model / "config.json").write_text(json.dumps({"text_config": text} if nested else text))
    assert f"has {said}; it cannot be trained on packed rows; give another model" in refused()


def test_a_model_with_quantised_weights_is_refused_where_it_would_be_trained(
    refused: Refused, placed: Placed, model: Path
) -> None:
    """gpt-oss is published in MXFP4."""
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    (model / "config.json").write_text(json.dumps(config))
    assert f"model_path={model}: its weights are quantised (mxfp4)" in refused()
    placed("debug.mode=actor", "max_lag=null")


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        ("deepseek_v3", {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
        ("minimax_m2", {"scoring_func": "sigmoid", "use_routing_bias": True}),
    ],
)
def test_keys_by_which_vllm_chooses_a_router_are_looked_for(
    refused: Refused, placed: Placed, model: Path, kind: str, published: dict[str, Any]
) -> None:
    """Those of the published `config.json`, which transformers' own configuration class does not write."""
    for key, value in published.items():
        others = {name: one for name, one in published.items() if name != key}
        for config in (others, others | {key: "other"}):
            (model / "config.json").write_text(json.dumps({"model_type": kind} | config))
            err = refused(*ON_GPUS)
            assert f"model_path={model}: config.json says {key}={config.get(key)}: vLLM would" in err
            assert f"; set {key}={value} there" in err
    (model / "config.json").write_text(json.dumps({"model_type": kind} | published))
    placed(*ON_GPUS)
    (model / "config.json").write_text(json.dumps({"model_type": kind}))
    placed()  # the embedded engine computes what the trainer does


def test_a_launcher_on_each_host_is_told_the_command_for_all(
    refused: Refused, placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "dns-7-0")):
        monkeypatch.setenv(name, value)
    said = refused()
    assert "WORLD_SIZE=2 (RANK=1)" in said and "run this command once, with world.backend=ray" in said
    assert "--min-nodes 2 --" in said
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")  # torchrun's: two hosts
    assert "--min-nodes 2 --" in refused("hardware=cpu")
    assert "ray symmetric-run --address dns-7-0:6379 --min-nodes 2" in said
    placed("hardware=cpu", "world.backend=ray", "streams=redis")


def test_the_launcher_works_from_any_directory_and_imports_nothing_of_ray(
    tmp_path: Path, model: Path
) -> None:
    command = ("-X", "importtime", "-m", "pipelinerl.launch", "+domain=guessing", f"model_path={model}")
    answer = python(*command, cwd=tmp_path, DRY_RUN="1")
    assert answer.returncode == 0, answer.stderr
    folder = Path(answer.stdout.split("output_dir=")[1].splitlines()[0])
    assert folder.parent == tmp_path / "results/guessing" and (folder / "conf/exp_config.yaml").is_file()
    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}
    assert "pipelinerl.launcher" in imported and not {"ray", "torch", "transformers"} & imported


def test_the_table_of_choices_fits_80_columns() -> None:
    key = "finetune.gradient_accumulation_passes=N"
    rows = [Row("optimizer step", "48 samples, 8 rollouts a problem, 104 steps", "this domain", key)]
    said = {width: io.StringIO() for width in (80, 144)}
    for width, out in said.items():
        Output(file=out, width=width).print(choices_table(rows, width))
    narrow = said[80].getvalue().splitlines()
    assert all(len(line.rstrip()) <= 80 for line in narrow)
    assert narrow[1].split("optimizer step")[1].strip() == rows[0].chosen
    assert key in said[80].getvalue(), "a key is not broken where there is room for it"
    assert "change with" in said[144].getvalue().splitlines()[2]


@pytest.mark.parametrize(
    ("kind", "warmup", "said"),
    [("cosine", 20, "19"), ("constant_with_warmup", 39, "10"), ("cosine", 3, None), ("linear", 4, "80")],
)
def test_a_warm_up_that_the_run_does_not_outlast_is_remarked(
    dry_run: DryRun, kind: str, warmup: int, said: str | None
) -> None:
    """Of 4 steps the last has 4/5, 4/21 and 4/40 of the rate."""
    given = ["finetune.max_train_steps=4", f"finetune.num_warmup_steps={warmup}"]
    status, out, _ = dry_run("+domain=guessing", f"finetune.lr_scheduler_type={kind}", *given)
    found = re.findall(r"launcher: finetune\.num_warmup_steps=.*, to (\d+)% of", out)
    assert status == 0 and found == ([] if said is None else [said])


def test_values_that_are_allowed_and_seldom_meant_are_remarked(dry_run: DryRun) -> None:
    """5 times the rate of 0.5 is more than the whole weight; a rate of 0 has no warm-up to speak of."""
    odd = [
        "seed=-1",
        "train_dataset_names=[train,train]",
        "finetune.learning_rate=0.5",
        "finetune.weight_decay=5",
        "finetune.lora.dropout=0.1",
    ]
    status, out, _ = dry_run("+domain=guessing", *odd, "finetune.lora.enabled=true")
    lines = [line for line in out.splitlines() if line.startswith("launcher: ")]
    named = [line.split()[1].rstrip(":") for line in lines]
    assert status == 0 and named == [odd[0], "train_dataset_names", *odd[2:]]
    assert "train is named several times" in lines[1] and "2.5 of their size" in lines[3]
    assert "engines drop nothing" in lines[4]
    status, out, _ = dry_run("+domain=guessing", "finetune.learning_rate=0")
    (line,) = [line for line in out.splitlines() if line.startswith("launcher: ")]
    assert status == 0 and line.startswith("launcher: finetune.learning_rate=0: no step changes the weights")
