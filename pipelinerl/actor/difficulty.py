"""Length penalties scaled by how often a problem is solved; the scheduler calls it for each complete group.

A domain with `rewards.buffer_tokens` charges answers that come close to the length limit. On a problem that
few attempts solve, a long right answer should cost less: in successful rollouts the penalty is multiplied by
`solve_rate ** gamma`, in others by `failure_scale`. A sample cut at `max_tokens` keeps the whole penalty.
"""

from collections.abc import Iterable

from pipelinerl.actor.messages import FinishedRollout
from pipelinerl.config import Config


def length_penalty(max_length: int, sequence_length: int, buffer_tokens: int) -> float:
    """0 outside the buffer, down to -1 at its end; all arguments in tokens."""
    if buffer_tokens <= 0 or not max_length - buffer_tokens < sequence_length <= max_length:
        return 0.0
    return (max_length - buffer_tokens - sequence_length) / buffer_tokens


def scale_penalties(rollouts: Iterable[FinishedRollout], cfg: Config) -> None:
    """Change rewards of a group's samples, and `reward` of its rollouts; adds `penalty_delta`, `overlong`."""
    sampled = [rollout for rollout in rollouts if rollout.samples]
    if not sampled:
        return
    scaling, max_tokens = cfg.actor.difficulty_aware_penalty, cfg.llm.parameters.max_tokens
    solved = [float(bool(rollout.metrics.get("success"))) for rollout in sampled]
    success_scale = (sum(solved) / len(solved)) ** scaling.gamma
    for rollout, success in zip(sampled, solved, strict=True):
        deltas, overlong = [], False
        for sample in rollout.samples:
            penalty = length_penalty(max_tokens, sample.output_tokens, cfg.rewards.buffer_tokens)
            overlong |= penalty < 0
            # A cut answer was not merely long: it has no end, however hard the problem is.
            cut = not sample.finished and sample.output_tokens >= max_tokens
            scale = 1.0 if cut else success_scale if success else scaling.failure_scale
            # The domain has charged `penalty` itself when the solve rate was not known yet.
            deltas.append((scale - 1.0) * penalty)
            sample.reward += deltas[-1]
        rollout.metrics["penalty_delta"] = deltas
        if isinstance(reward := rollout.metrics.get("reward"), float):  # that which is trained
            rollout.metrics["reward"] = reward + sum(deltas)
        rollout.metrics["overlong"] = float(overlong)
