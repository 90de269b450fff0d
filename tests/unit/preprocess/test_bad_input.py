"""Bad samples are dropped and counted, each under its reason; the run goes on, the rollouts add up."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.sample import Sample, metadata_of
from pipelinerl.preprocess.reading import LEAST, Rejections
from pipelinerl.preprocess.signal import warn_about_role_weights
from tests.support.builders import group
from tests.support.policy import VOCAB
from tests.unit.preprocess.conftest import Bench

Record = dict[str, Any]
Spoil = Callable[[list[Record]], None]
NAN, INF = float("nan"), float("inf")


def put(**fields: Any) -> Spoil:
    """Overwrite fields of the group's first text."""

    def spoil(texts: list[Record]) -> None:
        texts[0].update(fields)

    return spoil


def metadata(**entries: Any) -> Spoil:
    def spoil(texts: list[Record]) -> None:
        texts[0]["metadata"] = texts[0]["metadata"] | entries

    return spoil


def logprob(value: float) -> Spoil:
    def spoil(texts: list[Record]) -> None:
        texts[0]["logprobs"][-1] = value

    return spoil


def cut(column: str) -> Spoil:
    def spoil(texts: list[Record]) -> None:
        texts[0][column] = texts[0][column][:-1]

    return spoil


def without(column: str) -> Spoil:
    def spoil(texts: list[Record]) -> None:
        del texts[0][column]

    return spoil


def empty_completion(texts: list[Record]) -> None:
    prompt = texts[0]["labels"] == -100
    texts[0] |= {
        "input_ids": texts[0]["input_ids"][prompt],
        "labels": texts[0]["labels"][prompt],
        "logprobs": np.zeros(0, np.float32),
        "weight_versions": [],
    }


def no_tokens(texts: list[Record]) -> None:
    nothing = np.zeros(0, np.int32)
    texts[0] |= {"input_ids": nothing, "labels": nothing, "logprobs": [], "weight_versions": []}


def too_long(texts: list[Record]) -> None:
    texts[0] |= {
        "input_ids": np.ones(25, np.int32),
        "labels": np.where(np.arange(25) < 20, -100, 1).astype(np.int32),
        "logprobs": np.zeros(5, np.float32),
        "weight_versions": [[0, 0, 5]],
    }


def foreign_id(texts: list[Record]) -> None:
    texts[0]["input_ids"] = texts[0]["input_ids"].copy()
    texts[0]["input_ids"][0] = VOCAB


def another_label(texts: list[Record]) -> None:
    texts[0]["labels"] = texts[0]["labels"].copy()
    texts[0]["labels"][-1] += 1


ONE_TEXT = {
    "reward nan": (put(reward=NAN), "not_finite"),
    "reward infinite": (put(reward=INF), "not_finite"),
    "reward beyond float32": (put(reward=1e39), "too_large"),
    "reward whose gradient's square is beyond float32": (put(reward=-1e25), "too_large"),
    "reward missing": (put(reward=None), "malformed"),
    "reward a word": (put(reward="much"), "malformed"),
    "logprob nan": (logprob(NAN), "not_finite"),
    "logprob infinite": (logprob(-INF), "not_finite"),
    "a loss in place of a logprob": (logprob(0.7), "too_large"),
    "a logprob less than tokens": (cut("logprobs"), "label_mismatch"),
    "a label less than ids": (cut("labels"), "label_mismatch"),
    "empty completion": (empty_completion, "no_labels"),
    "no tokens at all": (no_tokens, "no_labels"),
    "longer than a row": (too_long, "oversize"),
    "id outside the vocabulary": (foreign_id, "foreign_id"),
    "no ids": (without("input_ids"), "malformed"),
    "no labels": (without("labels"), "malformed"),
    "no logprobs": (without("logprobs"), "malformed"),
    "ids with a fraction": (put(input_ids=[1.5, 2.0]), "malformed"),
    "ids in two dimensions": (put(input_ids=np.ones((2, 2), np.int32)), "malformed"),
    "logprobs as words": (put(logprobs=["a"]), "malformed"),
    "version spans with two numbers": (put(weight_versions=[[0, 1]]), "malformed"),
    "version spans with a gap": (put(weight_versions=[[0, 1, 2]]), "bad_versions"),
    "versions of too few tokens": (put(weight_versions=[[0, 0, 1]]), "bad_versions"),
    "a newer version before an older one": (put(weight_versions=[[3, 0, 1], [2, 1, 2]]), "bad_versions"),
    "a label of another token": (another_label, "label_mismatch"),
}
WHOLE_GROUP = {
    "index twice": (metadata(rollout_index=1), "duplicate_index"),
    "index beyond attempts": (metadata(rollout_index=99), "foreign_index"),
    "no index": (metadata(step_index=None), "foreign_index"),
    "another group": (put(group_id="other"), "foreign_group"),
    "contradictory situation": (
        lambda texts: (put(situation="a")(texts), metadata(step_advantage_group="b")(texts)),
        "bad_labels",
    ),
    "empty role": (put(role=""), "bad_labels"),
    "negative loss weight": (put(loss_weight=-1.0), "bad_labels"),
    "loss weight beyond float32": (put(loss_weight=1e39), "bad_labels"),
    "advantage times loss weight beyond float32": (put(loss_weight=1e15, reward=1e14), "bad_labels"),
    "padding beyond float32": (put(padding_reward=-1e39), "bad_labels"),
    "metadata a word": (put(metadata="none"), "foreign_index"),
}
CASES = [(name, *case, 1) for name, case in ONE_TEXT.items()]
CASES += [(name, *case, 4) for name, case in WHOLE_GROUP.items()]


