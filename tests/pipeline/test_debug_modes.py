"""Parts of the pipeline on their own: each debug mode runs, ends and leaves what it should."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import Start, records_of
from tests.support.fake_engine import FakeEngine, said

FREE = "max_lag=null"
SHORT = ["finetune.max_train_steps=2"]
TEXTS = 32


def texts_in(folder: Path, topic: str) -> int:
    records = records_of(folder, topic)
    return sum(record["n_texts"] if isinstance(record, dict) else len(record) for record in records)


@pytest.mark.slow
def test_the_actor_runs_alone_against_engines_that_already_serve(launch: Start) -> None:
    with FakeEngine(said("42"), version="default") as engine:
        port = engine.url.rpartition(":")[2]
        run = launch(
            *("debug.mode=actor", "debug.use_existing_llms=true", f"engine.port={port}", *SHORT, FREE),
        )
        assert run.wait() == 0, run.err
        assert engine.counts["answered"] >= TEXTS
    folder = run.output_dir
    assert texts_in(folder, "actor") >= TEXTS and not (folder / "actor_vllm_0").exists()
    assert records_of(folder, "actor")[0][0]["weight_versions"] == [[0, 0, 3]]
    assert run.counts().eval_started > 0
    assert not (folder / "launcher/completed.json").exists()


@pytest.mark.slow
def test_a_recorded_run_can_be_replayed_stage_by_stage(launch: Start, tmp_path: Path) -> None:
    whole = launch(*SHORT, name="whole")
    assert whole.wait() == 0, whole.err
    source = f"debug.streams_from={tmp_path / 'whole'}"

    prepared = launch("debug.mode=preprocessor", source, FREE, *SHORT, name="prepared")
    assert prepared.wait() == 0, prepared.err
    assert texts_in(tmp_path / "prepared", "training_data") == TEXTS

    prepared_by = f"debug.streams_from={tmp_path / 'prepared'}"
    trained = launch("debug.mode=finetune", prepared_by, FREE, *SHORT, name="trained")
    assert trained.wait() == 0, trained.err
    assert trained.summary()["completed_steps"] == 2

    both = launch("debug.mode=finetune+preprocessor", source, FREE, *SHORT, name="both")
    assert both.wait() == 0, both.err
    assert both.summary()["completed_steps"] == 2
    assert texts_in(tmp_path / "both", "training_data") == TEXTS

    more = launch("debug.mode=finetune", source, FREE, "finetune.max_train_steps=9", name="more")
    assert more.wait() == 0, more.err
    assert more.summary()["completed_steps"] < 9

    asked = ["debug.mode=finetune+preprocessor", "finetune.max_train_steps=99"]
    lacking = launch(*asked, source, FREE, name="lacking")
    assert lacking.wait() == 1
    assert "ends after" in lacking.err and "set finetune.max_train_steps=" in lacking.err


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["actor", "actor+preprocessor", "open_loop"])
def test_sampling_goes_on_without_new_weights(launch: Start, mode: str) -> None:
    run = launch(f"debug.mode={mode}", FREE, *SHORT)
    assert run.wait() == 0, run.err
    assert texts_in(run.output_dir, "actor") >= TEXTS
    if mode == "open_loop":
        assert run.summary()["completed_steps"] == 2
    texts = [text for group in records_of(run.output_dir, "actor") for text in group]
    assert {version for text in texts for version, _, _ in text["weight_versions"]} == {0}
