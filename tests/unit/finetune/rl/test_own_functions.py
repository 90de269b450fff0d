"""A loss and an advantage estimator from a module of the user, named by dotted paths."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import ESTIMATORS, compute_advantages
from pipelinerl.finetune.rl.losses import Coefficients, LossInputs, total_loss
from pipelinerl.preprocess.chunk import process_chunk
from tests.support.builders import group, samples, table_of, text

MODULE = """
import numpy as np
from pipelinerl.finetune.rl.advantages import Advantages


def minus_mean(table, rl):
    mean = np.bincount(table.group, weights=table.reward) / np.bincount(table.group)
    return Advantages.within_groups(table, table.reward - mean[table.group])


def too_few(table, rl):
    return Advantages.within_groups(table, np.zeros(1))


def bare(table, rl):
    return table.reward


def clipped_less(inputs, rl):
    return -(inputs.weight_N * inputs.ratio_N * inputs.factor_N(rl)).sum()


def per_token(inputs, rl):
    return inputs.weight_N
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_objective.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def inputs(n: int = 4) -> LossInputs:
    columns = [torch.linspace(-1, 1, n) for _ in range(8)]
    return LossInputs(*columns, text_N=torch.zeros(n, dtype=torch.int64), n_texts=1)


def test_estimators_of_the_package_are_files() -> None:
    assert {"rollout", "situation"} <= set(ESTIMATORS)
    named, chosen = RLConfig(advantage_estimator="situation"), RLConfig(step_reward_advantages=True)
    table = table_of([text(i, step, float(i * step)) for i in range(3) for step in range(2)])
    np.testing.assert_array_equal(
        compute_advantages(table, named).advantage, compute_advantages(table, chosen).advantage
    )


def test_a_loss_of_ones_own_is_part_of_the_objective() -> None:
    rl = RLConfig(policy_loss="my_objective.clipped_less", kl_coef=0.1)
    x = inputs()
    expected = -(x.weight_N * x.advantages_N).sum()  # the policy has not changed: every ratio is 1
    assert float(total_loss(x, rl, Coefficients())) == pytest.approx(float(expected))
    assert float(total_loss(x, rl, Coefficients(kl=0.1))) == pytest.approx(float(expected))


def test_an_estimator_of_ones_own_values_the_samples() -> None:
    rl = RLConfig(advantage_estimator="my_objective.minus_mean")
    rewards = [1.0, 0.0, 0.0, 0.0]
    found = compute_advantages(table_of([text(i, 0, r) for i, r in enumerate(rewards)]), rl)
    np.testing.assert_allclose(found.advantage, [0.75, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(found.baseline, 0.25)
    assert (found.group_tokens == 4).all() and found.bucket_rows.tolist() == [4]
    ready = process_chunk(samples([*group(0), *group(1)]), rl).ready
    assert sorted({sample.advantage for sample in ready}) == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "too_few",
            r"finetune.rl.advantage_estimator=my_objective.too_few returned advantages of shape \(1,\)",
        ),
        ("bare", "finetune.rl.advantage_estimator=my_objective.bare returned a ndarray, expected Advantages"),
    ],
)
def test_an_estimator_that_returns_something_else_is_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_advantages(table_of([text(i, 0, 1.0) for i in range(2)]), _estimator(name))


def _estimator(name: str) -> RLConfig:
    return RLConfig(advantage_estimator=f"my_objective.{name}")


def test_a_loss_that_returns_something_else_is_named() -> None:
    rl = RLConfig(policy_loss="my_objective.per_token")
    with pytest.raises(
        ValueError, match=r"policy_loss=my_objective.per_token returned \[4\], expected a scalar"
    ):
        total_loss(inputs(), rl, Coefficients())


def test_a_function_that_is_not_there_is_named_with_its_key() -> None:
    with pytest.raises(
        ConfigError, match=r"finetune\.rl\.policy_loss=my_objective\.mising: .* has no mising"
    ):
        total_loss(inputs(), RLConfig(policy_loss="my_objective.mising"), Coefficients())
    with pytest.raises(ConfigError, match=r"finetune\.rl\.advantage_estimator=my_objective\.mising"):
        compute_advantages(table_of([text(0, 0, 1.0)]), _estimator("mising"))
