"""The joint objective as the core computes it from the texts of a step, against a dense reference."""

import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.losses import Coefficients, LossInputs, total_loss
from pipelinerl.finetune.rl.targets import targets_of
from tests.support.builders import ready

WEIGHTS = {"policy": "1/9", "critic": "8/9"}
LENGTHS = {"policy": 100.0, "critic": 200.0}


def texts(policy, critic):
    roles = ["policy"] * policy + ["critic"] * critic
    return [
        ready(i, role=role, rollout_index=i, situation=f"raro:{role}:{i}") for i, role in enumerate(roles)
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
    metrics, _ = scaled(three)
    assert [t.loss_weight_scale / 5 for t in three[2:]] == pytest.approx([8 / 27] * 3, abs=1e-15)
    assert "adv/role_missing/critic" not in metrics
    alone = made[:2]  # a missing role is not compensated
    assert scaled(alone)[0]["adv/role_missing/critic"] == 1.0
    assert [t.loss_weight_scale / 2 for t in alone] == pytest.approx([1 / 18] * 2, abs=1e-15)


def test_a_text_of_another_role_than_those_with_a_length_is_named():
    for role in (None, "umpire"):
        with pytest.raises(ValueError, match=rf"no length for the role '{role or ''}' .* critic, policy"):
            scaled([*texts(1, 1), ready(2, role=role)], role_lengths=LENGTHS)


def test_a_longer_response_changes_no_other_tokens_factor():
    short, long = texts(2, 4), texts(2, 4)
    long[0] = ready(98, role="policy")
    assert len(long[0].old_logprobs) > len(short[0].old_logprobs)
    for made in (short, long):
        scaled(made, role_lengths=LENGTHS)
    assert [t.loss_weight_scale for t in short] == [t.loss_weight_scale for t in long]


def test_the_gradient_equals_two_means_and_an_averaged_kl():
    beta, made = 0.01, texts(3, 5)
    for index, one in enumerate(made):
        one.advantage = 0.3 * index - 1.0
    _, config = scaled(made, role_lengths=LENGTHS, kl_coef=beta)
    noise = torch.Generator().manual_seed(0)
    logits = [torch.randn(len(t.old_logprobs), generator=noise) * 0.1 - 1 for t in made]
    for values in logits:
        values.requires_grad_(True)
    total = torch.zeros(())
    for batch in assemble_step(made, 0, 16)[0]:
        new = torch.cat([logits[rollout] for _, rollout, _ in batch.text_ids])
        total = total + total_loss(inputs_of(targets_of(batch, config), new), config, Coefficients(kl=beta))
    ours = torch.cat(torch.autograd.grad(total, logits))
    theirs = torch.cat(torch.autograd.grad(dense(made, logits, beta), logits))
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
            new = logits[one.rollout_index]
            ratio = (new - torch.from_numpy(one.old_logprobs)).exp()
            clipped = ratio.clamp(0.8, 1.2)
            term = torch.minimum(ratio * one.advantage, clipped * one.advantage).sum() / LENGTHS[role]
            objective = objective + weight * term / len(roles[role])
            d = torch.from_numpy(one.ref_logprobs) - new
            kl = kl + (d.exp() - d - 1).sum() / LENGTHS[role] / len(roles[role]) / 2
    return -(objective - beta * kl)
