"""The objective of a step: an independent formula gives the same, and cutting the step up changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.metrics import measured_of_tokens, token_statistics
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, encode
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.losses import (
    LOSSES,
    Coefficients,
    LossInputs,
    PolicyLoss,
    declared,
    policy_loss,
    total_loss,
)
from pipelinerl.finetune.rl.losses.base import LossMetric, Reducer
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.model import hidden_states
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.value_head import build_value_head
from tests.support.builders import ready
from tests.support.policy import VOCAB, learner, tiny_model

COEFFICIENTS = Coefficients(0.1, 0.01)
# Of a token with weight w, log-probability new, factor F and ratio r; that of gspo is of a sample.
FORMULAS: dict[str, Callable[..., float]] = {
    "reinforce": lambda w, new, factor, r, low, high: w * new * factor * min(r, high),
    "ppo": lambda w, new, factor, r, low, high: w * min(r * factor, min(max(r, low), high) * factor),
    "cispo": lambda w, new, factor, r, low, high: w * min(max(r, low), high) * factor * new,
    "sft": lambda w, new, factor, r, low, high: w * new,
    "gspo": lambda *_: 0.0,
}


def random_inputs(seed: int, n: int = 40, texts: int = 5) -> LossInputs:
    """Float64 inputs whose log-probabilities, entropies and values are leaves."""
    rng = np.random.default_rng(seed)

    def column(low: float, high: float, grad: bool = False) -> torch.Tensor:
        return torch.tensor(rng.uniform(low, high, n), requires_grad=grad)

    new = column(-3, -0.1, True)
    return LossInputs(
        logprobs_N=new,
        entropy_N=column(0, 2, True),
        old_logprobs_N=new.detach() + column(-0.4, 0.4),
        ref_logprobs_N=new.detach() + column(-7, 7),
        advantages_N=column(-2, 2),
        rewards_N=column(0, 1),
        weight_N=column(0, 0.2),
        kl_weight_N=column(0, 0.2),
        text_N=torch.tensor(np.sort(rng.integers(0, texts, n))),
        n_texts=texts,
        values_N=column(-1, 1, True),
    )


def plain_loss(x: LossInputs, rl: RLConfig, k: float, e: float) -> float:
    """The formulas of docs/objective.md, token by token in Python."""
    rows = list(
        zip(
            *(c.tolist() for c in (x.logprobs_N, x.old_logprobs_N, x.ref_logprobs_N, x.entropy_N)),
            strict=True,
        )
    )
    weights = list(zip(x.weight_N.tolist(), x.kl_weight_N.tolist(), strict=True))
    low, high = 1 - rl.epsilon_low, 1 + rl.epsilon_high
    values = [] if x.values_N is None else x.values_N.tolist()
    total, ratios = 0.0, {}
    for t, ((new, old, ref, entropy), (w, w_kl)) in enumerate(zip(rows, weights)):
        r = float(np.exp(new - old))
        factor = float((x.advantages_N if rl.use_advantages else x.rewards_N)[t])
        factor = max(factor, 0.0) if rl.relu_log_p_weights else factor
        total -= FORMULAS[rl.policy_loss](w, new, factor, r, low, high)
        ratios.setdefault(int(x.text_N[t]), []).append((new - old, float(x.advantages_N[t]), w))
        d = min(max(ref - new, -5.0), 5.0)
        total += w_kl * (k * (np.exp(d) - d - 1) - e * entropy)
        total += rl.value_loss_coef * w * 0.5 * (values[t] - float(x.rewards_N[t])) ** 2
    if rl.policy_loss == "gspo":
        for entries in ratios.values():
            logs, advantages, w = (np.array(column) for column in zip(*(e for e in entries if e[2] > 0)))
            s, a = np.exp(logs.mean()), advantages.mean()
            total -= w.sum() * min(s * a, min(max(s, low), high) * a)
    return total


OPTIONS = [
    (loss, options)
    for loss in FORMULAS
    for options in ({}, {"use_advantages": False}, {"relu_log_p_weights": True})
    if not set(options) & set(declared(loss).ignores)
]


@pytest.mark.parametrize(("loss", "options"), OPTIONS)
def test_every_loss_equals_its_formula(loss: str, options: dict[str, Any]) -> None:
    rl = RLConfig(policy_loss=loss, epsilon_low=0.1, epsilon_high=0.2, value_loss_coef=0.3, **options)
    for seed in range(5):
        inputs = random_inputs(seed)
        assert float(total_loss(inputs, rl, COEFFICIENTS).detach()) == pytest.approx(
            plain_loss(inputs, rl, 0.1, 0.01), rel=1e-9
        )


@pytest.mark.parametrize("loss", ["reinforce", "ppo", "cispo", "sft"])
def test_every_gradient_equals_its_formula(loss: str) -> None:
    """Importance weights carry no gradient in reinforce and cispo; ppo has none where the clip binds."""
    rl = RLConfig(policy_loss=loss, epsilon_low=0.1, epsilon_high=0.2)
    x = random_inputs(7)
    (found,) = torch.autograd.grad(policy_loss(loss)(x, rl), x.logprobs_N)
    r, a = (x.logprobs_N - x.old_logprobs_N).exp().detach(), x.advantages_N
    bound = torch.where(a > 0, r > 1.2, r < 0.9)
    assert bool(bound.any()) and bool((~bound).any())
    factor = {
        "reinforce": a * r.clamp(max=1.2),
        "ppo": a * r * ~bound,
        "cispo": a * r.clamp(0.9, 1.2),
        "sft": torch.ones_like(a),
    }[loss]
    torch.testing.assert_close(found, -x.weight_N * factor)


def test_the_accepted_losses_are_those_that_exist() -> None:
    assert len(LOSSES) >= len(FORMULAS) and set(FORMULAS) <= set(LOSSES)
    assert all(policy_loss(name) is declared(name) for name in LOSSES)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_has_an_independent_formula(loss: str) -> None:
    """Here, or in a test of its own."""
    assert loss in FORMULAS or Path(__file__).with_name(f"test_loss_{loss}.py").exists()


def test_a_loss_declares_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the micro-batches of a step; a run with another loss does not have them."""
    inputs = [random_inputs(1), random_inputs(2)]

    class Own(PolicyLoss):
        metrics = (
            LossMetric("largest", Reducer.MAX, "advantage", lambda x, rl: x.advantages_N),
            LossMetric("far", Reducer.SUM, "tokens", lambda x, rl: (x.ratio_N > 1).float()),
        )

    monkeypatch.setattr("pipelinerl.finetune.metrics.policy_loss", lambda name: Own())
    vectors = [
        token_statistics(one, torch.ones(40), torch.zeros(()), RLConfig(), 40).tolist() for one in inputs
    ]
    found, without = (measured_of_tokens(vectors, 10, loss) for loss in (Own(), PolicyLoss()))
    assert found == without | {
        "rl/loss/largest": pytest.approx(max(float(one.advantages_N.max()) for one in inputs)),
        "rl/loss/far": sum(int((one.logprobs_N > one.old_logprobs_N).sum()) for one in inputs),
    }


