"""A taskset with a tool, served in a process of its own."""

import verifiers.v1 as vf

__all__ = ["Sums"]


class Adding(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class Row(vf.TaskData):
    answer: str


class Sum(vf.Task[Row, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, task: Row, trace: vf.Trace) -> float:
        return float(task.answer in trace.last_reply)

    @vf.metric
    async def called(self, trace: vf.Trace) -> float:
        return len(trace.tool_messages)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Adding(vf.ToolsetConfig())]

    def load(self):
        for number in range(4):
            yield Sum(Row(prompt=f"{number} + 2?", answer=str(number + 2)), self.config.task)


if __name__ == "__main__":
    Adding.run()
