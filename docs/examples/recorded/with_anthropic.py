"""The guessing game with Anthropic's own client, one stream of `/v1/messages` for each guess."""

import sys

import anthropic
from player import Game

client = anthropic.Anthropic()


def ask(question: str) -> str:
    messages = [{"role": "user", "content": question}]
    with client.messages.stream(model="policy", max_tokens=16, messages=messages) as stream:
        said = "".join(stream.text_stream)
        assert said == "".join(block.text for block in stream.get_final_message().content)
    return said.strip()


game = Game(int(sys.argv[1]))
while game.guess(ask(game.question)):
    pass
