"""A taskset for verifiers: name a number in a range, the better the nearer to its middle. One turn."""

import random
import re

import verifiers.v1 as vf

__all__ = ["Halving"]


class Range(vf.TaskData):
    low: int
    high: int
    words: bool = False


class Guess(vf.Task[Range, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def halves(self, task: Range, trace: vf.Trace) -> float:
        """The share of numbers that the guess rules out on average: half in the middle, 0 outside."""
        said = guess_in(trace.last_reply, task)
        if said is None:
            return 0.0
        below, above = said - task.low, task.high - said
        return 1 - (below**2 + above**2) / (task.high - task.low + 1) ** 2

    @vf.metric
    async def inside(self, task: Range, trace: vf.Trace) -> float:
        return float(guess_in(trace.last_reply, task) is not None)


def guess_in(reply: str, task: Range) -> int | None:
    """The number that a reply names, if it lies in the range: the last one, or without words all of it."""
    found = re.findall(r"(?<!\d)\d{1,9}(?!\d)", reply) if task.words or reply.isdecimal() else []
    return int(found[-1]) if found and task.low <= int(found[-1]) <= task.high else None


class Config(vf.TasksetConfig):
    highest: int = 100
    """Numbers go from 1 to this one."""
    words: bool = False
    """Asked in a sentence, for a language model; otherwise as in the guessing game."""


class Halving(vf.Taskset[Guess, Config]):
    INFINITE = True

    def load(self):
        draw, most = random.Random("halving"), self.config.highest
        while True:
            low, high = sorted((draw.randint(1, most), draw.randint(1, most)))
            above, below = f", higher than {low - 1}" if low > 1 else "", ""
            if high < most:
                below = f", lower than {high + 1}"
            prompt = f"guess 1-{most}{above}{below}"
            if self.config.words:
                prompt = f"Name one whole number from {low} to {high}. Answer with the number alone."
            row = Range(prompt=prompt, low=low, high=high, words=self.config.words)
            yield Guess(row, self.config.task)