def test_gspo_says_the_ratio_of_samples() -> None:
    x = random_inputs(4)
    (metric,) = declared("gspo").metrics
    means = {
        text: float((x.logprobs_N.detach() - x.old_logprobs_N)[x.text_N == text].mean())
        for text in x.text_N.tolist()
    }
    expected = [float(np.exp(means[text])) for text in x.text_N.tolist()]
    assert metric.of(x, RLConfig()).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_settings_that_a_loss_ignores_change_nothing(loss: str) -> None:
    changes = {"epsilon_low": 0.7, "epsilon_high": 9.0, "use_advantages": False, "relu_log_p_weights": True}
    for name in set(declared(loss).ignores) & set(changes):
        values = [
            float(policy_loss(loss)(random_inputs(3), rl).detach())
            for rl in (RLConfig(policy_loss="ppo"), RLConfig(policy_loss="ppo", **{name: changes[name]}))
        ]
        assert values[0] == values[1], name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_absurd_old_logprobs_stay_finite(loss: str, shift: float) -> None:
    x = random_inputs(2)
    x = replace(x, old_logprobs_N=x.old_logprobs_N + shift, weight_N=x.weight_N.float() * 0)
    rl = RLConfig(policy_loss=loss)
    value = policy_loss(loss)(x, rl)
    (gradient,) = torch.autograd.grad(value, x.logprobs_N)
    assert float(value.detach()) == 0 and bool((gradient == 0).all())


