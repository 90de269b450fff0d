"""A token without a weight, one beyond the lag bound say, changes no loss and has no gradient."""

from dataclasses import replace

import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.config.staleness import Staleness
from pipelinerl.finetune.rl.batch import encode
from pipelinerl.finetune.rl.losses import LOSSES, Coefficients, LossInputs, policy_loss, total_loss
from pipelinerl.finetune.rl.targets import targets_of
from tests.support.builders import ready


def half_stale() -> LossInputs:
    """Two texts at version 12 with a lag of at most 4: all but the last token of the first is older."""
    old, fresh = ready(1, 1.0), ready(2, -1.0, version=10)
    sampled = len(old.old_logprobs)
    old.weight_versions = [(0, 0, sampled - 1), (10, sampled - 1, sampled)]
    targets = targets_of(encode([old, fresh], 0, 2), RLConfig(), 12, Staleness(4))
    assert sampled > 2 and (targets.weight > 0).sum() == 1 + len(fresh.old_logprobs)
    names = ("old_logprobs", "ref_logprobs", "advantages", "rewards", "weight", "kl_weight", "sample")
    columns = [torch.from_numpy(getattr(targets, name)) for name in names]
    new = columns[0] + torch.linspace(-0.05, 0.05, len(columns[0]))
    return LossInputs(new.requires_grad_(), torch.zeros(len(new)), *columns, n_texts=2)


@pytest.mark.parametrize("loss", LOSSES)
def test_only_tokens_with_a_weight_are_trained_on(loss: str) -> None:
    """The gradient is that of the batch from which the stale tokens were taken out."""
    rl, inputs = RLConfig(policy_loss=loss, epsilon_low=0.2, epsilon_high=0.2), half_stale()
    found = total_loss(inputs, rl, Coefficients())
    found.backward()
    kept = inputs.weight_N > 0
    assert inputs.logprobs_N.grad is not None and (inputs.logprobs_N.grad[~kept] == 0).all()
    without = LossInputs(
        inputs.logprobs_N.detach()[kept].requires_grad_(),
        inputs.entropy_N[kept],
        inputs.old_logprobs_N[kept],
        inputs.ref_logprobs_N[kept],
        inputs.advantages_N[kept],
        inputs.rewards_N[kept],
        inputs.weight_N[kept],
        inputs.kl_weight_N[kept],
        inputs.text_N[kept],
        2,
    )
    expected = total_loss(without, rl, Coefficients())
    expected.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(inputs.logprobs_N.grad[kept], without.logprobs_N.grad)


def test_a_stale_token_does_not_make_its_text_count_as_clipped() -> None:
    inputs, rl = half_stale(), RLConfig(policy_loss="gspo", epsilon_low=0.2, epsilon_high=0.2)
    far = inputs.logprobs_N.detach() + 3.0 * (inputs.weight_N == 0)
    assert not policy_loss(rl.policy_loss).clipped_N(replace(inputs, logprobs_N=far), rl).any()
    last = (inputs.text_N == 0) & (inputs.weight_N > 0)
    clipped = policy_loss(rl.policy_loss).clipped_N(
        replace(inputs, logprobs_N=inputs.logprobs_N.detach() + last), rl
    )
    assert (clipped == (inputs.text_N == 0)).all(), "the one token that is trained on decides for its text"
