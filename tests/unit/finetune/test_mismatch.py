"""The log ratio of trainer to engine, split into the age of weights and the engine's arithmetic."""

from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.config.staleness import Staleness
from pipelinerl.finetune.collect import count_batch, fetch
from pipelinerl.finetune.metrics import StepStatistics, step_metrics
from pipelinerl.finetune.mismatch import GROUPS, age_groups, mismatch_metrics, mismatch_sums
from pipelinerl.finetune.peaks import Hardware
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, encode
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.losses.base import PolicyLoss
from pipelinerl.finetune.rl.losses.sft import sft
from pipelinerl.finetune.rl.sample import UNSAMPLED, Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.observe.mismatch import AGES
from tests.support.builders import ready
from tests.support.policy import learner, tiny_model

RL = RLConfig()
NOW, TEXTS = 40, 4


def sampled_by(seed: int, *versions: int, **fields: Any) -> Sample:
    """A sample whose tokens these versions sampled, the last of them what is left."""
    one = ready(seed, **fields)
    count = len(one.old_logprobs)
    edges = [*range(len(versions)), count]
    one.weight_versions = [(v, a, b) for v, a, b in zip(versions, edges, edges[1:])]
    return one


def groups_of(*samples: Sample, **fields: Any) -> list[set[str]]:
    """Names of the groups of each sample's tokens."""
    targets = targets_of(encode(list(samples), 0, TEXTS), RL, **({"last_version": NOW} | fields))
    names = np.array([*GROUPS, "none"])[age_groups(targets)]
    return [set(names[targets.sample == one].tolist()) for one in range(len(samples))]


def test_a_token_belongs_to_the_steps_since_its_weights() -> None:
    ages = {40: "lag_0", 39: "lag_1", 36: "lag_1", 35: "lag_2_3", 28: "lag_2_3", 27: "lag_4_7", 12: "lag_4_7"}
    ages |= {11: "lag_8_up", 0: "lag_8_up", UNSAMPLED: "none"}
    found = groups_of(*(sampled_by(seed, version) for seed, version in enumerate(ages)))
    assert found == [{name} for name in ages.values()]


def test_newest_tokens_of_a_sample_that_older_weights_began_are_apart() -> None:
    assert groups_of(sampled_by(1, 36, 40), sampled_by(2, 40)) == [{"lag_1", "lag_0_continued"}, {"lag_0"}]


def test_age_is_that_of_the_weights_that_score_and_stale_tokens_are_left_out() -> None:
    """Two steps behind the last announcement nothing is new any more, whatever is announced."""
    assert groups_of(sampled_by(1, 40), weights_version=48) == [{"lag_2_3"}]
    assert groups_of(sampled_by(1, 20), staleness=Staleness(10)) == [{"none"}]
    assert groups_of(sampled_by(1, 41)) == [{"none"}], "of a recorded run that came further"


def test_statistics_are_those_of_the_tokens_of_each_age() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, len(GROUPS) + 1, 40_000)
    spread = np.array([0.01, 0.02, 0.05, 0.1, 0.3, 0.6, 0.01, 0.2, 9.0])[groups]
    log_ratio = rng.normal(0, 1, len(groups)) * spread
    parts = np.array_split(np.arange(len(groups)), 3)
    sums = [
        mismatch_sums(torch.tensor(log_ratio[at], dtype=torch.float32), torch.tensor(groups[at]))
        for at in parts
    ]
    found = mismatch_metrics(sum(one.double().numpy() for one in sums))
    for at, name in enumerate(GROUPS):
        own = log_ratio[groups == at]
        ratio = np.exp(own)
        assert found[f"mismatch/{name}/tokens"] == len(own)
        assert found[f"mismatch/{name}/mean_abs"] == pytest.approx(np.abs(own).mean(), rel=1e-4)
        assert found[f"mismatch/{name}/mean_square"] == pytest.approx((own**2).mean(), rel=1e-4)
        assert found[f"mismatch/{name}/p99"] == pytest.approx(np.quantile(np.abs(own), 0.99), rel=0.06)
        ess = ratio.sum() ** 2 / (len(own) * (ratio**2).sum())
        assert found[f"mismatch/{name}/ess"] == pytest.approx(ess, rel=1e-3)
    known = log_ratio[groups < len(AGES)]
    share = 1 - (log_ratio[groups == 0] ** 2).mean() / (known**2).mean()
    assert found["mismatch/age_share"] == pytest.approx(share, rel=1e-4) and 0.9 < share < 1


def test_nothing_is_said_of_ages_without_tokens() -> None:
    only_old = mismatch_sums(torch.full((5,), 0.1), torch.full((5,), AGES.index("lag_1")))
    found = mismatch_metrics(only_old.double().numpy())
    assert {name.split("/")[1] for name in found} == {"lag_1"}
    assert mismatch_metrics(np.zeros((len(GROUPS), only_old.shape[1]))) == {}


