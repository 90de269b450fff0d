"""Parts of the pipeline on their own: each debug mode runs, ends and leaves what it should."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.run_state.accounting import reconcile
from pipelinerl.streams import SingleStreamSpec, read_stream
from tests.pipeline.conftest import LauncherProcess

Launch = Callable[..., LauncherProcess]
FREE = "max_lag=null"
TEXTS = 32


def texts_in(folder: Path, topic: str) -> int:
    with read_stream(SingleStreamSpec(folder, topic)) as reader:
        records = reader.read_available()
    return sum(record["n_texts"] if isinstance(record, dict) else len(record) for record in records)


def steps_of(folder: Path) -> int:
    return int(json.loads((folder / "finetune/summary.json").read_text())["completed_steps"])


@pytest.mark.slow
def test_the_actor_runs_alone_against_engines_that_already_serve(launch: Launch, model: Path) -> None:
    from tests.support.fake_engine import FakeEngine
    from tests.support.tiny_model import build_tokenizer

    tokenizer = build_tokenizer()
    answer = [*tokenizer.convert_tokens_to_ids(list("42")), tokenizer.eos_token_id]
    with FakeEngine(lambda prompt: answer, version="default") as engine:
        port = engine.url.rpartition(":")[2]
        run = launch(
            "debug.mode=actor",
            "debug.use_existing_llms=true",
            f"engine.port={port}",
            "finetune.max_train_steps=2",
            FREE,
        )
        assert run.wait() == 0, run.err
        assert engine.counts["answered"] >= TEXTS
    folder = run.output_dir
    assert texts_in(folder, "actor") >= TEXTS and not (folder / "actor_vllm_0").exists()
    with read_stream(SingleStreamSpec(folder, "actor")) as reader:
        (text, *_) = reader.read_available()[0]
    assert text["weight_versions"] == [[0, 0, 3]]
    counts = reconcile(folder)
    assert counts.adds_up and counts.eval_started > 0
    assert not (folder / "launcher/completed.json").exists()


@pytest.fixture
def named(model: Path, tmp_path: Path, launch: Launch) -> Launch:
    """Starts runs in folders of their own, all of the same short recipe."""

    def start(name: str, *overrides: str) -> LauncherProcess:
        return launch(f"output_dir={tmp_path / name}", "finetune.max_train_steps=2", *overrides)

    return start


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_recorded_run_can_be_replayed_stage_by_stage(named: Launch, tmp_path: Path) -> None:
    whole = named("whole")
    assert whole.wait() == 0, whole.err
    source = f"debug.streams_from={tmp_path / 'whole'}"

    prepared = named("prepared", "debug.mode=preprocessor", source, FREE)
    assert prepared.wait() == 0, prepared.err
    assert texts_in(tmp_path / "prepared", "training_data") == TEXTS

    trained = named("trained", "debug.mode=finetune", f"debug.streams_from={tmp_path / 'prepared'}", FREE)
    assert trained.wait() == 0, trained.err
    assert steps_of(tmp_path / "trained") == 2

    both = named("both", "debug.mode=finetune+preprocessor", source, FREE)
    assert both.wait() == 0, both.err
    assert steps_of(tmp_path / "both") == 2
    assert texts_in(tmp_path / "both", "training_data") == TEXTS

    more = named("more", "debug.mode=finetune", source, FREE, "finetune.max_train_steps=9")
    assert more.wait() == 0, more.err
    assert steps_of(tmp_path / "more") < 9

    lacking = named(
        "lacking", "debug.mode=finetune+preprocessor", source, FREE, "finetune.max_train_steps=99"
    )
    assert lacking.wait() == 1
    assert "ends after" in lacking.err and "set finetune.max_train_steps=" in lacking.err


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["actor", "actor+preprocessor", "open_loop"])
def test_sampling_goes_on_without_new_weights(named: Launch, tmp_path: Path, mode: str) -> None:
    run = named("run", f"debug.mode={mode}", FREE)
    assert run.wait() == 0, run.err
    assert texts_in(tmp_path / "run", "actor") >= TEXTS
    if mode == "open_loop":
        assert steps_of(tmp_path / "run") == 2
    with read_stream(SingleStreamSpec(tmp_path / "run", "actor")) as reader:
        versions = {
            span[0] for group in reader.read_available() for t in group for span in t["weight_versions"]
        }
    assert versions == {0}
