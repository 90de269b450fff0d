"""What a policy loss is, sees and returns: pure functions of named per-token tensors.

The trainer computes with these objects and the launcher asks them what they read, so that this folder imports
no torch: formulas use the methods of the tensors that they are given.

Legend: N labelled tokens of one micro-batch, S samples. Sums, never means: the token weights carry every
normalisation, so that gradients of micro-batches and ranks simply add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pipelinerl.config.finetune import RLConfig

if TYPE_CHECKING:
    import torch

LOG_RATIO_BOUND = 20.0
"""Log-ratios beyond it count as it: exp(20) is past every clip, and exp(89) is infinite in float32."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Float32 `[N]` tensors over labelled tokens, and which sample each token belongs to.

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


class Reducer(Enum):
    """How what a metric's function gives is combined."""

    SUM = "sum over the tokens of all micro-batches and ranks"
    TEXT_MEAN = "mean over the step's samples of each sample's mean over its tokens"
    MAX = "maximum over tokens"
    MIN = "minimum over tokens"
    STEP = "once, from the merged counts of the step"


class LossMetric(NamedTuple):
    """A metric that only runs with this loss have, reported as `rl/loss/NAME`."""

    name: str
    reducer: Reducer
    """Any but STEP."""
    doc: str
    """What it says, with its unit."""
    of: Callable[[LossInputs, RLConfig], torch.Tensor]
    """Float32 `[N]` of what the term sees; without gradient."""


class PolicyLoss:
    """A policy loss: its term, the settings that it does not read, and what its metrics count.

    A loss of this package is a file with an instance named like the file. One of another package is named by
    its dotted path: an instance of a subclass, or a plain function `(LossInputs, RLConfig) -> scalar`, which
    is given the metrics of this base class.
    """

    ignores: tuple[str, ...] = ()
    """Keys of `finetune.rl` that the term does not read; a run that changes one of them is refused."""
    compares: bool = True
    """Whether rewards or advantages weigh the tokens; False for imitation."""
    reads_ratio: bool = True
    """Whether the term multiplies with the importance ratio."""

    metrics: tuple[LossMetric, ...] = ()
    """What it measures beyond `rl/ratio_new_old` and the clip metric, which each loss has."""

    def __call__(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        """The scalar policy term, a sum to be minimised."""
        raise NotImplementedError

    def reported_ratio_N(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        """`rl/ratio_new_old`: the importance ratio `[N]`, as the term multiplies with it."""
        return inputs.ratio_N

    def clipped_N(self, inputs: LossInputs, rl: RLConfig) -> torch.Tensor:
        """`rl/clamp_log_ratio_new_old_indicator`: bool `[N]`, whose ratio is beyond the clip."""
        return beyond(inputs.ratio_N, rl)


def sum_S(inputs: LossInputs, values_N: torch.Tensor) -> torch.Tensor:
    """`[S]` sums over each sample's tokens."""
    return values_N.new_zeros(inputs.n_texts).index_add(0, inputs.text_N, values_N)


def mean_S(inputs: LossInputs, values_N: torch.Tensor) -> torch.Tensor:
    """`[S]` means over each sample's tokens that have a weight; 0 for a sample without one."""
    # The mean gives every token in it a gradient, and those beyond the lag bound must not have any.
    counted_N = inputs.weight_N > 0
    total_S = sum_S(inputs, values_N.where(counted_N, 0.0))
    return total_S / sum_S(inputs, counted_N.to(values_N.dtype)).clamp(min=1)


def beyond(ratio: torch.Tensor, rl: RLConfig) -> torch.Tensor:
    """Where `ratio` lies outside 1 - epsilon_low to 1 + epsilon_high."""
    return (ratio > 1 + rl.epsilon_high) | (ratio < 1 - rl.epsilon_low)


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