def test_schedules_are_linear_in_completed_steps() -> None:
    rl = RLConfig(kl_coef=0.2, final_kl_coef=0.0, entropy_bonus=0.0, final_entropy_bonus=0.1)
    assert [rl.kl_coefficient(step, 4) for step in range(6)] == pytest.approx([0.2, 0.15, 0.1, 0.05, 0, 0])
    assert [rl.entropy_coefficient(step, 4) for step in range(5)] == pytest.approx(
        [0, 0.025, 0.05, 0.075, 0.1]
    )
    assert RLConfig(kl_coef=0.3).kl_coefficient(3, 4) == 0.3


SHAPES = [
    ("training_texts", False, {}),
    ("training_texts", False, {"group_normalization": True}),
    ("training_texts", True, {}),
    ("rollouts", False, {"overlong_filtering": True}),
    ("rollouts", True, {"group_normalization": True}),
    ("rollout_mean", False, {"group_normalization": True, "overlong_filtering": True}),
    ("rollout_mean", True, {"overlong_filtering": True}),
]


def step_texts(seed: int, with_roles: bool) -> list[Sample]:
    """Rollouts of one to three texts of unlike weights, lengths and roles, some of them cut off."""
    rng = np.random.default_rng(seed)
    texts: list[Sample] = []
    for rollout in range(int(rng.integers(3, 6))):
        for step in range(int(rng.integers(1, 4))):
            texts.append(
                ready(
                    int(rng.integers(1, 10_000)),
                    float(rng.normal()),
                    group_id="g",
                    rollout_index=rollout,
                    step_index=step,
                    overflow=bool(rng.random() < 0.2),
                    group_tokens=float(rng.integers(5, 30)),
                    loss_weight=float(rng.choice([0.5, 1.0, 2.0])),
                    role=str(rng.choice(["policy", "critic"])) if with_roles else None,
                    reward=float(rng.random()),
                )
            )
    return texts


def with_head(rl: RLConfig) -> Learner:
    """A learner of the tiny model, with a random value head if the objective has a use for one."""
    model = tiny_model()
    del model.model.layers[1:]  # one is enough for sums
    head = build_value_head(model) if rl.value_loss_coef else None
    if head is not None:
        torch.manual_seed(1)
        torch.nn.init.normal_(head.weight, std=0.2)
    return learner(rl, model, value_head=head)


