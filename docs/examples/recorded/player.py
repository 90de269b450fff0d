"""Guesses a number with any OpenAI-compatible model; it knows nothing of training, and needs no package."""

import json
import os
import sys
import urllib.request


class Game:
    """A number to be guessed; each guess is told on a line of its own, with its reward."""

    def __init__(self, answer: int, guesses: int = 8) -> None:
        self.answer, self.left, self.low, self.high = answer, guesses, 1, 100

    @property
    def question(self) -> str:
        above = f", higher than {self.low - 1}" if self.low > 1 else ""
        below = f", lower than {self.high + 1}" if self.high < 100 else ""
        return f"guess 1-100{above}{below}"

    def guess(self, said: str) -> bool:
        """Take what the model said; whether the game goes on."""
        low, high, number = self.low, self.high, int(said) if said.isdecimal() and len(said) < 9 else 0
        reward = 0.0
        if low <= number <= high:  # the share of numbers that it rules out, on average
            reward = 1 - ((number - low) ** 2 + (high - number) ** 2) / (high - low + 1) ** 2
            self.low, self.high = (number + 1, high) if number < self.answer else (low, number - 1)
        self.left -= 1
        print(json.dumps({"reward": reward, "won": number == self.answer}), flush=True)
        return self.left > 0 and number != self.answer


def ask(question: str) -> str:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": question}]}
    url, head = os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"]).strip()


if __name__ == "__main__":
    game = Game(int(sys.argv[1]))
    while game.guess(ask(game.question)):
        pass
