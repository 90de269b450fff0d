"""Corrections by importance ratio: each paper's formula, computed here in numpy, and what they leave."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import CorrectionConfig, RLConfig
from pipelinerl.finetune.metrics import METRICS, token_statistics
from pipelinerl.finetune.rl.losses import LOSSES, Coefficients, LossInputs, total_loss
from pipelinerl.finetune.rl.losses.correction import corrected, importance

SAMPLE = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
WEIGHT = np.array([1, 1, 1, 2, 2, 0.5, 0.5, 0.5, 0.5]) / 8
ADVANTAGE = np.array([1.0, 1.0, 1.0, -0.5, -0.5, 2.0, 2.0, 2.0, 2.0])
ENGINE = np.log([0.5, 0.05, 0.9, 0.4, 0.7, 0.3, 0.6, 0.2, 0.8])
TRAINER = ENGINE + np.array([0.9, -1.2, 0.05, 0.02, -0.1, 2.0, 0.3, 0.1, -0.05])
HIGH, LOW, EPSILON = 2.0, 0.5, 0.2
ANYTHING = 1e9
"""An upper bound beyond every ratio: |log r| is cut at 20."""


def inputs_of(weight: np.ndarray = WEIGHT, **columns: Any) -> LossInputs:
    def column(values: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    given = {"rewards_N": np.zeros(9), "entropy_N": np.ones(9), "ref_logprobs_N": ENGINE} | columns
    return LossInputs(
        logprobs_N=column(TRAINER).requires_grad_(),
        old_logprobs_N=column(ENGINE),
        advantages_N=column(ADVANTAGE),
        weight_N=column(weight),
        kl_weight_N=column(weight),
        text_N=torch.tensor(SAMPLE),
        n_texts=3,
        **{name: column(values) for name, values in given.items()},
    )


def settings(policy_loss: str, **correction: Any) -> RLConfig:
    return RLConfig(
        policy_loss=policy_loss,
        epsilon_low=EPSILON,
        epsilon_high=EPSILON,
        correction=CorrectionConfig(**correction),
    )


def gradient(rl: RLConfig, inputs: LossInputs | None = None) -> np.ndarray:
    """Of the policy term by the trainer's log-probabilities."""
    inputs = inputs_of() if inputs is None else inputs
    (found,) = torch.autograd.grad(total_loss(inputs, rl, Coefficients()), inputs.logprobs_N)
    return found.double().numpy()


def slopes(objective: Callable[[np.ndarray, np.ndarray], float]) -> np.ndarray:
    """Numerical gradient of `objective(new, before)` where the policy is the one that the step began with."""
    out, h = np.zeros(len(TRAINER)), 1e-6
    for at in range(len(TRAINER)):
        step = h * (np.arange(len(TRAINER)) == at)
        out[at] = (objective(TRAINER + step, TRAINER) - objective(TRAINER - step, TRAINER)) / (2 * h)
    return out


def surrogate(ratio: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    return np.minimum(ratio * advantage, np.clip(ratio, 1 - EPSILON, 1 + EPSILON) * advantage)


def per_sample(values: np.ndarray, reduce: Callable[[np.ndarray], float]) -> np.ndarray:
    return np.array([reduce(values[one == SAMPLE]) for one in SAMPLE])


def tis(new: np.ndarray, before: np.ndarray) -> float:
    factor = np.minimum(np.exp(before - ENGINE), HIGH)
    return float(-(WEIGHT * factor * surrogate(np.exp(new - before), ADVANTAGE)).sum())


def mis(new: np.ndarray, before: np.ndarray) -> float:
    ratio = np.exp(per_sample(before - ENGINE, np.sum))
    factor = np.where(ratio <= HIGH, ratio, 0)
    return float(-(WEIGHT * factor * surrogate(np.exp(new - before), ADVANTAGE)).sum())


def icepop(new: np.ndarray, before: np.ndarray) -> float:
    ratio = np.exp(before - ENGINE)
    factor = np.where((ratio >= LOW) & (ratio <= HIGH), ratio, 0)
    return float(-(WEIGHT * factor * surrogate(np.exp(new - before), ADVANTAGE)).sum())


def decoupled_ppo(new: np.ndarray, before: np.ndarray) -> float:
    factor = np.exp(before - ENGINE)
    return float(-(WEIGHT * factor * surrogate(np.exp(new - before), ADVANTAGE)).sum())


def gspo(new: np.ndarray, before: np.ndarray) -> float:
    ratio = np.exp(per_sample(new - ENGINE, np.mean))
    return float(-(WEIGHT * surrogate(ratio, ADVANTAGE)).sum())


def cispo(new: np.ndarray, before: np.ndarray) -> float:
    factor = np.clip(np.exp(before - ENGINE), 1 - EPSILON, 1 + EPSILON)
    return float(-(WEIGHT * factor * ADVANTAGE * new).sum())


def geometric_rejection(new: np.ndarray, before: np.ndarray) -> float:
    ratio = np.exp(per_sample(before - ENGINE, np.mean))
    kept = (ratio >= LOW) & (ratio <= HIGH)
    return float(-(WEIGHT * kept * surrogate(np.exp(new - ENGINE), ADVANTAGE)).sum())


def sequence_truncated(new: np.ndarray, before: np.ndarray) -> float:
    factor = np.minimum(np.exp(per_sample(before - ENGINE, np.sum)), HIGH)
    return float(-(WEIGHT * factor * ADVANTAGE * new).sum())


PAPERS: dict[str, tuple[Callable[[np.ndarray, np.ndarray], float], RLConfig]] = {
    "TIS": (tis, settings("ppo", mode="truncate", high=HIGH, proximal=True)),
    "MIS": (mis, settings("ppo", level="sequence", mode="mask", low=0, high=HIGH, proximal=True)),
    "IcePop": (icepop, settings("ppo", mode="mask", low=LOW, high=HIGH, proximal=True)),
    "decoupled PPO": (decoupled_ppo, settings("ppo", mode="truncate", high=ANYTHING, proximal=True)),
    "GSPO": (gspo, settings("ppo", level="geometric", mode="truncate", high=ANYTHING)),
    "CISPO": (
        cispo,
        settings("reinforce", mode="clip", low=1 - EPSILON, high=1 + EPSILON, proximal=True),
    ),
    "geometric rejection": (
        geometric_rejection,
        settings("ppo", level="geometric", mode="mask", low=LOW, high=HIGH),
    ),
    "sequence TIS": (
        sequence_truncated,
        settings("reinforce", level="sequence", mode="truncate", high=HIGH, proximal=True),
    ),
}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_setting_has_the_gradient_of_the_papers_formula(paper: str) -> None:
    formula, rl = PAPERS[paper]
    np.testing.assert_allclose(gradient(rl), slopes(formula), rtol=1e-5, atol=1e-7)


def test_the_papers_differ_where_this_is_compared() -> None:
    found = [slopes(formula) for formula, _ in PAPERS.values()]
    pairs = [(a, b) for at, a in enumerate(found) for b in found[:at]]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in pairs)


