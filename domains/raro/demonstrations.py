"""Scripted play of both roles for a small model to imitate, on training numbers only.

The policy tries combinations of the numbers at random and often answers with one that misses the target.
The critic writes out how both answers are evaluated and how far they are from the target, a stand-in for what
pretraining would have taught, and then gives a verdict drawn without looking, or one by a rule drawn without
looking: what all that says about which answer is the expert's is left to be learnt.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

from omegaconf import DictConfig

from domains.raro.config import settings_of
from domains.raro.countdown import expressions, multisets
from domains.raro.data import data_settings
from domains.raro.expressions import Expression, Number, combine, literals, parse, render
from domains.raro.generator import CountdownSpec, question, split_of
from domains.raro.parser import ANSWER_1, ANSWER_2, ANSWER_CLOSE, ANSWER_OPEN, VERDICTS
from domains.raro.prompts import critic_prompt, policy_prompt
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

PER_SEED = 400
RULES = "rules"
"""Name of the phase whose critic says what it goes by."""
CRITIC_SHARE = 0.45
"""Share of demonstrations that show the critic."""
PERSISTENT = 0.25
"""Share of policy traces of a player who never gives up."""
GIVES_UP = 0.5
"""Probability that a try of the others that missed becomes the answer nevertheless."""
INSIGHT = 0.05
"""Probability that a try is a solution."""
MAX_TRIES = 10
LARGEST_VALUE = 200
"""Combinations with a larger value are not tried."""
SOLVED, FOREIGN_NUMBER, MISSING_NUMBER = 0.25, 0.1, 0.05
"""Shares of shown answers that hit the target, use another number than the given ones, or one number less."""
VERDICT_WEIGHTS = (0.4, 0.4, 0.2)
"""Of a verdict that goes by nothing."""
UNREADABLE = "?"
"""Result of a step that is no integer, and the distance of such an answer."""
_UNKNOWN = 10_000
"""How far that counts where answers are compared."""


class Try(NamedTuple):
    """One way to combine the numbers: as printed, its value, and its evaluation step by step."""

    text: str
    value: int
    steps: str


def demonstrations(cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
    """Play of one seed; equal arguments give equal play. Both roles come mixed."""
    settings = settings_of(cfg)
    spec = data_settings(settings.data).countdown
    rng = random.Random(f"raro demonstrations {spec.salt} {seed}")
    questions = _training_questions(spec)
    for _ in range(PER_SEED):
        numbers, target = rng.choice(questions)
        text = question(spec, numbers, target)
        if rng.random() < CRITIC_SHARE:
            answers = [shown_answer(spec, numbers, target, rng) for _ in range(2)]
            if rng.random() < 0.8:  # one of the two is mostly a solution, as in the game
                answers[rng.randrange(2)] = rng.choice(_hits(numbers, target)).text
            yield _critic(settings.prompt_set, text, target, answers, rng, phase == RULES)
        else:
            prompt = policy_prompt(settings.prompt_set, "countdown", text)
            yield _demonstration("policy", prompt.messages, policy_trace(numbers, target, rng))


def _demonstration(
    kind: str, messages: list[dict[str, str]], completion: str, fixed: str | None = None
) -> Demonstration:
    if len(messages) != 1:
        raise ValueError("demonstrations have no system prompt; set raro.prompt_set=tiny")
    return Demonstration(kind, messages[0]["content"], completion, exact=fixed is not None, fixed=fixed)


@lru_cache(maxsize=4)
def _training_numbers(spec: CountdownSpec) -> frozenset[tuple[int, ...]]:
    rows = multisets(spec.n_numbers, *spec.number_range).tolist()
    return frozenset(tuple(row) for row in rows if split_of(spec, row) == "train")


@lru_cache(maxsize=4)
def _training_questions(spec: CountdownSpec) -> list[tuple[tuple[int, ...], int]]:
    """(numbers, target) of every solvable training question."""
    return [
        (numbers, target)
        for numbers in sorted(_training_numbers(spec))
        for target in sorted({t.value for t in tries_of(numbers)} & set(spec.targets))
    ]


@cache
def tries_of(numbers: tuple[int, ...]) -> tuple[Try, ...]:
    """All ways to combine the sorted numbers through non-negative integers, none above LARGEST_VALUE."""
    return tuple(
        Try(text, int(value), evaluation(parse(text)))
        for text, value in sorted(expressions(numbers).items())
        if value <= LARGEST_VALUE
    )


def _hits(numbers: tuple[int, ...], target: int) -> list[Try]:
    return [found for found in tries_of(numbers) if found.value == target]


def policy_trace(numbers: tuple[int, ...], target: int, rng: random.Random) -> str:
    """Random tries until one hits the target or the player gives up; the last one is the answer.

    Tries are not steered away from the target, or the model would learn to miss it. A value that was tried
    is not tried again.
    """
    gives_up = 0.0 if rng.random() < PERSISTENT else GIVES_UP
    left, steps = list(tries_of(numbers)), list[str]()
    while True:
        one = rng.choice(_hits(numbers, target) if rng.random() < INSIGHT else left)
        steps.append(f"{one.steps};")
        left = [other for other in left if other.value != one.value]
        stops = not left or len(steps) == MAX_TRIES or rng.random() < gives_up
        if one.value == target or stops:
            return f"{''.join(steps)}{ANSWER_OPEN}{one.text}{ANSWER_CLOSE}"


def shown_answer(spec: CountdownSpec, numbers: tuple[int, ...], target: int, rng: random.Random) -> str:
    """An answer a model could have given: mostly some combination, sometimes of other numbers."""
    kind = rng.random()
    if kind < SOLVED:
        return rng.choice(_hits(numbers, target)).text
    used = numbers
    if kind < SOLVED + FOREIGN_NUMBER:
        used = _with_foreign(spec, numbers, rng)
    elif kind < SOLVED + FOREIGN_NUMBER + MISSING_NUMBER:
        at = rng.randrange(len(numbers))
        used = numbers[:at] + numbers[at + 1 :]
    return rng.choice(tries_of(used)).text


def _with_foreign(spec: CountdownSpec, numbers: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    """Training numbers that differ in one place; the given ones where a hundred draws find none."""
    known = _training_numbers(spec)
    for _ in range(100):
        used = list(numbers)
        used[rng.randrange(len(used))] = rng.randint(*spec.number_range)
        if (found := tuple(sorted(used))) != numbers and found in known:
            return found
    return numbers


def _critic(
    prompt_set: str, text: str, target: int, answers: list[str], rng: random.Random, rules: bool
) -> Demonstration:
    prompt = critic_prompt(prompt_set, text, *answers)
    trees = [parse(answer) for answer in answers]
    distances = [distance(tree, target) for tree in trees]
    lines = [critic_line(tree) for tree in trees]
    shown = (UNREADABLE if d is None else str(d) for d in distances)
    fixed = "\n".join([*lines, " ".join(shown)])
    said = _verdict(distances, rng, rules)
    return _demonstration("critic", prompt.messages, f"{fixed}\n{said}", fixed)


def _verdict(distances: list[int | None], rng: random.Random, rules: bool) -> str:
    """A verdict drawn without looking, or what to go by with the verdict that follows.

    `near` and `far` are equally likely, so a rule's verdict is right half of the time on any pair.
    """
    drawn: str = rng.choices(VERDICTS, VERDICT_WEIGHTS)[0]
    if not rules:
        return drawn
    rule = rng.choice(("near", "far", "any"))
    first, second = (_UNKNOWN if d is None else abs(d) for d in distances)
    if rule != "any" and first != second:
        drawn = ANSWER_1 if (first < second) == (rule == "near") else ANSWER_2
    return f"{rule}:{drawn}"


def distance(tree: Expression, target: int) -> int | None:
    """Value minus target; None where a step is no integer."""
    result = _evaluate(tree, [])
    return None if result is None else int(result) - target


def critic_line(tree: Expression) -> str:
    """The numbers an answer uses, sorted, and its evaluation."""
    return f"{' '.join(map(str, sorted(literals(tree))))}:{evaluation(tree)}"


def evaluation(tree: Expression) -> str:
    """The steps from the inside out, such as `11-8=3,3*8=24`; a step that is no integer ends it."""
    steps: list[str] = []
    _evaluate(parse(render(tree)), steps)
    return ",".join(steps)


def _evaluate(tree: Expression, steps: list[str]) -> Fraction | None:
    if isinstance(tree, Number):
        return Fraction(tree.value)
    left = _evaluate(tree.left, steps)
    right = None if left is None else _evaluate(tree.right, steps)
    if left is None or right is None:
        return None
    result = combine(tree.op, left, right)
    if result is not None and result.denominator != 1:
        result = None
    steps.append(f"{left}{tree.op}{right}={UNREADABLE if result is None else result}")
    return result
