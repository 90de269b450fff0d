"""Metrics of one rollout, by role and source; rollouts fill a `Tally` and give its metrics to the actor.

A rate is a list with one number per event, so that pooling rollouts gives the rate over events; an empty list
means that there was no such event.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from domains.raro.parser import ANSWER_1, Verdict
from domains.raro.rewards import Label
from pipelinerl.rollouts import BaseMetrics

Source = Literal["fresh", "replay"]
SOURCES: tuple[Source, ...] = ("fresh", "replay")
CRITIC_RATES = (
    "critic_accuracy",
    "tie_rate",
    "policy_win_rate",
    "position1_rate",
    "parse_fail_rate",
    "truncated_rate",
)
"""Logged for each source."""
PREFIX = "raro/"


class RaroMetrics(BaseMetrics):
    """The core's metrics, and those of the game as extra fields under `raro/`."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one sample of a critic group said; no verdict where it is missing, refused or was cut off."""

    verdict: Verdict | None = None
    label: Label | None = None
    reward: float | None = None
    """The critic's; None where the sample is masked."""
    truncated: bool = False


@dataclass(slots=True)
class Tally:
    """Collects the events of one rollout; names are without the prefix."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, *numbers: float) -> None:
        """Numbers of one metric."""
        self.values[name].extend(float(number) for number in numbers)

    def attempt(self, event: str | None, judged: bool) -> None:
        """How a policy attempt ended: the event's counter, or None for a judged answer."""
        for name in ("policy_truncated", "policy_answer_too_long", "policy_answerless"):
            self.add(name, name == event)
        self.add("answerless_rate", event == "policy_answerless")
        if judged:
            self.add("policy_unjudged", event == "policy_unjudged")

    def group(self, source: Source, judgements: Sequence[Judgement]) -> None:
        """A critic group."""
        for found in judgements:
            unreadable = found.label is None and not found.truncated
            self.add(f"{source}/truncated_rate", found.truncated)
            self.add(f"{source}/parse_fail_rate", unreadable)
            self.counts["critic_truncated"] += found.truncated
            self.counts["critic_parse_fail"] += unreadable
            if found.label is None:
                continue
            self.add(f"{source}/tie_rate", found.label is Label.TIE)
            self.add(f"{source}/policy_win_rate", found.label is Label.POLICY)
            self.counts[f"{source}/committed"] += found.label is not Label.TIE
            if found.label is not Label.TIE:
                self.add(f"{source}/critic_accuracy", found.label is Label.EXPERT)
                self.add(f"{source}/position1_rate", found.verdict == ANSWER_1)
        rewards = [found.reward for found in judgements if found.reward is not None]
        if rewards:
            self.add("critic_zero_advantage_groups", float(np.ptp(rewards)) <= 1e-6)

    def metrics(self, *, reward: float, success: bool, no_error: bool, no_answer: bool) -> RaroMetrics:
        """Everything under its name."""
        extra: dict[str, Any] = {PREFIX + name: values for name, values in self.values.items()}
        extra |= {PREFIX + name: count for name, count in self.counts.items()}
        return RaroMetrics(reward=reward, success=success, no_error=no_error, no_answer=no_answer, **extra)


def length_rule(expert: str, policy: str) -> float:
    """1 if the policy's answer is the longer one, 0 if it is shorter, one half otherwise.

    Far from one half on average, length alone gives the policy's answer away.
    """
    if len(expert) == len(policy):
        return 0.5
    return float(len(policy) > len(expert))