def test_gspo_and_cispo_are_the_losses_of_these_names() -> None:
    for name in ("gspo", "cispo"):
        np.testing.assert_allclose(gradient(settings(name)), slopes(PAPERS[name.upper()][0]), rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_masked_tokens_have_no_gradient_in_any_loss(loss: str, level: str) -> None:
    rl = settings(loss, level=level, mode="mask", low=0.5, high=1.5)
    log_ratio = TRAINER - ENGINE
    reduced = {"token": log_ratio, "sequence": per_sample(log_ratio, np.sum)}
    ratio = np.exp(reduced.get(level, per_sample(log_ratio, np.mean)))
    masked = (ratio < 0.5) | (ratio > 1.5)
    assert masked.any() and not masked.all()
    found = gradient(rl)
    assert not found[masked].any()
    if level == "token" and loss in ("cispo", "reinforce", "sft"):  # whose clip takes no gradient away
        assert found[~masked].all()


def test_off_is_off_and_only_the_policy_term_is_corrected() -> None:
    inputs = inputs_of(values_N=np.full(9, 0.5))
    assert corrected(inputs, CorrectionConfig()) is inputs
    terms = {"kl_coef": 0.3, "value_loss_coef": 0.2, "entropy_bonus": 0.1}
    plain = RLConfig(use_advantages=False, **terms)  # rewards are 0, and so is the policy term
    masks_all = plain.model_copy(update={"correction": CorrectionConfig(mode="mask", low=1, high=1)})
    both = [float(total_loss(inputs, rl, Coefficients(0.3, 0.1)).detach()) for rl in (plain, masks_all)]
    assert both[0] == both[1] != 0


def test_tokens_beyond_the_lag_bound_are_no_part_of_a_samples_ratio() -> None:
    weight = WEIGHT * (np.arange(9) != 5)  # the token that is far off
    found = importance(inputs_of(weight), CorrectionConfig(level="sequence", mode="mask"))
    expected = np.exp((TRAINER - ENGINE)[6:].sum())
    np.testing.assert_allclose(found.ratio_N[5:], expected, rtol=1e-6)
    assert found.bounded_N[5:].all()


@pytest.mark.parametrize("mode", ["mask", "clip", "truncate"])
def test_tokens_beyond_the_bounds_are_counted_by_reason(mode: str) -> None:
    """Of nine tokens two are too high, one is too low, and one of the high ones has no weight."""
    weight = WEIGHT * (np.arange(9) != 5)
    rl = settings("reinforce", mode=mode, low=LOW, high=HIGH)
    vector = token_statistics(inputs_of(weight), torch.ones(9), torch.zeros(()), rl, 9)
    found = {metric.name: value for metric, value in zip(METRICS, vector.tolist())}
    own, other = ("masked", "bounded") if mode == "mask" else ("bounded", "masked")
    assert found[f"rl/{own}/ratio_high"] == 1
    assert found[f"rl/{own}/ratio_low"] == (0 if mode == "truncate" else 1)
    assert np.isnan([found[f"rl/{other}/ratio_low"], found[f"rl/{other}/ratio_high"]]).all()
    ratio = np.exp(TRAINER - ENGINE)
    inside = {"clip": ratio.clip(LOW, HIGH), "truncate": ratio.clip(0, HIGH)}
    inside["mask"] = np.where((ratio < LOW) | (ratio > HIGH), 0, ratio)
    assert found["rl/correction_weight"] == pytest.approx(inside[mode].sum(), rel=1e-5)


def test_yaml_may_say_off() -> None:
    assert CorrectionConfig.model_validate({"mode": False}).mode == "off"
