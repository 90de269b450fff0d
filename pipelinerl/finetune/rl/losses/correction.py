"""Corrections for tokens that other weights, or an engine that rounds otherwise, have sampled.

`total_loss` passes what a policy loss sees through `corrected`, so that every loss has them; the metrics of a
step ask `importance` which tokens lie beyond the bounds. docs/objective.md says which setting is what papers
call TIS, MIS, IcePop and so on.

The policy that a sample is corrected to is the one that the optimizer step begins with. A sample is trained
once, so that is the policy that computes the loss, and its log-probabilities need no further forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipelinerl.config.finetune import CorrectionConfig
from pipelinerl.finetune.rl.losses.base import LOG_RATIO_BOUND, LossInputs, mean_S, sum_S

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance ratio pi_trainer / pi_engine of each token at the chosen level; no gradient.

    ratio_N: float32, unbounded. bounded_N: the same within the bounds, 0 where it is masked. too_low_N,
    too_high_N: bool, where the ratio is beyond the bounds.
    """

    ratio_N: torch.Tensor
    bounded_N: torch.Tensor
    too_low_N: torch.Tensor
    too_high_N: torch.Tensor


def importance(inputs: LossInputs, correction: CorrectionConfig) -> Importance:
    """The ratio at the level of `correction`, and what its mode makes of it.

    The ratio of a sample is over its tokens with w > 0: those beyond the lag bound are not trained.
    """
    log_ratio_N = inputs.log_ratio_N.detach()
    if correction.level != "token":
        over_S = sum_S if correction.level == "sequence" else mean_S
        counted_N = log_ratio_N.where(inputs.weight_N > 0, 0.0)
        log_ratio_N = over_S(inputs, counted_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)[inputs.text_N]
    ratio_N = log_ratio_N.exp()
    low = 0.0 if correction.mode == "truncate" else correction.low
    too_low_N, too_high_N = ratio_N < low, ratio_N > correction.high
    if correction.mode == "mask":
        bounded_N = ratio_N.masked_fill(too_low_N | too_high_N, 0.0)
    else:
        bounded_N = ratio_N.clamp(low, correction.high)
    return Importance(ratio_N, bounded_N, too_low_N, too_high_N)


def corrected(inputs: LossInputs, correction: CorrectionConfig) -> LossInputs:
    """What the policy loss is to see; the same object where nothing is corrected.

    With `proximal`, the loss's own ratio is to the policy that the step begins with, and the bounded
    ratio to the engine is a factor of its weight. Without, mask takes the weight of what it masks, and clip
    and truncate put the bounded ratio in the place of the loss's own: its value is the bounded one, its
    gradient that of the token's log-probability. KL, entropy and value terms are not corrected.
    """
    if correction.mode == "off":
        return inputs
    found = importance(inputs, correction)
    here_N = inputs.logprobs_N.detach()
    if correction.proximal:
        return replace(inputs, old_logprobs_N=here_N, weight_N=inputs.weight_N * found.bounded_N)
    if correction.mode == "mask":
        return replace(inputs, weight_N=inputs.weight_N.masked_fill(found.bounded_N == 0, 0.0))
    return replace(inputs, old_logprobs_N=here_N - found.bounded_N.log())
