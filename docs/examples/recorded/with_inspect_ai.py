"""The guessing game as one sample of an inspect-ai evaluation, with a solver that asks for every guess."""

import os
import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.solver import Generate, TaskState, solver
from player import Game

os.environ["INSPECT_DISPLAY"] = "none"
route = sys.argv[2] if len(sys.argv) > 2 else "openai"
game = Game(int(sys.argv[1]), guesses=4)


@solver
def player():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        while game.guess(state.output.completion.strip()):
            state.messages.append(ChatMessageUser(content=game.question))
            state = await generate(state)
        return state

    return solve


with tempfile.TemporaryDirectory() as folder:
    task = Task(dataset=[Sample(input=game.question)], solver=player())
    (log,) = eval(task, model=f"{route}/policy", log_dir=folder, display="none")
if log.status != "success":
    sys.exit(str(log.error.message if log.error else log.status))
