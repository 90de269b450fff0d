"""Scripted play of both roles for a small model to imitate, on training numbers only.

The policy tries combinations of the numbers step by step and often answers with one that misses the target.
The critic writes out how both answers are evaluated and how far they are from the target, a stand-in for what
pretraining would have taught, and then gives a verdict drawn without looking: what all that says about which
answer is the expert's is left to be learnt.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from fractions import Fraction
from functools import lru_cache

from omegaconf import DictConfig

from domains.raro.config import settings_of
from domains.raro.countdown import multisets, solutions
from domains.raro.data import data_settings
from domains.raro.expressions import Expression, Number, Operation, combine, literals, parse, render
from domains.raro.generator import CountdownSpec, question, split_of
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN, VERDICTS
from domains.raro.prompts import critic_prompt, ordered, policy_prompt
from pipelinerl.bootstrap.demonstrations import Demonstration

PER_SEED = 400
CRITIC_SHARE = 0.45
"""Share of demonstrations that show the critic."""
GIVES_UP = 0.15
"""Probability that a try that missed becomes the answer nevertheless."""
INSIGHT = 0.05
"""Probability that a try is a solution."""
MAX_TRIES = 10
LARGEST_STEP = 200
"""Steps of tries that come out larger are drawn again."""
MAX_DRAWS = 2000
"""Random combinations tried for one that fits."""
FOREIGN_NUMBER = 0.15
"""Share of shown answers that use another number than the given ones."""
UNREADABLE = "?"
"""Result of a step that is no integer."""


def demonstrations(cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
    """Play of one seed; equal arguments give equal play. Both roles come mixed, whatever the phase."""
    settings = settings_of(cfg)
    spec = data_settings(settings.data).countdown
    rng = random.Random(f"raro demonstrations {spec.salt} {seed}")
    for _ in range(PER_SEED):
        numbers, target, solution = _problem(spec, rng)
        text = question(spec, numbers, target)
        if rng.random() < CRITIC_SHARE:
            yield _critic(settings.prompt_set, text, numbers, target, solution, rng)
        else:
            prompt = policy_prompt(settings.prompt_set, text)
            yield _demonstration("policy", prompt.messages, policy_trace(numbers, target, solution, rng))


def _demonstration(kind: str, messages: list[dict[str, str]], completion: str) -> Demonstration:
    if len(messages) != 1:
        raise ValueError("demonstrations have no system prompt; set raro.prompt_set=tiny")
    return Demonstration(kind, messages[0]["content"], completion, exact=False)


@lru_cache(maxsize=4)
def _training_numbers(spec_json: str) -> list[tuple[int, ...]]:
    spec = CountdownSpec.model_validate_json(spec_json)
    rows = multisets(spec.n_numbers, *spec.number_range).tolist()
    return [tuple(row) for row in rows if split_of(spec, row) == "train"]


def _problem(spec: CountdownSpec, rng: random.Random) -> tuple[tuple[int, ...], int, str]:
    """(numbers, target, a solution) of a random solvable training question."""
    candidates = _training_numbers(spec.model_dump_json())
    while True:
        numbers, target = rng.choice(candidates), rng.choice(spec.targets)
        if found := solutions(numbers, target, spec.integer_only):
            return numbers, target, rng.choice(found)


def policy_trace(numbers: tuple[int, ...], target: int, solution: str, rng: random.Random) -> str:
    """Random tries until one hits the target or the player gives up; the last one is the answer.

    Tries are not steered away from the target, or the model would learn to miss it.
    """
    tries: list[Expression] = []
    seen: set[Fraction] = set()
    while len(tries) < MAX_TRIES:
        if rng.random() < INSIGHT:
            tree, result = parse(solution), Fraction(target)
        else:
            tree, result = random_expression(numbers, seen, rng)
        tries.append(tree)
        seen.add(result)  # a value that was tried is not tried again
        if result == target or rng.random() < GIVES_UP:
            break
    steps = "".join(f"{evaluation(tree)};" for tree in tries)
    return f"{steps}{ANSWER_OPEN}{render(tries[-1])}{ANSWER_CLOSE}"


def _critic(
    prompt_set: str, text: str, numbers: tuple[int, ...], target: int, solution: str, rng: random.Random
) -> Demonstration:
    shown = shown_answer(numbers, solution, rng)
    answers = ordered(solution, render(shown), rng.choice((1, 2)))
    prompt = critic_prompt(prompt_set, text, *answers)
    lines = [critic_line(parse(answer), target) for answer in answers]
    return _demonstration("critic", prompt.messages, "\n".join([*lines, rng.choice(VERDICTS)]))


def shown_answer(numbers: tuple[int, ...], solution: str, rng: random.Random) -> Expression:
    """An answer a model could have given: mostly some expression, sometimes with a foreign number."""
    used = list(numbers)
    if rng.random() < FOREIGN_NUMBER:
        used[rng.randrange(len(used))] = rng.randint(1, max(numbers))
    return parse(solution) if rng.random() < 0.25 else random_expression(tuple(used), (), rng)[0]


def random_expression(
    numbers: tuple[int, ...], missed: Collection[Fraction], rng: random.Random
) -> tuple[Expression, Fraction]:
    """A random way to combine all numbers with moderate integer steps, and its value, none of `missed`.

    After MAX_DRAWS draws the last one is taken whatever its value: few numbers give few values.
    """
    for draw in range(MAX_DRAWS):
        found = _combined(numbers, rng)
        if found is not None and (found[1] not in missed or draw > MAX_DRAWS // 2):
            return found
    raise ValueError(f"no moderate integer steps combine {numbers}")


def _combined(numbers: tuple[int, ...], rng: random.Random) -> tuple[Expression, Fraction] | None:
    parts: list[tuple[Expression, Fraction]] = [(Number(n), Fraction(n)) for n in numbers]
    while len(parts) > 1:
        (a, x), (b, y) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        op = rng.choice("+-*/") if rng.random() < 0.7 else "+-"[rng.random() < 0.5]
        result = combine(op, x, y)
        if result is None or result.denominator != 1 or not 0 <= result <= LARGEST_STEP:
            return None
        parts.append((Operation(op, a, b), result))
    return parts[0]


def critic_line(tree: Expression, target: int) -> str:
    """The numbers an answer uses, sorted, its evaluation, and the distance of its value to the target."""
    steps: list[str] = []
    result = _evaluate(parse(render(tree)), steps)
    if result is not None:
        steps.append(f"{result}-{target}={result - target}")
    return f"{' '.join(map(str, sorted(literals(tree))))}:{','.join(steps)}"


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
