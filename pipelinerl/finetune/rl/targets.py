"""What a packed micro-batch trains on: its labelled tokens, their weights and their staleness. Pure numpy.

The loop asks `targets_of` for each micro-batch. Here a token that is too old gets the weight 0.
"""

from dataclasses import dataclass

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.config.staleness import Staleness
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.finetune.rl.sample import UNSAMPLED
from pipelinerl.rollouts import MASKED_TOKEN_ID


@dataclass(frozen=True, slots=True)
class Targets:
    """N labelled tokens of a micro-batch of S samples.

    positions, labels, sample (0..S-1), lag (last announced version minus the token's, in samples), age
    (optimizer steps between the weights that sampled the token and those that the step begins with, rounded
    up; -1: not known): int64 `[N]`. stale and overlong (cut by length, under `overlong_filtering`): bool
    `[N]`; the float32 `[N]` columns are those of the record; weight and kl_weight are the token weights of
    the policy term and of the KL and entropy terms, 0 on stale tokens. count float32 `[N]` is the number of
    targets of the token's sample.
    """

    positions: np.ndarray
    labels: np.ndarray
    sample: np.ndarray
    lag: np.ndarray
    age: np.ndarray
    stale: np.ndarray
    overlong: np.ndarray
    advantages: np.ndarray
    rewards: np.ndarray
    old_logprobs: np.ndarray
    ref_logprobs: np.ndarray
    weight: np.ndarray
    kl_weight: np.ndarray
    count: np.ndarray
    n_samples: int

    def samples_with_gradient(self) -> np.ndarray:
        """bool `[S]`: samples of which some token has a weight in some term."""
        weight = np.abs(self.weight) + np.abs(self.kl_weight)
        return np.bincount(self.sample, weights=weight, minlength=self.n_samples) > 0

    def stale_samples(self) -> np.ndarray:
        """bool `[S]`: samples that have labels, all of them beyond the lag bound."""
        labels = np.bincount(self.sample, minlength=self.n_samples)
        stale = np.bincount(self.sample, weights=self.stale, minlength=self.n_samples)
        return (labels > 0) & (stale == labels)


def targets_of(
    batch: PipelineBatchEncoding,
    rl: RLConfig,
    last_version: int = 0,
    staleness: Staleness = Staleness(None),  # noqa: B008 - frozen
    weights_version: int | None = None,
) -> Targets:
    """Select the labelled tokens; the first token of a sample has no predictor and is never one of them.

    The token weight is 1/B, or 1/group_tokens with `group_normalization`, times the loss scale, times
    (1 - overflow) with `overlong_filtering`. Tokens that are too old when `last_version` is the last
    announced one get weight 0. `weights_version`: samples that the weights which the step begins with were
    trained on (None: `last_version`).
    """
    labels = batch.labels[0]
    at = np.flatnonzero((labels != MASKED_TOKEN_ID) & (batch.position_ids[0] > 0))
    sample = batch.segment_ids[0][at].astype(np.int64)
    versions = batch.token_versions[0][at].astype(np.int64)
    lag = np.where(versions == UNSAMPLED, 0, last_version - versions)
    stale = staleness.too_old(lag)
    now = last_version if weights_version is None else weights_version
    age = np.where((versions == UNSAMPLED) | (versions > now), -1, -((versions - now) // batch.step_texts))
    weight = ~stale / (batch.group_tokens[0][at] if rl.group_normalization else np.float32(batch.step_texts))
    overlong = np.zeros(len(at), bool)
    if rl.overlong_filtering:
        overlong = batch.overflow[0][at] > 0
        weight = weight * (1 - batch.overflow[0][at])
    n_samples = batch.n_texts

    def column(values: np.ndarray) -> np.ndarray:
        return values[0][at].astype(np.float32)

    return Targets(
        positions=at,
        labels=labels[at].astype(np.int64),
        sample=sample,
        lag=lag,
        age=age,
        stale=stale,
        overlong=overlong,
        advantages=column(batch.advantages),
        rewards=column(batch.rewards),
        old_logprobs=column(batch.old_logprobs),
        ref_logprobs=column(batch.ref_logprobs),
        weight=(weight * batch.loss_weight_scale[0][at]).astype(np.float32),
        kl_weight=(weight * batch.kl_weight_scale[0][at]).astype(np.float32),
        count=np.bincount(sample, minlength=n_samples)[sample].astype(np.float32),
        n_samples=n_samples,
    )
