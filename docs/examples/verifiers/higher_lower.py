"""A taskset with an environment of its own for verifiers: the host says higher or lower, turn by turn."""

import random

import verifiers.v1 as vf

__all__ = ["HigherLower", "Numbers"]
TURNS = 8


class Number(vf.TaskData):
    answer: int


class Find(vf.Task[Number, vf.State, vf.TaskConfig]):
    pass


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class HigherLower(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment, turns = await interaction.turn(), 1
            while not segment.terminated and segment.last_reply != str(task.data.answer) and turns < TURNS:
                said = segment.last_reply if len(segment.last_reply) < 9 else ""
                low = said.isdecimal() and int(said) < task.data.answer
                segment, turns = await interaction.turn("higher" if low else "lower"), turns + 1
        interaction.trace.record_reward("found", float(segment.last_reply == str(task.data.answer)), 1.0)
        interaction.trace.record_metric("guesses", turns)


class Numbers(vf.Taskset[Find, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        draw = random.Random("higher or lower")
        while True:
            row = Number(prompt="guess 1-100", answer=draw.randint(1, 100))
            yield Find(row, self.config.task)
