"""Chained arithmetic as a game of RARO: questions, and scripted play of both roles in the `full` prompts.

`benchmarks.gpu.raro` trains a pretrained model on it. A question is a chain such as `7 - 2 * 3 + 5 * 4`; its
expert answer is the bare result. Scripted players know how to carry out a step, but most of the policy's go
from left to right or take any step, and write `7 - 2 = 5` first. The critic's work out a result with more
care, say which answers agree with it, and then go with their result or against it, equally often, or guess.
No verdict comes from a verifier, and a committed one is right half of the time: that agreement pays, and that
care does, is left to be learnt from expert answers alone.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from domains.raro.demonstrations import CRITIC_SHARE, VERDICT_WEIGHTS
from domains.raro.parser import ANSWER_1, ANSWER_2, ANSWER_CLOSE, ANSWER_OPEN, VERDICTS
from domains.raro.prompts import critic_prompt, ordered, policy_prompt
from pipelinerl.llm import Prompt

NUMBERS = range(2, 10)
OPERATORS = 4
MOST_PRODUCTS = 2
LARGEST = 200
"""Of the right result; the smallest is 0."""
MOST_CERTAIN = 0.35
"""A chain that random orders get right more often is no question."""
PLAYERS = {"policy": (0.25, 0.375, 0.375), "critic": (0.8, 0.1, 0.1)}
"""Shares of players who take the right step, the leftmost one, and any that is left. Most of the policy's go
from left to right at first, so that its likeliest answers are wrong, too. The critic's are careful: checking
is the easier part of the game, and a critic that is right as rarely as the policy learns that ties pay before
it learns anything about answers."""
DRAWS = 2_000
"""Of chains, for each question."""
SHARES = {"test": 0.1, "val": 0.05}
"""Of the hash space; training questions have the rest."""
CARRY_OUT = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
AGREEMENT = {True: "agrees", False: "disagrees"}
RULES = {"with": "I go with my result.", "against": "I go against my result.", "guess": "I guess."}
RULE_WEIGHTS = (0.4, 0.4, 0.2)
"""Where one answer agrees and the other does not; elsewhere it is a guess."""

Chain = tuple[tuple[int, ...], tuple[str, ...]]
"""Numbers, and the operators between them."""


@dataclass(frozen=True, slots=True)
class Play:
    """One call of a scripted player."""

    role: str
    prompt: Prompt
    completion: str


def written(chain: Chain) -> str:
    """The chain as it is read."""
    numbers, operators = chain
    return " ".join([str(numbers[0]), *(f"{o} {n}" for o, n in zip(operators, numbers[1:]))])


def question(chain: Chain) -> str:
    """The question's text."""
    return f"What is {written(chain)}?"


def step(chain: Chain, at: int) -> tuple[str, Chain]:
    """The operator at this place carried out: the step as it is written, and what is left."""
    numbers, operators = chain
    left, right, operator = numbers[at], numbers[at + 1], operators[at]
    result = CARRY_OUT[operator](left, right)
    rest = (*numbers[:at], result, *numbers[at + 2 :]), (*operators[:at], *operators[at + 1 :])
    return f"{left} {operator} {right} = {result}", rest


def next_step(operators: tuple[str, ...]) -> int:
    """The place that is next: the first product, otherwise the first operator."""
    return operators.index("*") if "*" in operators else 0


def result_of(chain: Chain) -> int:
    """The right result."""
    while chain[1]:
        _, chain = step(chain, next_step(chain[1]))
    return chain[0][0]


def from_left(chain: Chain) -> int:
    """The result of a player who goes from left to right."""
    while chain[1]:
        _, chain = step(chain, 0)
    return chain[0][0]


def by_chance(chain: Chain) -> dict[int, float]:
    """Results of steps in a uniformly random order, with their probabilities."""
    numbers, operators = chain
    if not operators:
        return {numbers[0]: 1.0}
    found: dict[int, float] = {}
    for at in range(len(operators)):
        for result, share in by_chance(step(chain, at)[1]).items():
            found[result] = found.get(result, 0.0) + share / len(operators)
    return found


def split_of(chain: Chain) -> str:
    """The split of a chain by its hash alone."""
    digest = blake2b(f"raro arithmetic {written(chain)}".encode(), digest_size=8).digest()
    place = int.from_bytes(digest) / 2**64
    for split, share in SHARES.items():
        place -= share
        if place < 0:
            return split
    return "train"