@pytest.mark.parametrize(("spoil", "reason", "lost"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bad_sample_is_counted_and_the_others_are_trained(
    bench: Bench, spoil: Spoil, reason: str, lost: int
) -> None:
    bad = group(1)
    spoil(bad)
    bench.preprocess.take_groups([group(0), bad])
    bench.preprocess.take_groups([group(2)])
    assert bench.discarded.counts == {reason: lost}
    assert bench.preprocess.write_steps()
    trained = [tuple(t) for batch in bench.batches() for t in batch.text_ids]
    assert len(set(trained)) == 8 and ("g1", 0, 0) not in trained
    ended = {(t["group_id"], metadata_of(t).get("rollout_index")) for t in bad[:lost]}
    assert sum(bench.ends().values()) == len(ended) and {r for _, r in bench.ends()} == {reason}


@pytest.mark.parametrize("bench", [{"max_lag": 4}], indirect=True)
def test_with_a_lag_bound_a_sample_without_a_version_is_dropped(bench: Bench) -> None:
    texts = group(0)
    texts[0] |= {"weight_versions": [], "metadata": {"rollout_index": 0, "step_index": 0}}
    bench.preprocess.take_groups([texts])
    assert bench.discarded.counts == {"no_version": 1}


def test_labels_that_need_another_flag_are_named_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    uneven = group(0, steps=2)
    uneven[1]["reward"] = 9.0
    with caplog.at_level(logging.ERROR):
        bench.preprocess.take_groups([uneven, group(1), group(2)])
    assert bench.discarded.counts == {"bad_labels": 8}
    (line,) = [r.getMessage() for r in caplog.records]
    assert "sample g0/0/1: reward 9 differs" in line and "step_reward_advantages=true" in line
    assert bench.preprocess.write_steps()


@pytest.mark.parametrize(
    "bench", [{"finetune": {"rl": {"role_lengths": {"policy": 16.0}}}}], indirect=True, ids=["lengths"]
)
def test_a_role_without_a_length_costs_its_group_instead_of_weighing_many_times_more(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [group(number) for number in range(3)]
    for text in [text for texts in groups for text in texts]:
        text["role"] = "policy"
    groups[1][2]["role"] = None
    bench.preprocess.take_groups(groups)
    assert bench.discarded.counts == {"bad_labels": 4}
    assert "sample g1/2/0 has no role; finetune.rl.role_lengths knows policy" in caplog.text
    assert bench.preprocess.write_steps()
    assert all(float(batch.loss_weight_scale.max()) == 1 / 16 for batch in bench.batches())


def test_a_group_that_arrives_twice_costs_the_second_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.preprocess.take_groups([group(0), group(0), group(1)])
    assert "sample g0/0/0 appears 2 times" in caplog.text
    assert bench.discarded.counts == {"bad_labels": 4}
    assert bench.preprocess.write_steps()


@pytest.mark.parametrize(
    "bench",
    [{"finetune": {"rl": {"role_weights": {"policy": 1.0, "critic": 1.0}}}}],
    indirect=True,
    ids=["roles"],
)
def test_a_role_without_a_weight_costs_its_group_only(bench: Bench) -> None:
    groups = [group(number) for number in range(3)]
    for text in [text for texts in groups for text in texts]:
        text["role"] = "policy"
    groups[1][2]["role"] = "judge"
    bench.preprocess.take_groups(groups)
    assert bench.discarded.counts == {"bad_labels": 4}
    assert bench.preprocess.write_steps()
    assert bench.preprocess.metrics.record(bench.preprocess.gauges())["adv/role_missing/critic"] == 1


def test_a_domain_that_is_wrong_throughout_ends_the_run_with_its_reason(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"8 of the last 8 groups cannot be trained on; .*sample g7/0/0"):
        for number in range(LEAST + 1):
            texts = group(number)
            texts[0]["role"] = ""
            bench.preprocess.take_groups([texts])
    assert bench.discarded.counts == {"bad_labels": 4 * LEAST}


def test_groups_read_together_are_weighed_in_their_order(bench: Bench) -> None:
    good = [group(number) for number in range(LEAST)]
    bad = [group(number, steps=2) for number in range(LEAST, 2 * LEAST + 1)]
    for at, texts in enumerate(bad):
        texts[1] |= {"role": ""} if at % 2 else {"reward": 9.0}  # found on reading, or on comparing
    bench.preprocess.take_groups([*good, *bad[:-1]])
    assert bench.discarded.counts == {"bad_labels": 8 * LEAST}
    with pytest.raises(ValueError, match=f"{LEAST + 1} of the last {2 * LEAST + 1} groups"):
        bench.preprocess.take_groups(bad[-1:])


def test_now_and_then_a_bad_group_does_not_end_a_run() -> None:
    rejections = Rejections()
    for _ in range(50):
        rejections.accepted()
        rejections.accepted()
        rejections.rejected("sample g/0/0: reward=nan must be finite")
    with pytest.raises(ValueError, match="groups cannot be trained on"):
        for _ in range(50):
            rejections.rejected("sample g/0/0: reward=nan must be finite")


class HalfBlind:
    """A reference that cannot score some texts."""

    def score(self, samples: list[Sample]) -> list[np.ndarray | None]:
        found: list[np.ndarray | None] = [sample.old_logprobs - 0.25 for sample in samples]
        found[0] = None
        found[1] = np.full(len(samples[1].old_logprobs), np.nan)
        return found


def test_texts_without_a_reference_are_counted(bench: Bench) -> None:
    bench.preprocess._scorer = HalfBlind()
    bench.preprocess.take_groups([group(0), group(1), group(2)])
    assert bench.discarded.counts == {"no_reference": 2}
    assert bench.preprocess.write_steps()
    for batch in bench.batches():
        learned = batch.labels[0] != -100
        np.testing.assert_allclose(batch.ref_logprobs[0][learned], batch.old_logprobs[0][learned] - 0.25)


@pytest.mark.parametrize(
    "bench",
    [{"finetune": {"rl": {"step_reward_advantages": True, "pad_step_rewards_for_advantage": True}}}],
    indirect=True,
    ids=["situations"],
)
def test_groups_of_several_sizes_and_missing_situations_are_fine(bench: Bench) -> None:
    one, two = group(0, attempts=2), group(1, attempts=4, steps=2)
    two[0]["situation"] = "plan"
    two[3]["situation"] = "plan"
    bench.preprocess.take_groups([one, two])
    assert bench.discarded.counts == {} and bench.preprocess.write_steps()


def test_role_weights_that_do_not_sum_to_one_are_said(caplog: pytest.LogCaptureFixture) -> None:
    for weights, said in (({"a": "1/9", "b": "8/9"}, 0), ({"a": 1, "b": 1}, 1)):
        caplog.clear()
        warn_about_role_weights(RLConfig(role_weights=weights))
        assert len(caplog.records) == said
    assert "role_weights sum to 2, not 1" in caplog.text
