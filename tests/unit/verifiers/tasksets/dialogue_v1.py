"""A taskset with an environment of its own: several turns of one seat, told higher or lower by the host."""

import itertools

import verifiers.v1 as vf

__all__ = ["Dialogues", "HigherLower"]


class Row(vf.TaskData):
    answer: int


class Dialogue(vf.Task[Row, vf.State, vf.TaskConfig]):
    pass


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class HigherLower(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment, turns = await interaction.turn(), 1
            while not segment.terminated and segment.last_reply != str(task.data.answer) and turns < 4:
                said = segment.last_reply
                low = said.isdecimal() and int(said) < task.data.answer
                segment, turns = await interaction.turn("higher" if low else "lower"), turns + 1
        interaction.trace.record_reward("found", float(segment.last_reply == str(task.data.answer)), 1.0)
        interaction.trace.record_metric("guesses", turns)


class Dialogues(vf.Taskset[Dialogue, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for answer in itertools.count():
            yield Dialogue(Row(prompt="Guess.", system_prompt="A game.", answer=answer % 9), self.config.task)
