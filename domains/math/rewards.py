"""From the status of an answer to a reward: eight numbers, a discount, a penalty for nearly full length.

Called by the rollout with the block `rewards` of the configuration; upstream's names stay.
"""

import logging
from collections.abc import Sequence
from typing import Literal, get_args

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, Field

from pipelinerl.actor.difficulty import length_penalty
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import TrainingText

__all__ = ["STATUSES", "AnswerStatus", "RewardTable", "get_reward", "length_penalty", "rollout_reward"]

log = logging.getLogger(__name__)

AnswerStatus = Literal["correct", "wrong", "no_answer", "unparsable"]
STATUSES: tuple[AnswerStatus, ...] = get_args(AnswerStatus)
_PREFIX: dict[str, str] = {"correct": "correct_answer", "wrong": "wrong_answer"}


class RewardTable(BaseModel):
    """Reward of each status, for texts that ended by themselves and for texts that were cut."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wrong_answer_not_finished: float
    wrong_answer_finished: float
    no_answer_not_finished: float
    no_answer_finished: float
    unparsable_not_finished: float
    unparsable_finished: float
    correct_answer_not_finished: float
    correct_answer_finished: float
    buffer_tokens: int = Field(0, ge=0)
    """Tokens below the length limit in which the length penalty grows to -1; 0: none."""

    def log_config(self, domain: str) -> None:
        """Write the table to the log of the process; for domains written for upstream, which call it once."""
        log.info("rewards of %s: %s", domain, self.model_dump())


def get_reward(answer_status: str, finished: bool, reward_table: RewardTable) -> float:
    """The table's entry. Raises ValueError for a status that it does not have."""
    if answer_status not in STATUSES:
        raise ValueError(f"answer status {answer_status!r} is unknown; use one of {', '.join(STATUSES)}")
    prefix = _PREFIX.get(answer_status, answer_status)
    value = getattr(reward_table, f"{prefix}_{'finished' if finished else 'not_finished'}")
    return float(value)


def rollout_reward(
    cfg: DictConfig, llm: TrainableLLM, texts: Sequence[TrainingText], status: str, share: float = 0.0
) -> tuple[float, float]:
    """Reward of the completions of a rollout, and the length penalty (at most 0) that is in it.

    The entry of `cfg.rewards` times the discount to the power of the sampled tokens, plus the penalty for
    nearly as many as `max_tokens` allows. `share` is the part of a wrong answer that is right: its entry lies
    so far on the way to that of a correct one.
    """
    table, finished = RewardTable.model_validate(dict(cfg.rewards)), texts[-1].finished
    tokens, limit = sum(text.output_tokens for text in texts), int(llm.parameters["max_tokens"]) * len(texts)
    penalty = length_penalty(limit, tokens, table.buffer_tokens) if table.buffer_tokens else 0.0
    value = get_reward(status, finished, table)
    if status == "wrong":
        value += share * (get_reward("correct", finished, table) - value)
    return value * float(cfg.actor.get("discount_factor", 1.0)) ** tokens + penalty, penalty
