"""Parts of the pipeline on their own: each debug mode runs, ends and leaves what it should."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from domains.guessing.stepwise import load_problems
from pipelinerl.run_state.accounting import Outcome
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
def test_an_evaluation_alone_plays_each_test_problem_once_and_is_reported(launch: Start) -> None:
    problems = load_problems(["held_out"], count=70, max_guesses=1)
    right = [float(problem["answer"] == 42) for problem in problems]
    assert 0 < sum(right) < len(right)
    asked = ("debug.mode=evaluate", "test_dataset_names=[held_out]", "dataset_loader_params.count=70")
    with FakeEngine(said("42"), version="default") as engine:
        port = engine.url.rpartition(":")[2]
        existing = (
            "debug.use_existing_llms=true",
            f"engine.port={port}",
            "+dataset_loader_params.max_guesses=1",
        )
        run = launch(*asked, *existing)
        assert run.wait() == 0, run.err
        assert engine.counts["answered"] == len(problems)
        again = launch(*asked)
        assert again.wait() == 2 and "holds a finished evaluation, see report/" in again.err
        trains = launch("debug.mode=actor", FREE, *existing)
        assert (
            trains.wait() == 2
            and "holds an evaluation; give a run that trains a folder of its own" in trains.err
        )
    (found,) = records_of(run.output_dir, "stats_test")
    assert (found["version"], found["values"]["success"]) == (0, right)
    counts = run.counts()
    assert (counts.started, counts.eval_started, counts[Outcome.EVAL_DONE]) == (0, 70, 70)
    assert "Evaluation on test problems" in run.out and f"{sum(right) / 70:.2f} [" in run.out
    assert not (run.output_dir / "launcher/completed.json").exists()


@pytest.mark.slow
def test_a_model_that_is_overwritten_during_an_evaluation_is_said(
    launch: Start, model: Path, tmp_path: Path
) -> None:
    """A file that nobody loads is none; an engine that is started again would load the other model."""
    for changed, told in (("README.md", False), ("config.json", True)):
        copy = shutil.copytree(model, tmp_path / f"model_{told}")
        with FakeEngine(said("42"), version="default", delay_s=0.5) as engine:
            port = engine.url.rpartition(":")[2]
            existing = ("debug.use_existing_llms=true", f"engine.port={port}", f"model_path={copy}")
            run = launch("debug.mode=evaluate", *existing, name=f"run_{told}")
            run.until(partial(engine.counts.__contains__, "requests"), "its first request")
            with (copy / changed).open("a") as file:
                file.write(" ")
            assert run.wait() == 0, run.err
        words = f"model_path={copy}: was overwritten or removed during the run"
        assert (words in " ".join(run.out.split())) == told


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