def gradient(batches: list[PipelineBatchEncoding], rl: RLConfig, one: Learner | None = None) -> torch.Tensor:
    """All gradients of the batches' sum as one vector; `one` has computed others before."""
    one = one or with_head(rl)
    one.optimiser.zero_grad(set_to_none=True)
    for batch in batches:
        one.accumulate(batch, targets_of(batch, rl), COEFFICIENTS)
    parameters = one.optimiser.param_groups[0]["params"]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([g.flatten() for g in grads])


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((found - expected).norm()) <= 2e-5 * float(expected.norm()) + 1e-7


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=5)
@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from(LOSSES),
    seq_length=st.sampled_from([12, 20, 36]),
    packing=st.booleans(),
)
def test_cutting_a_step_into_micro_batches_and_ranks_changes_nothing(
    shape: Any, seed: int, loss: str, seq_length: int, packing: bool
) -> None:
    mode, with_roles, options = shape
    roles = {"policy": "1/9", "critic": "8/9"} if with_roles else {}
    rl = RLConfig(
        policy_loss=loss, epsilon_high=4.0, batch_size_normalization=mode, role_weights=roles, **options
    )
    texts = step_texts(seed, with_roles)
    apply_scales(texts, rl)
    one = with_head(rl)
    whole = gradient([encode(texts, 0, len(texts))], rl, one)
    for ranks in (1, 4):
        plan = assemble_step(texts, 0, seq_length, ranks, packing)
        parts = [gradient(batches, rl, one) for batches in plan]
        assert_same(torch.stack(parts).sum(0), whole)


def test_a_value_head_adds_up_too_and_learns_the_reward() -> None:
    rl = RLConfig(value_loss_coef=0.5)
    texts = step_texts(5, False)
    whole = gradient([encode(texts, 0, len(texts))], rl)
    assert_same(gradient(assemble_step(texts, 0, 14)[0], rl), whole)
    one = with_head(rl)
    batch = encode(texts, 0, len(texts))
    targets = targets_of(batch, rl)
    inputs = one._loss_inputs(batch, targets)
    assert inputs.values_N is not None
    torch.testing.assert_close(inputs.advantages_N, inputs.rewards_N - inputs.values_N)
    assert not inputs.advantages_N.requires_grad
    assert one.value_head is not None
    (found,) = torch.autograd.grad(total_loss(inputs, rl, Coefficients()), one.value_head.bias)
    expected = 0.5 * (inputs.weight_N * (inputs.values_N - inputs.rewards_N)).sum()
    torch.testing.assert_close(found[0], expected)


def test_the_loss_of_a_step_is_what_its_normalisation_says() -> None:
    """A loss of one unit per token, so that only the weights are left of it."""
    texts = step_texts(11, True)
    for text in texts:
        text.overflow = False
    per_text = np.random.default_rng(0).normal(size=len(texts))

    def loss(mode: str, roles: dict[str, str]) -> float:
        rl = RLConfig(batch_size_normalization=mode, role_weights=roles)
        apply_scales(texts, rl)
        return float(sum(value * t.loss_weight_scale for value, t in zip(per_text, texts))) / len(texts)

    weight = np.array([t.loss_weight for t in texts])
    rollout = np.array([t.rollout_index for t in texts])
    weighted = per_text * weight
    n_rollouts = len(np.unique(rollout))
    assert loss("training_texts", {}) == pytest.approx(weighted.mean())
    assert loss("rollouts", {}) == pytest.approx(weighted.sum() / n_rollouts)
    means = [weighted[rollout == r].sum() / weight[rollout == r].sum() for r in np.unique(rollout)]
    assert loss("rollout_mean", {}) == pytest.approx(np.mean(means))
    for text in texts:
        text.loss_weight = 1.0
    role = np.array([t.role for t in texts])
    expected = per_text[role == "policy"].mean() / 9 + 8 * per_text[role == "critic"].mean() / 9
    assert loss("training_texts", {"policy": "1/9", "critic": "8/9"}) == pytest.approx(expected)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(0, 1000))
def test_packing_loses_no_token_and_mixes_no_sequences(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = [torch.from_numpy(rng.integers(0, VOCAB, (1, n))) for n in lengths]
    model = tiny_model()
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    offsets = np.cumsum([0, *lengths])
    with torch.no_grad():
        packed = hidden_states(model, torch.cat(ids, 1), positions, Segments.from_offsets(offsets))[0]
        for row, a, b in zip(ids, offsets, offsets[1:]):
            alone = hidden_states(model, row, torch.arange(b - a)[None], None)[0]
            torch.testing.assert_close(packed[a:b], alone, atol=1e-5, rtol=1e-5)
