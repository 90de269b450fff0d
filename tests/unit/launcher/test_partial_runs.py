"""Debug modes: which processes each starts, who takes a missing trainer's place, where a recording ends."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.config import Config, DerivedConfig, Job
from pipelinerl.config.machine import DebugConfig
from pipelinerl.finetune.feed import Feed
from pipelinerl.finetune.rl.batch import sentinel_batch
from pipelinerl.launch import main
from pipelinerl.launcher.trainer_stand_in import stand_in
from pipelinerl.run_state.announcements import TrainerState
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import SingleStreamSpec, write_to_streams
from tests.unit.launcher.conftest import ON_GPUS, Placed, Refused

FREE = "max_lag=null"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A folder that looks as if a run had left its streams there."""
    for topic in ("actor", "training_data"):
        (tmp_path / "recorded/streams" / topic).mkdir(parents=True)
    return tmp_path / "recorded"


def test_an_evaluation_says_with_what_it_samples(placed: Placed) -> None:
    """A temperature that was given for training draws no answer of it."""
    words = ("debug.mode=evaluate", "llm.parameters.temperature=0.3", "test_llm.parameters.temperature=0.7")
    _, out = placed(*words)
    _, row = out.split("│ sampling ")
    assert row.lstrip(" │").startswith("temperature 0.7, ")
    assert "llm.parameters.temperature not read" in " ".join(row.replace("│", " ").split())
    _, datasets = out.split("│ datasets ")  # no training data, which it does not load
    assert datasets.lstrip(" │").startswith("evaluation: ")


