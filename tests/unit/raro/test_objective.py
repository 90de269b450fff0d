"""The joint objective as the core computes it from the texts of a step, against a dense reference."""

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.losses import Coefficients, LossInputs, total_loss
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of

WEIGHTS = {"policy": "1/9", "critic": "8/9"}
LENGTHS = {"policy": 100.0, "critic": 200.0}


def text(role, index, tokens=5, advantage=0.5, seed=0):
    rng = np.random.default_rng((seed, index))
    return Sample(
        group_id="g", rollout_index=index, step_index=0,
        input_ids=rng.integers(0, 50, tokens + 3).astype(np.int32),
        labels=np.concatenate([np.full(3, -100), rng.integers(0, 50, tokens)]).astype(np.int32),
        old_logprobs=rng.normal(-1, 0.3, tokens).astype(np.float32),
        ref_logprobs=rng.normal(-1, 0.3, tokens).astype(np.float32),
        weight_versions=[(0, 0, tokens)], reward=0.0, advantage=advantage, group_tokens=1.0,
        overflow=False, loss_weight=1.0, role=role, situation=f"raro:{role}:{index}",
    )  # fmt: skip


def texts(policy, critic, **kwargs):
    return [text("policy", i, **kwargs) for i in range(policy)] + [
        text("critic", policy + i, **kwargs) for i in range(critic)
    ]


def scaled(made, **rl):
    config = RLConfig(
        policy_loss="ppo", epsilon_low=0.2, epsilon_high=0.2, step_reward_advantages=True,
        role_weights=WEIGHTS, **rl,
    )  # fmt: skip
    return apply_scales(made, config), config


def test_the_worked_example():
    made = texts(2, 4)
    scaled(made, role_lengths=LENGTHS)
    per_text = [t.loss_weight_scale / len(made) for t in made]
    assert per_text == pytest.approx([1 / 18 / 100] * 2 + [2 / 9 / 200] * 4, abs=1e-15)
    assert pytest.approx(1 / 1800) == 1 / 18 / 100 and pytest.approx(1 / 900) == 2 / 9 / 200
    kl = [t.kl_weight_scale / len(made) for t in made]
    assert kl == pytest.approx([1 / 4 / 100] * 2 + [1 / 8 / 200] * 4, abs=1e-15)
    three = made[:5]  # one critic text masked: it never reaches the step
    scaled(three)
    assert [t.loss_weight_scale / 5 for t in three[2:]] == pytest.approx([8 / 27] * 3, abs=1e-15)


@pytest.mark.parametrize(("policy", "critic"), [(2, 4), (1, 1), (7, 300), (64, 1), (4, 0)])
def test_role_masses_are_exact_for_any_mix_and_a_missing_role_is_not_compensated(policy, critic):
    made = texts(policy, critic)
    metrics, _ = scaled(made)
    for role, mass in (("policy", 1 / 9), ("critic", 8 / 9 * (critic > 0))):
        found = sum(t.loss_weight_scale for t in made if t.role == role) / len(made)
        assert found == pytest.approx(mass, abs=1e-12)
    assert metrics.get("adv/role_missing/critic", 0.0) == (critic == 0)


def test_a_longer_response_changes_no_other_tokens_factor():
    short, long = texts(2, 4), texts(2, 4)
    long[0] = text("policy", 0, tokens=40)
    for made in (short, long):
        scaled(made, role_lengths=LENGTHS)
    assert [t.loss_weight_scale for t in short] == [t.loss_weight_scale for t in long]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("row", [16, 64])
def test_the_gradient_equals_two_means_and_an_averaged_kl(ranks, packing, row):
    beta, made = 0.01, texts(3, 5, advantage=0.7)
    for index, one in enumerate(made):
        one.advantage = 0.3 * index - 1.0
    _, config = scaled(made, role_lengths=LENGTHS, kl_coef=beta)
    logits = {id(t): torch.randn(len(t.old_logprobs), generator=torch.Generator().manual_seed(i)) * 0.1 - 1
              for i, t in enumerate(made)}  # fmt: skip
    for values in logits.values():
        values.requires_grad_(True)
    named = {(t.rollout_index, t.step_index): logits[id(t)] for t in made}
    total = torch.zeros(())
    for batches in assemble_step(made, 0, row, ranks, packing):
        for batch in batches:
            targets = targets_of(batch, config)
            if not len(targets.positions):
                continue
            new = torch.cat([named[(rollout, step)] for _, rollout, step in batch.text_ids])
            total = total + total_loss(inputs_of(targets, new), config, Coefficients(kl=beta))
    total.backward()
    ours = torch.cat([values.grad for values in logits.values()])
    for values in logits.values():
        values.grad = None
    dense(made, logits, beta).backward()
    theirs = torch.cat([values.grad for values in logits.values()])
    assert torch.allclose(ours, theirs, atol=1e-6) and theirs.abs().max() > 1e-5


def inputs_of(targets, new):
    count = len(targets.positions)
    given = {
        "logprobs_N": new, "entropy_N": torch.zeros(count),
        "old_logprobs_N": torch.from_numpy(targets.old_logprobs),
        "ref_logprobs_N": torch.from_numpy(targets.ref_logprobs),
        "advantages_N": torch.from_numpy(targets.advantages),
        "rewards_N": torch.from_numpy(targets.rewards),
        "weight_N": torch.from_numpy(targets.weight), "kl_weight_N": torch.from_numpy(targets.kl_weight),
        "text_N": torch.from_numpy(targets.sample), "n_texts": targets.n_samples,
    }  # fmt: skip
    return LossInputs(**given)


def dense(made, logits, beta):
    """The objective written down: lambda-weighted means per role minus the average of the roles' KL means."""
    objective, kl = torch.zeros(()), torch.zeros(())
    roles = {role: [t for t in made if t.role == role] for role in ("policy", "critic")}
    for role, weight in (("policy", 1 / 9), ("critic", 8 / 9)):
        for one in roles[role]:
            new = logits[id(one)]
            ratio = (new - torch.from_numpy(one.old_logprobs)).exp()
            clipped = ratio.clamp(0.8, 1.2)
            term = torch.minimum(ratio * one.advantage, clipped * one.advantage).sum() / LENGTHS[role]
            objective = objective + weight * term / len(roles[role])
            d = torch.from_numpy(one.ref_logprobs) - new
            kl = kl + (d.exp() - d - 1).sum() / LENGTHS[role] / len(roles[role]) / 2
    return -(objective - beta * kl)


def test_without_kl_no_reference_is_needed():
    assert not RLConfig(kl_coef=0.0).uses_reference and RLConfig(kl_coef=1e-3).uses_reference
