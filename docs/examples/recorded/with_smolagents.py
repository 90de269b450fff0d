"""The guessing game as one run of smolagents' CodeAgent: a number is a program of Python, and so a guess."""

import sys

from player import Game
from smolagents import ActionStep, CodeAgent, LogLevel, OpenAIModel
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

# Prompts of a few bytes for a model of 256 tokens, and no tags: a bare number is a program too.
agent = CodeAgent(
    [],
    OpenAIModel("policy"),
    prompt_templates=EMPTY_PROMPT_TEMPLATES,
    code_block_tags=("```", ""),
    max_steps=2,
    verbosity_level=LogLevel.OFF,
)
game = Game(int(sys.argv[1]), guesses=2)
for step in agent.run(game.question, stream=True):
    if isinstance(step, ActionStep):
        goes_on = game.guess(str(step.model_output).strip())
        step.error, step.observations = None, game.question
        if not goes_on:
            break