def test_the_table_has_no_row_of_a_role_that_does_not_run(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("DRY_RUN", "1")
    words = ["+domain=guessing", "hardware=cpu", f"output_dir={tmp_path / 'run'}"]
    modes = {
        "finetune": ({"engines none", "optimizer step 256"}, {"rollouts at once", "evaluation", "datasets"}),
        "open_loop": ({"engines 1, which run already given"}, set()),
        "actor": ({"engines 1 x embedded", "datasets train"}, {"optimizer step", "weight updates"}),
    }
    for mode, (has, lacks) in modes.items():
        given = [f"debug.mode={mode}", "force_restart=true", FREE]
        given += [f"debug.streams_from={recording}"] if mode == "finetune" else []
        given += ["debug.use_existing_llms=true"] if mode == "open_loop" else []
        assert main([*words, *given]) == 0
        out = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert all(row in out for row in has) and not any(row in out for row in lacks), (mode, out)


@pytest.mark.parametrize("given", ["finetune.send_weight_updates=false", "debug.mode=open_loop"])
def test_the_table_says_that_engines_get_no_weights(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("DRY_RUN", "1")
    words = ["+domain=guessing", "hardware=cpu", f"output_dir={tmp_path / 'run'}", FREE]
    assert main([*words, given]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"weight updates none: the engines keep model_path {given}" in out


@pytest.mark.parametrize("dry_run", ["0", "1"])
def test_a_run_that_would_start_over_shows_no_resume(
    dry_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("DRY_RUN", "1")
    words = ["+domain=guessing", "hardware=cpu", f"output_dir={tmp_path / 'run'}"]
    assert main(words) == 0
    (tmp_path / "run/finetune/current").mkdir(parents=True)
    (tmp_path / "run/finetune/current/config.json").write_text("{}")
    capsys.readouterr()
    monkeypatch.setenv("DRY_RUN", dry_run)
    assert main([*words, "force_restart=true", *(["validate=true"] if dry_run == "0" else [])]) == 0
    out = capsys.readouterr().out
    assert "resuming" not in out and "latest checkpoint" not in out and "this domain" in out


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("actor", {"actor_vllm_0", "actor", "trainer_stand_in"}),
        ("evaluate", {"actor_vllm_0", "actor", "trainer_stand_in"}),
        ("preprocessor", {"preprocess", "trainer_stand_in"}),
        ("finetune", {"finetune"}),
        ("actor+preprocessor", {"actor_vllm_0", "actor", "preprocess", "trainer_stand_in"}),
        ("finetune+preprocessor", {"finetune", "preprocess"}),
        ("open_loop", {"actor_vllm_0", "actor", "preprocess", "finetune"}),
    ],
)
def test_each_mode_starts_its_own_processes(
    placed: Placed, tmp_path: Path, recording: Path, mode: str, expected: set[str]
) -> None:
    replays = "actor" not in mode and mode not in ("open_loop", "evaluate")
    more = [f"debug.streams_from={recording}"] if replays else []
    cfg, _ = placed(f"debug.mode={mode}", *([] if mode == "evaluate" else [FREE]), *more)
    started = {path.parent.name for path in (tmp_path / "run").rglob("start.sh")}
    assert started == {*expected, "wandb"}
    assert not cfg.updates_engines


@pytest.mark.parametrize(
    ("mode", "trains"),
    [
        ("actor", False),
        ("evaluate", False),
        ("preprocessor", False),
        ("finetune", True),
        ("actor+preprocessor", False),
        ("finetune+preprocessor", True),
        ("open_loop", True),
        ("''", True),
    ],
)
def test_each_mode_is_planned_on_gpus(placed: Placed, recording: Path, mode: str, trains: bool) -> None:
    replays = "actor" not in mode and mode not in ("open_loop", "evaluate", "''")
    more = [f"debug.streams_from={recording}"] if replays else []
    free = [] if mode == "evaluate" else [FREE]
    cfg, out = placed(*ON_GPUS, "hardware.devices=2", f"debug.mode={mode}", *free, *more)
    assert ("recomputation" in out) is trains is bool(cfg.jobs_of("finetune"))
    assert (cfg.derived.compile == "later") is trains


@pytest.mark.parametrize(
    ("kinds", "role", "replays"),
    [
        (("finetune",), "finetune", True),
        (("preprocessor", "finetune"), "finetune", False),
        (("preprocessor", "finetune"), "preprocessor", True),
        (("actor", "preprocessor"), "preprocessor", False),
    ],
)
def test_only_a_stage_without_its_producer_reads_the_recording(
    recording: Path, kinds: tuple[Any, ...], role: str, replays: bool
) -> None:
    jobs = [Job(kind=kind, idx=index) for index, kind in enumerate(kinds)]
    cfg = Config(debug=DebugConfig(mode="finetune", streams_from=str(recording)), jobs=jobs)
    assert cfg.streams_source(role) == (recording if replays else None)


def test_existing_engines_are_not_started(placed: Placed, tmp_path: Path) -> None:
    cfg, _ = placed("debug.mode=actor", "debug.use_existing_llms=true", "engine.port=8123", FREE)
    assert not (tmp_path / "run/actor_vllm_0").exists()
    assert [job.url for job in cfg.jobs_of("actor_llm")] == ["http://127.0.0.1:8123"]


def test_devices_need_not_be_reserved_for_engines(placed: Placed, recording: Path) -> None:
    common = [*ON_GPUS, "hardware.devices=4", "debug.mode=finetune", f"debug.streams_from={recording}"]
    for reserve, gpus in (("true", [2, 3]), ("false", [0, 1, 2, 3])):
        cfg, _ = placed(*common, f"debug.place_inference_workers={reserve}")
        assert cfg.jobs_of("finetune")[0].gpus == gpus


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["debug.mode=preprocessor"], "nothing produces its input; set debug.streams_from=RUN_FOLDER"),
        (["debug.streams_from=RECORDED"], "debug.mode='' replays nothing; choose finetune, preprocessor"),
        (["debug.mode=actor", "debug.streams_from=RECORDED", FREE], "debug.mode=actor replays nothing"),
        (
            ["debug.mode=finetune", "debug.streams_from=EMPTY"],
            "has no streams/training_data; give the folder",
        ),
        (
            ["debug.mode=preprocessor", "debug.streams_from=UPSTREAM"],
            "streams/actor/0/0/0.jsonl is upstream's; give a run of this project",
        ),
        (
            ["debug.mode=finetune", "debug.streams_from=RECORDED", "debug.use_existing_llms=true"],
            "asks no engine",
        ),
        (["debug.place_inference_workers=false"], "a CPU has no devices to reserve"),
        (["debug.mode=open_loop"], "max_lag=256: debug.mode=open_loop sends no weights"),
        (["finetune.send_weight_updates=false"], "max_lag=256: finetune.send_weight_updates=false sends no"),
    ],
)
def test_what_a_mode_cannot_do_is_refused_in_one_line(
    refused: Refused, tmp_path: Path, recording: Path, overrides: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "theirs/streams/actor/0/0").mkdir(parents=True)
    (tmp_path / "theirs/streams/actor/0/0/0.jsonl").write_text("[]\n")
    folders = {"RECORDED": recording, "EMPTY": tmp_path / "empty", "UPSTREAM": tmp_path / "theirs"}
    filled = list(overrides)
    for name, folder in folders.items():
        filled = [text.replace(name, str(folder)) for text in filled]
    assert message in refused(*filled)