def is_question(chain: Chain) -> bool:
    """Whether going from left to right is wrong, and the right result small and seldom met by chance."""
    operators, result = chain[1], result_of(chain)
    if not 1 <= operators.count("*") <= MOST_PRODUCTS or not 0 <= result <= LARGEST:
        return False
    return from_left(chain) != result and by_chance(chain)[result] <= MOST_CERTAIN


@lru_cache(maxsize=8)
def chains(split: str, count: int) -> tuple[Chain, ...]:
    """The first so many different questions of a split; a larger number only adds questions.

    Raises ValueError if DRAWS for each have not found them.
    """
    rng, found = random.Random(f"raro arithmetic {split}"), dict[Chain, None]()
    for _ in range(count * DRAWS):
        if len(found) == count:
            return tuple(found)
        chain = (
            tuple(rng.choice(NUMBERS) for _ in range(OPERATORS + 1)),
            tuple(rng.choice("+-*") for _ in range(OPERATORS)),
        )
        if split_of(chain) == split and is_question(chain):
            found[chain] = None
    raise ValueError(f"{count} different questions of the split {split} were not found, only {len(found)}")


def write_files(folder: Path, sizes: dict[str, int]) -> dict[str, Path]:
    """Questions with expert answers as JSON lines, one file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"{split}.jsonl" for split in sizes}
    for split, path in files.items():
        rows = (
            {"id": written(chain), "question": question(chain), "expert_answer": str(result_of(chain))}
            for chain in chains(split, sizes[split])
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def worked_out(chain: Chain, rng: random.Random, role: str = "policy") -> tuple[list[str], int]:
    """Steps and result of a player of this role."""
    lines, player = list[str](), rng.choices(("careful", "left", "any"), PLAYERS[role])[0]
    while chain[1]:
        at = {"careful": next_step(chain[1]), "left": 0, "any": rng.randrange(len(chain[1]))}[player]
        line, chain = step(chain, at)
        lines.append(line)
    return lines, chain[0][0]


def demonstrations(seed: int, count: int, questions: int) -> Iterator[Play]:
    """Play of both roles, mixed, on the first so many training questions; equal arguments, equal play."""
    rng = random.Random(f"raro arithmetic play {seed}")
    known = chains("train", questions)
    for _ in range(count):
        chain = rng.choice(known)
        if rng.random() < CRITIC_SHARE:
            yield _critic(chain, rng)
        else:
            lines, result = worked_out(chain, rng)
            said = "\n".join([*lines, f"{ANSWER_OPEN}{result}{ANSWER_CLOSE}"])
            yield Play("policy", policy_prompt("full", "text", question(chain)), said)


def says_truly(critic: str) -> bool:
    """Whether a critic's completion is right about which of the answers equal its own result."""
    own = re.search(r"I get (\S+)\. ", critic)
    said = re.findall(r"Answer \d, (\S+), (agrees|disagrees)\.", critic)
    return own is not None and len(said) == 2 and all(AGREEMENT[one == own[1]] == yes for one, yes in said)


def _critic(chain: Chain, rng: random.Random) -> Play:
    """A pair as in the game, the expert's answer and a player's, and a verdict that knows of neither."""
    shown = ordered(str(result_of(chain)), str(worked_out(chain, rng)[1]), rng.choice((1, 2)))
    lines, result = worked_out(chain, rng, "critic")
    agree = [answer == str(result) for answer in shown]
    said = [
        f"Answer {place}, {answer}, {AGREEMENT[yes]}."
        for place, answer, yes in zip((1, 2), shown, agree, strict=True)
    ]
    rule = rng.choices(list(RULES), RULE_WEIGHTS)[0] if agree[0] != agree[1] else "guess"
    verdict: str = rng.choices(VERDICTS, VERDICT_WEIGHTS)[0]
    if rule != "guess":
        verdict = ANSWER_1 if agree[0] == (rule == "with") else ANSWER_2
    text = "\n".join([*lines, f"I get {result}. {said[0]} {said[1]}", RULES[rule], verdict])
    return Play("critic", critic_prompt("full", question(chain), *shown), text)
