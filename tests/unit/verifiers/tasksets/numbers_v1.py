"""A taskset of one turn: guess a number; two rewards with weights, a metric."""

import verifiers.v1 as vf

__all__ = ["Numbers"]


class Row(vf.TaskData):
    answer: int


class Number(vf.Task[Row, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def is_number(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.isdecimal())

    @vf.reward
    async def is_right(self, task: Row, trace: vf.Trace) -> float:
        if trace.last_reply == "0":
            raise ArithmeticError("zero was not to be named")
        return float(trace.last_reply == str(task.answer))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)


class Config(vf.TasksetConfig):
    most: int = 20


class Numbers(vf.Taskset[Number, Config]):
    def load(self):
        for answer in range(self.config.most):
            row = Row(name=f"n{answer}", prompt=f"Which number is {answer}?", answer=answer)
            yield Number(row, self.config.task)