@pytest.mark.parametrize("mode", ["preprocessor", "finetune+preprocessor", "finetune"])
def test_groups_of_another_size_than_recorded_are_refused(
    refused: Refused, placed: Placed, recording: Path, mode: str
) -> None:
    """Upstream ends with "Invalid group sizes". Its prepared samples (`finetune`) have their advantages."""
    (recording / "conf").mkdir()
    (recording / "conf/exp_config.yaml").write_text("attempts: 4\n")
    words = (f"debug.mode={mode}", f"debug.streams_from={recording}", FREE)
    placed(*words, "finetune.attempts=4")
    if mode == "finetune":
        placed(*words, "finetune.attempts=8", "force_restart=true")
        return
    said = refused(*words, "finetune.attempts=8", "force_restart=true")
    assert f"finetune.attempts=8: the groups of debug.streams_from={recording} have 4 rollouts" in said
    assert "set finetune.attempts=4" in said


def test_a_stand_in_announces_counts_and_ends_like_a_trainer(tmp_path: Path) -> None:
    finetune = {"train_batch_size": 2, "gradient_accumulation_passes": 1, "max_train_steps": 2}
    jobs = [Job(kind="actor", idx=0), Job(kind="preprocessor", idx=1)]
    derived = DerivedConfig(trainer_ranks=1, texts_per_step=2, texts_per_update=2)
    cfg = Config(output_dir=str(tmp_path), finetune=finetune, jobs=jobs, derived=derived)  # type: ignore[arg-type]
    given: list[int] = []
    follower = threading.Thread(target=lambda: given.append(stand_in(cfg, tmp_path)))
    follower.start()
    with (
        TrainerState(tmp_path) as state,
        write_to_streams(SingleStreamSpec(tmp_path, "training_data")) as out,
    ):
        assert state.wait_for_version(200) == 0
        assert ResumePoint.read(tmp_path).version == 0 and not state.training_done
        for texts in (3, 1):
            out.write({"n_texts": texts})
        follower.join(200)
        assert given == [4]
        state.wait_for_version(200)
        while not state.training_done:
            state.wait_for_version(200)
        assert state.samples_processed == 4


def test_a_recording_s_end_is_seen_and_a_torn_step_named(tmp_path: Path) -> None:
    spec = SingleStreamSpec(tmp_path, "training_data")
    whole, torn = sentinel_batch(0, 2), sentinel_batch(1, 2)
    torn.is_last = False
    with write_to_streams(spec) as out:
        out.write(whole.to_record())
    feed = Feed(spec, 0, 5.0, lambda: None, recording=True)
    assert not feed.exhausted and feed.position == 0
    (batch,) = feed.step(0)
    assert np.array_equal(batch.input_ids, whole.input_ids) and feed.exhausted and feed.position == 1
    feed.close()
    with write_to_streams(spec) as out:
        out.write(torn.to_record())
    feed = Feed(spec, 1, 5.0, lambda: None, recording=True)
    with pytest.raises(ValueError, match="ends within step 1; record the run again"):
        list(feed.step(1))
    feed.close()
