"""Preprocess and trainer together on real streams: from groups to a finished run."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import PreTrainedModel

from pipelinerl.base.waits import WaitExpired
from pipelinerl.config import Config
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.preprocess.loop import run
from pipelinerl.preprocess.reading import Vocabulary, model_vocabulary
from pipelinerl.run_state.accounting import Outcome, RolloutLog, reconcile
from pipelinerl.run_state.announcements import TrainerAnnouncements, TrainerState
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import SingleStreamSpec, write_to_streams
from tests.support.builders import group, preprocess_config, trainer_config
from tests.support.policy import VOCAB
from tests.unit.preprocess.test_bad_input import ONE_TEXT, WHOLE_GROUP, Record

STEPS = 3


class Errors(list[BaseException]):
    """Runs functions in threads and keeps what they raise."""

    def thread(self, work: object, *arguments: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:
                self.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread


def nothing_wrong(number: int, texts: list[Record]) -> None: ...


def every_third_is_bad(number: int, texts: list[Record]) -> None:
    """A bad sample of another kind each time."""
    if number % 3 == 1:
        spoil, _ = SPOILT[(number // 3) % len(SPOILT)]
        spoil(texts)


SPOILT: list[tuple[Callable[[list[Record]], None], str]] = [
    ONE_TEXT["reward nan"],
    ONE_TEXT["logprob infinite"],
    ONE_TEXT["a logprob less than tokens"],
    ONE_TEXT["empty completion"],
    ONE_TEXT["longer than a row"],
    WHOLE_GROUP["contradictory situation"],
    WHOLE_GROUP["negative loss weight"],
]


def play_actor(
    output_dir: Path, first: int, spoil: Callable[[int, list[Record]], None] = nothing_wrong
) -> None:
    """Publish groups, some of them without a signal, until training is done."""
    with (
        TrainerState(output_dir) as state,
        RolloutLog(output_dir, "actor") as rollout_log,
        write_to_streams(SingleStreamSpec(output_dir, "actor")) as stream,
    ):
        state.wait_for_version(200)
        number = first
        while not state.training_done:
            version = state.propagated_weight_version or 0
            if (number - first) * 4 - version - state.discarded > 24:
                threading.Event().wait(0.005)
                continue
            texts = group(number, version=version)
            if number % 3 == 0:
                for text in texts:
                    text["reward"] = 1.0
            spoil(number, texts)
            rollout_log.record(Outcome.STARTED, [f"g{number}/{i}" for i in range(4)])
            stream.write(texts)
            number += 1


def run_config(output_dir: Path, rl: dict[str, Any], last_step: int, **changes: Any) -> Config:
    defaults: dict[str, Any] = {
        "max_lag": 12,
        "engine": {"start_deadline_s": 200},
        "preprocess": {"log_every_n_samples": 6},
    }
    tune = {"max_train_steps": last_step, "rl": rl}
    return preprocess_config(output_dir, texts_per_step=6, finetune=tune, **defaults | changes)


def test_groups_become_a_trained_model_and_a_resumed_run_goes_on(
    tmp_path: Path, model: PreTrainedModel
) -> None:
    rl = {"epsilon_high": 4.0, "filter_zero_advantage_groups": True, "temperature": 0.9}
    for start, last_step in enumerate((STEPS, 2 * STEPS)):
        errors = Errors()
        chosen = trainer_config(
            tmp_path, model, rl=rl, max_train_steps=last_step, follows_preprocess=True, max_lag=12
        )
        for topic in ("weight_update_request", "discarded"):
            for file in (tmp_path / "streams" / topic).rglob("*.rec"):
                file.unlink()  # what a launcher does before it starts the roles again
        threads = [
            errors.thread(run, run_config(tmp_path, rl, last_step), tmp_path),
            errors.thread(play_actor, tmp_path, 1000 * start),
        ]
        trainer = Trainer(chosen, Ranks())
        trainer.run()
        for thread in threads:
            thread.join(timeout=200)
        assert errors == [] and not any(thread.is_alive() for thread in threads)
        assert trainer.counters.samples == 6 * last_step
        assert trainer.counters.samples_too_old_to_train == 0
    counts = reconcile(tmp_path)
    assert counts.adds_up and counts[Outcome.TRAINED] == 12 * STEPS
    assert counts.reasons[Outcome.FILTERED].keys() == {"zero_advantage"}
    assert (tmp_path / "preprocess/status.json").exists()


def test_a_run_goes_on_past_bad_samples_and_its_books_add_up(tmp_path: Path, model: PreTrainedModel) -> None:
    steps = 14
    rl = {
        "epsilon_high": 4.0,
        "filter_zero_advantage_groups": True,
        "batch_size_normalization": "rollouts",
    }
    errors = Errors()
    chosen = trainer_config(tmp_path, model, rl=rl, max_train_steps=steps, follows_preprocess=True)
    threads = [
        errors.thread(run, run_config(tmp_path, rl, steps, max_lag=1000), tmp_path),
        errors.thread(play_actor, tmp_path, 1000, every_third_is_bad),
    ]
    trainer = Trainer(chosen, Ranks())
    trainer.run()
    for thread in threads:
        thread.join(timeout=200)
    assert errors == [] and trainer.counters.samples == 6 * steps
    counts = reconcile(tmp_path)
    assert counts.adds_up and counts[Outcome.TRAINED] == 6 * steps
    found = counts.reasons[Outcome.FILTERED]
    assert found.keys() >= {reason for _, reason in SPOILT}
    assert found["not_finite"] >= 2 and found["bad_labels"] >= 8


def test_waiting_for_groups_has_a_name_and_a_deadline(tmp_path: Path, model: PreTrainedModel) -> None:
    model.save_pretrained(tmp_path / "model")
    ResumePoint(0, 0).write(tmp_path)
    with TrainerAnnouncements(tmp_path) as announcements:
        announcements.weight_update_success(0)
        chosen = run_config(tmp_path, {}, 3, data_deadline_s=0.2)
        with pytest.raises(WaitExpired, match="groups of rollouts for step 0"):
            run(chosen, tmp_path)


@pytest.mark.parametrize("whole", ["Gemma3Config", "Qwen3_5Config", "Qwen3_5MoeConfig"])
def test_a_vocabulary_that_is_left_out_is_that_of_the_model_type(tmp_path: Path, whole: str) -> None:
    """Published configurations leave out what is the default of their class."""
    config = getattr(transformers, whole)()
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    written["text_config"].pop("vocab_size", None)
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert model_vocabulary(str(tmp_path)).size == config.get_text_config(decoder=True).vocab_size


def test_the_vocabulary_comes_from_the_model_folder(tmp_path: Path, model: PreTrainedModel) -> None:
    model.config.eos_token_id = [7, 8]
    model.save_pretrained(tmp_path)
    assert model_vocabulary(str(tmp_path)) == Vocabulary(VOCAB, (7, 8))
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 9, "eos_token_id": 3}}')
    assert model_vocabulary(str(tmp_path)) == Vocabulary(9, (3,))
    with pytest.raises(ValueError, match="no model configuration"):
        (tmp_path / "config.json").write_text("{}")
        model_vocabulary(str(tmp_path))
