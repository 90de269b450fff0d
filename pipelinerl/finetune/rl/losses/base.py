"""What a policy loss sees and returns. A loss is one pure function of named per-token tensors.

Legend: N labelled tokens of one micro-batch, S texts. Sums, never means: the token weights carry every
normalisation, so that gradients of micro-batches and ranks simply add up.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pipelinerl.config.finetune import RLConfig

LOG_RATIO_BOUND = 20.0
"""Log-ratios beyond it count as it: exp(20) is past every clip, and exp(89) is infinite in float32."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Float32 `[N]` tensors over labelled tokens, and which text each token belongs to.

    logprobs_N, entropy_N, values_N (of the value head, if there is one): of the policy being trained, with
    gradient; the rest has none.
    weight_N: w of the policy term (1/B or 1/group_tokens, overlong filter, loss scale, staleness).
    kl_weight_N: the same for the KL and entropy terms.
    text_N: int64 in 0..S-1.
    """

    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor
    old_logprobs_N: torch.Tensor
    ref_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    rewards_N: torch.Tensor
    weight_N: torch.Tensor
    kl_weight_N: torch.Tensor
    text_N: torch.Tensor
    n_texts: int
    values_N: torch.Tensor | None = None

    @property
    def log_ratio_N(self) -> torch.Tensor:
        """logp_new - logp_old within +-LOG_RATIO_BOUND, with gradient."""
        difference = self.logprobs_N - self.old_logprobs_N
        return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)

    @property
    def ratio_N(self) -> torch.Tensor:
        """Importance ratio exp(logp_new - logp_old), not clipped, with gradient."""
        return self.log_ratio_N.exp()

    def factor_N(self, config: RLConfig) -> torch.Tensor:
        """F: the advantage, or the reward without `use_advantages`; cut at 0 by `relu_log_p_weights`."""
        factor = self.advantages_N if config.use_advantages else self.rewards_N
        return factor.clamp(min=0) if config.relu_log_p_weights else factor


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Weights of the KL and entropy terms at this step."""

    kl: float = 0.0
    entropy: float = 0.0


PolicyLoss = Callable[[LossInputs, RLConfig], torch.Tensor]
"""Maps inputs to the scalar policy term, a sum to be minimised."""


def kl_N(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """KL to the reference per token: exp(d) - d - 1 with d = clamp(logp_ref - logp_new) (Schulman's k3)."""
    bound = config.clamp_log_ratio_ref_new_value
    difference = (inputs.ref_logprobs_N - inputs.logprobs_N).clamp(-bound, bound)
    return difference.exp() - difference - 1


def regularisation(inputs: LossInputs, config: RLConfig, coefficients: Coefficients) -> torch.Tensor:
    """Sum of w_kl * (k * KL - e * H); exactly 0 without a graph when both coefficients are 0."""
    total = inputs.weight_N.new_zeros(())
    if coefficients.kl:
        total = total + coefficients.kl * (inputs.kl_weight_N * kl_N(inputs, config)).sum()
    if coefficients.entropy:
        total = total - coefficients.entropy * (inputs.kl_weight_N * inputs.entropy_N).sum()
    return total


def value_loss(inputs: LossInputs, config: RLConfig) -> torch.Tensor:
    """value_loss_coef * sum w * (V - R)^2 / 2; exactly 0 without a graph when there is no value head."""
    if inputs.values_N is None:
        return inputs.weight_N.new_zeros(())
    error = inputs.values_N - inputs.rewards_N
    return config.value_loss_coef * (inputs.weight_N * 0.5 * error.square()).sum()
