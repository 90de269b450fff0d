"""The guessing game with pydantic-ai as one dialogue that grows, streamed by the route that is named."""

import asyncio
import sys

from player import Game
from pydantic_ai import Agent

KINDS = {"chat": "openai-chat:policy", "responses": "openai-responses:policy", "messages": "anthropic:policy"}
agent = Agent(KINDS[sys.argv[2] if len(sys.argv) > 2 else "messages"])


async def play(game: Game) -> None:
    history, goes_on = [], True
    while goes_on:
        async with agent.run_stream(game.question, message_history=history) as answer:
            said = "".join([part async for part in answer.stream_text(delta=True)])
        history = answer.all_messages()
        goes_on = game.guess(said.strip())


asyncio.run(play(Game(int(sys.argv[1]), guesses=4)))
