"""Guesses a number with any OpenAI-compatible model; it knows nothing of training, and needs no package."""

import json
import os
import sys
import urllib.request


def ask(question: str) -> str:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": question}]}
    url, head = os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"]).strip()


answer, low, high, rewards, guess = int(sys.argv[1]), 1, 100, [], 0
while len(rewards) < 8 and guess != answer:
    above, below = (
        f", higher than {low - 1}" if low > 1 else "",
        f", lower than {high + 1}" if high < 100 else "",
    )
    said = ask(f"guess 1-100{above}{below}")
    guess = int(said) if said.isdecimal() and len(said) < 9 else 0
    rewards.append(0.0)
    if low <= guess <= high:  # the share of numbers that it rules out, on average
        rewards[-1] = 1 - ((guess - low) ** 2 + (high - guess) ** 2) / (high - low + 1) ** 2
        low, high = (guess + 1, high) if guess < answer else (low, guess - 1)
print(json.dumps({"rewards": rewards, "won": guess == answer}))
