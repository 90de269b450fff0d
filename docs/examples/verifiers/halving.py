"""A taskset for verifiers: name a number in a range, the better the nearer to its middle. One turn."""

import random

import verifiers.v1 as vf

__all__ = ["Halving"]


class Range(vf.TaskData):
    low: int
    high: int


class Guess(vf.Task[Range, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def halves(self, task: Range, trace: vf.Trace) -> float:
        """The share of numbers that the guess rules out on average: 1/2 in the middle, 0 outside."""
        said = trace.last_reply
        if not (said.isdecimal() and task.low <= int(said) <= task.high):
            return 0.0
        below, above = int(said) - task.low, task.high - int(said)
        return 1 - (below**2 + above**2) / (task.high - task.low + 1) ** 2

    @vf.metric
    async def inside(self, task: Range, trace: vf.Trace) -> float:
        return float(trace.last_reply.isdecimal() and task.low <= int(trace.last_reply) <= task.high)


class Config(vf.TasksetConfig):
    highest: int = 100
    """Numbers go from 1 to this one."""


class Halving(vf.Taskset[Guess, Config]):
    INFINITE = True

    def load(self):
        draw, most = random.Random("halving"), self.config.highest
        while True:
            low, high = sorted((draw.randint(1, most), draw.randint(1, most)))
            above, below = f", higher than {low - 1}" if low > 1 else "", ""
            if high < most:
                below = f", lower than {high + 1}"
            row = Range(prompt=f"guess 1-{most}{above}{below}", low=low, high=high)
            yield Guess(row, self.config.task)