def test_experts_split_the_newest_tokens_alone() -> None:
    log_ratio, groups = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 0, 2, len(GROUPS)])
    sums = mismatch_sums(log_ratio, groups, torch.tensor([True, False, True, True]))
    found = mismatch_metrics(sums.double().numpy())
    tokens = {name: found.get(f"mismatch/{name}/tokens") for name in ("lag_0", "lag_1", *GROUPS[-2:])}
    assert tokens == {"lag_0": 2, "lag_1": 1, "experts_agree": 1, "experts_differ": 1}
    assert found["mismatch/experts_differ/mean_abs"] == pytest.approx(0.1)
    assert found["mismatch/experts_agree/mean_abs"] == pytest.approx(0.2)


def measured(
    one: Learner, batches: list[PipelineBatchEncoding], version: int, loss: PolicyLoss | None = None
) -> dict[str, Any]:
    """The metrics of a step of these micro-batches."""
    statistics, done = StepStatistics(), []
    for batch in batches:
        targets = targets_of(batch, one.rl, version)
        done.append((batch, targets, one.accumulate(batch, targets, Coefficients())))
        count_batch(statistics, batch, targets)
    fetch(statistics, done, one.routers)
    counts = StepStatistics().merge([statistics])
    return step_metrics(counts, Coefficients(), 1, Hardware(64, 1, None), loss)


def test_texts_to_imitate_say_nothing_of_the_engine() -> None:
    """Others may have written them, and what stands for their log-probabilities is then anything."""
    one = learner(RL, tiny_model())
    batch = encode([sampled_by(1, NOW)], 0, TEXTS)
    found = [measured(one, [batch], NOW, loss) for loss in (None, sft)]
    ages = [{name for name in one if name.startswith("mismatch/lag_0/")} for one in found]
    assert ages[0] and not ages[1]


def test_a_step_tells_the_engines_arithmetic_from_the_age_of_weights() -> None:
    """An engine is 0.01 nats off; on tokens of older weights it is 0.3 nats more, in both micro-batches."""
    one = learner(RL, tiny_model())
    fresh = [sampled_by(seed, NOW, role="a", situation="s") for seed in (1, 2)]
    old = [sampled_by(seed, NOW - 2 * TEXTS, role="b", situation="s") for seed in (3, 4)]
    batches = [encode([fresh[0], old[0]], 0, TEXTS), encode([fresh[1], old[1]], 0, TEXTS)]
    for batch in batches:
        targets = targets_of(batch, RL, NOW)
        row = one._row(batch)
        scores, _ = one._scores(row, row.computed(targets.positions - 1), targets.labels)
        off = np.where(targets.age == 0, 0.01, 0.31) * (-1.0) ** np.arange(len(targets.age))
        batch.old_logprobs[0][targets.positions] = scores.logprobs.detach().numpy() - off
    found = measured(one, batches, NOW)
    assert found["mismatch/lag_0/mean_abs"] == pytest.approx(0.01, abs=1e-5)
    assert found["mismatch/lag_2_3/mean_abs"] == pytest.approx(0.31, abs=1e-5)
    counts = np.array([found["mismatch/lag_0/tokens"], found["mismatch/lag_2_3/tokens"]])
    square = (counts * [0.01**2, 0.31**2]).sum() / counts.sum()
    assert found["mismatch/age_share"] == pytest.approx(1 - 0.01**2 / square, rel=1e-3)
    assert found["rl/role/a/abs_log_ratio_lag_0"] == pytest.approx(0.01, abs=1e-5)
    assert found["rl/role/b/abs_log_ratio"] == pytest.approx(0.31, abs=1e-5)
    assert "rl/role/b/abs_log_ratio_lag_0" not in found
    assert found["rl/situation/s/abs_log_ratio"] == pytest.approx(0.16, abs=1e-5)
    assert found["rl/situation/s/abs_log_ratio_lag_0"] == pytest.approx(0.01, abs=1e-5)


def test_tokens_without_a_weight_are_counted_by_the_first_reason() -> None:
    rl = RLConfig(overlong_filtering=True)
    samples = [ready(1), ready(2, overflow=True), ready(3, loss_weight_scale=0.0)]
    samples.append(sampled_by(4, -9, overflow=True))
    batch, statistics = encode(samples, 0, 4), StepStatistics()
    targets = targets_of(batch, rl, staleness=Staleness(4))
    count_batch(statistics, batch, targets)
    labels = np.bincount(targets.sample)
    assert statistics.masked == {"overlong": labels[1], "no_weight": labels[2], "max_lag": labels[3]}
    found = step_metrics(statistics, Coefficients(), 1, Hardware(64, 1, None))
    assert found["rl/masked/overlong"] == labels[1] and found["rl/masked/max_lag"] == labels[3]
