"""The guessing game with OpenAI's agents, which ask `/v1/responses`; one run for each guess."""

import sys

from agents import Agent, Runner, set_tracing_disabled
from player import Game

set_tracing_disabled(True)
agent = Agent(name="guesser", model="policy")
game = Game(int(sys.argv[1]))
while game.guess(Runner.run_sync(agent, game.question).final_output.strip()):
    pass
