"""Test-time selection: single elimination among sampled answers, with the critic as the judge.

python -m domains.raro.tournament --base-url URL --model DIR --dataset RUN --split test --n 8 --votes 2
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.math.pool import VerifierPool
from domains.raro.calls import Caller, together
from domains.raro.config import RaroSettings, settings_of
from domains.raro.data import load_problems
from domains.raro.evaluate import is_correct, verifiable
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, Verdict, parse_verdict
from domains.raro.prompts import critic_prompt, ordered, policy_prompt
from domains.raro.rollout import read_answer
from pipelinerl.base.errors import CommandParser, printable
from pipelinerl.config import ConfigError, load_tree
from pipelinerl.config.compose import compose
from pipelinerl.engines.errors import EngineError
from pipelinerl.llm import TrainableLLM

Judge = Callable[[str, str], Awaitable[Verdict | None]]
"""(answer 1, answer 2) -> the verdict of one call; None when it cannot be read."""
MEANS = ("single", "majority", "tournament", "best_of_n", "calls")
"""What is reported as a mean over questions."""


async def match(first: str, second: str, votes: int, judge: Judge) -> str:
    """The winner of `votes` (even) calls, half in each order; on equal points the first one."""
    if votes < 2 or votes % 2:
        raise ValueError(f"votes={votes}: must be even and at least 2, half of them in each order")
    points = {0: 0.0, 1: 0.0}
    for vote in range(votes):
        position = 1 + vote % 2
        verdict = await judge(*ordered(first, second, position))
        if verdict == TIE:
            points[0] += 0.5
            points[1] += 0.5
        elif verdict is not None:
            chosen = {ANSWER_1: 1, ANSWER_2: 2}[verdict]
            points[0 if chosen == position else 1] += 1.0
    return first if points[0] >= points[1] else second


async def tournament(answers: Sequence[str], votes: int, judge: Judge, rng: random.Random) -> str | None:
    """The last answer of a random single-elimination bracket; identical answers enter once, None without any.

    N distinct answers cost (N - 1) * votes calls; the last of an odd round gets a bye.
    """
    bracket = list(dict.fromkeys(answers))
    rng.shuffle(bracket)
    while len(bracket) > 1:
        pairs = list(zip(bracket[::2], bracket[1::2]))
        winners = await together([match(first, second, votes, judge) for first, second in pairs])
        bracket = winners + bracket[2 * len(pairs) :]
    return bracket[0] if bracket else None


def majority(answers: Sequence[str]) -> str | None:
    """The most frequent answer, the earliest among equals."""
    return Counter(answers).most_common(1)[0][0] if answers else None


@dataclass(frozen=True, slots=True)
class Selection:
    """One question: share of correct samples (answerless ones are wrong), and what each rule picked."""

    id: str
    single: float
    majority: bool
    tournament: bool
    best_of_n: bool
    calls: int


async def play(
    caller: Caller,
    settings: RaroSettings,
    problem: dict[str, Any],
    n: int,
    votes: int,
    rng: random.Random,
    pool: VerifierPool,
) -> Selection:
    """Sample n answers to one question, select among the readable ones, and check."""
    prompt, calls = policy_prompt(settings.prompt_set, problem["task"], problem["question"]), 0
    samples = await together([caller.complete(prompt, settings.policy.max_tokens) for _ in range(n)])
    read = [None if s.truncated else read_answer(s.text, problem, caller.llm) for s in samples]
    answers = [answer for answer in read if answer is not None]

    async def judge(first: str, second: str) -> Verdict | None:
        nonlocal calls
        calls += 1
        prompt = critic_prompt(settings.prompt_set, problem["question"], first, second)
        found = await caller.complete(prompt, settings.critic.max_tokens)
        return None if found.truncated else parse_verdict(found.text)

    winner = await tournament(answers, votes, judge, rng)
    right = {
        answer: await is_correct(problem, answer, pool, settings.short_answers) for answer in set(answers)
    }
    return Selection(
        id=str(problem["id"]),
        single=sum(right[answer] for answer in answers) / n,
        majority=right.get(majority(answers) or "", False),
        tournament=right.get(winner or "", False),
        best_of_n=any(right.values()),
        calls=calls,
    )


def summary(selections: Sequence[Selection]) -> dict[str, float]:
    """Means over questions."""
    if not selections:
        return {}
    return {name: sum(float(getattr(s, name)) for s in selections) / len(selections) for name in MEANS}


def configuration(dataset: str) -> DictConfig:
    """The tree of a run's folder, or of `+domain=raro` with the overrides written after commas."""
    if Path(dataset).is_dir():
        return load_tree(Path(dataset))
    overrides = [part for part in dataset.split(",") if part]
    return compose(["+domain=raro", *overrides]).tree


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """All questions of the split; the report as plain data."""
    cfg = configuration(args.dataset)
    settings = settings_of(cfg)
    problems = load_problems([args.split], settings.data)[: args.limit or None]
    if not all(map(verifiable, problems)):
        raise ValueError(
            "raro.data: nothing tells which of these answers are right; give questions with results"
        )
    llm = TrainableLLM(
        model_name=args.model,
        tokenizer_name=args.model,
        base_url=args.base_url,
        parameters={"temperature": cfg.llm.parameters.temperature},
        context_size=args.context,
        collect_logprobs=True,
    )
    llm.load_tokenizer()
    slots, pool = asyncio.Semaphore(args.parallel), VerifierPool()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        caller = Caller(llm, session)

        async def one(problem: dict[str, Any]) -> Selection:
            async with slots:
                rng = random.Random(f"{args.seed}:{problem['id']}")
                return await play(caller, settings, problem, args.n, args.votes, rng, pool)

        with closing(pool):
            selections = await together([one(problem) for problem in problems])
    return {
        "model": args.model,
        "split": args.split,
        "n": args.n,
        "votes": args.votes,
        "seed": args.seed,
        "questions": len(selections),
        **summary(selections),
        "outcomes": [asdict(selection) for selection in selections],
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = CommandParser(prog="python -m domains.raro.tournament", description=__doc__)
    found.add_argument("--base-url", required=True, help="address of an engine")
    found.add_argument("--model", required=True, help="folder of the model that the engine serves")
    found.add_argument("--dataset", default="", help="folder of a run, or overrides of +domain=raro: a=1,b=2")
    found.add_argument("--split", default="test")
    found.add_argument("--n", type=int, default=8, help="answers per question")
    found.add_argument("--votes", type=int, default=2, help="critic calls per match, even")
    found.add_argument("--seed", type=int, default=0, help="of the brackets")
    found.add_argument("--limit", type=int, default=0, help="first questions only; 0 = all")
    found.add_argument("--parallel", type=int, default=16, help="questions at a time")
    found.add_argument("--context", type=int, default=256, help="the engine's context in tokens")
    found.add_argument("--out", type=Path, help="JSON file for the outcomes")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print the means, write the outcomes; exit status 2 for bad input."""
    args = parser().parse_args(argv)
    if args.n < 1 or args.votes < 2 or args.votes % 2:
        print(f"tournament: --n {args.n} --votes {args.votes}: n >= 1, votes even and >= 2", file=sys.stderr)
        return 2
    try:
        result = asyncio.run(run(args))
    except (ConfigError, EngineError, ValueError) as error:
        print(printable(f"tournament: {error}"), file=sys.stderr)
        return 2
    for name in MEANS:
        print(f"{name:<12}{result.get(name, 0.0):8.3f}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
