"""A taskset with three seats: two solvers that learn, and a judge of the same model that does not."""

import verifiers.v1 as vf

__all__ = ["Debate", "Topics"]


class Topic(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Config(vf.EnvConfig):
    left: vf.AgentConfig = vf.AgentConfig()
    right: vf.AgentConfig = vf.AgentConfig(sampling={"max_tokens": 2})
    judge: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class Debate(vf.Env[Config]):
    async def setup(self, agents):
        agents.judge.trainable = False

    async def run(self, task, agents):
        left = await agents.left.run(task)
        right = await agents.right.run(task)
        question = f"{left.last_reply} or {right.last_reply}?"
        await agents.judge.run(vf.Task(vf.TaskData(prompt=question)))

    async def finalize(self, task, episode):
        (verdict,) = (one for one in episode.traces if one.agent.name == "judge")
        for trace in episode.traces:
            trace.record_reward("won", float(trace.last_reply == verdict.last_reply), 1.0)


class Topics(vf.Taskset[Topic, vf.TasksetConfig]):
    def load(self):
        for topic in ("tea", "rain"):
            yield Topic(vf.TaskData(prompt=f"On {topic}."), self.config.task)
