"""Length penalties scaled by how often a problem is solved.

A domain with `rewards.buffer_tokens` charges answers that come close to the length limit. On a problem that
few attempts solve, a long right answer should cost less: in successful rollouts the penalty is multiplied by
`solve_rate ** gamma`, in others by `failure_scale`. A sample cut at `max_tokens` keeps the whole penalty.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pipelinerl.actor.messages import FinishedRollout
from pipelinerl.config import Config


def length_penalty(max_length: int, sequence_length: int, buffer_tokens: int) -> float:
    """0 outside the buffer, down to -1 at its end; all arguments in tokens."""
    if buffer_tokens <= 0 or not max_length - buffer_tokens < sequence_length <= max_length:
        return 0.0
    return (max_length - buffer_tokens - sequence_length) / buffer_tokens


@dataclass(frozen=True, kw_only=True)
class DifficultyPenalty:
    """The scaling of one run. The domain has added the plain penalty already; this adds the difference."""

    gamma: float
    failure_scale: float
    buffer_tokens: int
    max_tokens: int

    def apply(self, rollouts: Iterable[FinishedRollout]) -> None:
        """Change the rewards of a whole group's samples; adds metrics `penalty_delta` and `overlong`."""
        sampled = [rollout for rollout in rollouts if rollout.samples]
        if not sampled:
            return
        solved = [float(bool(rollout.metrics.get("success"))) for rollout in sampled]
        success_scale = (sum(solved) / len(solved)) ** self.gamma
        for rollout, success in zip(sampled, solved, strict=True):
            deltas, overlong = [], False
            for sample in rollout.samples:
                penalty = length_penalty(self.max_tokens, sample.output_tokens, self.buffer_tokens)
                overlong |= penalty < 0
                cut = not sample.finished and sample.output_tokens >= self.max_tokens
                scale = 1.0 if cut else success_scale if success else self.failure_scale
                # The domain has charged `penalty` itself when the solve rate was not known yet.
                deltas.append((scale - 1.0) * penalty)
                sample.reward += deltas[-1]
            rollout.metrics["penalty_delta"] = deltas
            rollout.metrics["overlong"] = float(overlong)


def difficulty_penalty(cfg: Config) -> DifficultyPenalty | None:
    """The scaling of length penalties, if it is switched on."""
    section = cfg.actor.difficulty_aware_penalty
    if not section.enabled:
        return None
    return DifficultyPenalty(
        gamma=section.gamma,
        failure_scale=section.failure_scale,
        buffer_tokens=cfg.rewards.buffer_tokens,
        max_tokens=cfg.llm.parameters.max_tokens,
    )
