"""Test-time selection: single elimination among sampled answers, with the critic as the judge.

python -m domains.raro.tournament --model DIR --dataset RUN --split test --n 4,8,16 --seeds 0,1,2 --out FILE

Beside it stand what needs no judge (a single sample, the majority) and what no judge can exceed (best of n by
the verifier). A smaller n takes the first answers of a larger one, so that all sizes see the same samples.
Without --base-url an embedded engine serves each model in turn.
"""

import argparse
import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from omegaconf import DictConfig

from domains.math.pool import VerifierPool
from domains.raro.calls import Caller, together
from domains.raro.config import RaroSettings, settings_of
from domains.raro.data import load_problems
from domains.raro.evaluate import is_correct, verifiable
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, Verdict, parse_verdict
from domains.raro.prompts import critic_prompt, ordered, policy_prompt
from domains.raro.rollout import read_answer
from pipelinerl.base.child import wrapped
from pipelinerl.base.errors import CommandParser, leave, printable
from pipelinerl.config import ConfigError, load_tree
from pipelinerl.config.compose import compose
from pipelinerl.engines.errors import EngineError
from pipelinerl.llm import TrainableLLM
from pipelinerl.observe.intervals import bootstrap

Judge = Callable[[str, str], Awaitable[Verdict | None]]
"""(answer 1, answer 2) -> the verdict of one call; None when it cannot be read."""
MEANS = ("single", "majority", "tournament", "best_of_n", "calls")
"""What is reported as a mean over questions."""
DIFFERENCES = (("tournament", "single"), ("tournament", "majority"), ("best_of_n", "tournament"))
ENGINE_START_S = 300.0
Means = dict[str, dict[str, float]]
"""Mean, low and high of a 95 % interval by name."""


async def match(first: str, second: str, votes: int, judge: Judge) -> str:
    """The winner of `votes` (even) calls, half in each order; on equal points or answers the first."""
    if votes < 2 or votes % 2:
        raise ValueError(f"votes={votes}: must be even and at least 2, half of them in each order")
    if first == second:
        return first
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
    """The last answer of a random single-elimination bracket; None without any.

    Every sample enters, also one that says what another says, so that a judge who guesses is right as often
    as a sample is. N distinct answers cost (N - 1) * votes calls, equal ones are not compared; the last of an
    odd round gets a bye.
    """
    bracket = list(answers)
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
    n: int
    single: float
    majority: bool
    tournament: bool
    best_of_n: bool
    calls: int


async def play(
    caller: Caller,
    settings: RaroSettings,
    problem: dict[str, Any],
    sizes: Sequence[int],
    votes: int,
    rng: random.Random,
    pool: VerifierPool,
) -> list[Selection]:
    """Sample answers to one question, select among the readable ones of the first n for each size n."""
    prompt = policy_prompt(settings.prompt_set, problem["task"], problem["question"])
    samples = await together([caller.complete(prompt, settings.policy.max_tokens) for _ in range(max(sizes))])
    read = [None if s.truncated else read_answer(s.text, problem, caller.llm) for s in samples]
    right = {
        answer: await is_correct(problem, answer, pool, settings.short_answers)
        for answer in set(read)
        if answer is not None
    }

    async def judge(first: str, second: str) -> Verdict | None:
        prompt = critic_prompt(settings.prompt_set, problem["question"], first, second)
        found = await caller.complete(prompt, settings.critic.max_tokens)
        return None if found.truncated else parse_verdict(found.text)

    return [await select(str(problem["id"]), read[:n], right, votes, judge, rng) for n in sizes]


async def select(
    question: str,
    read: Sequence[str | None],
    right: Mapping[str, bool],
    votes: int,
    judge: Judge,
    rng: random.Random,
) -> Selection:
    """What each rule picks among the samples, None for one without an answer; `right` knows every answer."""
    answers, calls = [answer for answer in read if answer is not None], 0

    async def counted(first: str, second: str) -> Verdict | None:
        nonlocal calls
        calls += 1
        return await judge(first, second)

    winner = await tournament(answers, votes, counted, rng)
    return Selection(
        id=question,
        n=len(read),
        single=sum(right[answer] for answer in answers) / len(read),
        majority=right.get(majority(answers) or "", False),
        tournament=right.get(winner or "", False),
        best_of_n=any(right[answer] for answer in answers),
        calls=calls,
    )


def columns(selections: Sequence[Selection]) -> dict[str, list[float]]:
    """Each of `MEANS` by question, in the order of the selections."""
    return {name: [float(getattr(one, name)) for one in selections] for name in MEANS}


def summary(runs: Sequence[Mapping[str, Sequence[float]]]) -> Means:
    """Means over questions and runs, and differences of the rules, with 95 % intervals over questions.

    `runs` are `columns` of the same questions; a question counts once, with its mean over the runs.
    """
    if not runs or not runs[0][MEANS[0]]:
        return {}
    by_question = {name: np.mean([run[name] for run in runs], axis=0) for name in MEANS}
    values = by_question | {f"{a} - {b}": by_question[a] - by_question[b] for a, b in DIFFERENCES}
    found = {name: bootstrap(array) for name, array in values.items()}
    return {name: {"mean": one.mean, "low": one.low, "high": one.high} for name, one in found.items()}


def configuration(dataset: str) -> DictConfig:
    """The tree of a run's folder, or of `+domain=raro` with overrides between commas."""
    if dataset and Path(dataset).is_dir():  # `Path("")` is the current folder
        return load_tree(Path(dataset))
    # A comma inside of a value, as of `target=[10,50]`, is followed by no key.
    overrides = [part for part in re.split(r",(?=[+~]*[\w./@-]+=)", dataset.strip(",")) if part]
    return compose(["+domain=raro", *overrides]).tree


@asynccontextmanager
async def served(model: str, args: argparse.Namespace) -> AsyncIterator[str]:
    """Address of an engine: the one that was named, or an embedded one that lives as long as the block."""
    if args.base_url:
        yield args.base_url
        return
    given = [
        "--model",
        model,
        "--port",
        "0",
        "--max-model-len",
        str(args.context),
        "--threads",
        str(args.threads),
    ]
    argv = wrapped([sys.executable, "-m", "pipelinerl.engines.cpu", *given])
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), ENGINE_START_S)).decode()
        if " on http://" not in line:
            raise ValueError(f"the engine of {model} did not start; its own line says why")
        yield line.partition(" on ")[2].split()[0]
    except TimeoutError:
        raise ValueError(
            f"the engine of {model} did not start in {ENGINE_START_S:g} s; give --base-url"
        ) from None
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """All questions of the split, for every model and seed; the report as plain data."""
    cfg = configuration(args.dataset)
    settings = settings_of(cfg)
    args.context = args.context or cfg.engine.max_model_len
    problems = load_problems([args.split], settings.data)[: args.limit or None]
    if not all(map(verifiable, problems)):
        raise ValueError(
            "raro.data: nothing tells which of these answers are right; give questions with results"
        )
    found = []
    for model in args.model:
        async with served(model, args) as address:
            llm = TrainableLLM(
                model_name=model,
                tokenizer_name=model,
                base_url=address,
                parameters={"temperature": cfg.llm.parameters.temperature},
                context_size=args.context,
                collect_logprobs=True,
            )
            llm.load_tokenizer()
            for seed in args.seeds:
                by_size = await played(args, settings, problems, llm, seed)
                found.append({"model": model, "seed": seed, "sizes": by_size})
    sizes = [str(n) for n in args.n]
    return {
        "split": args.split,
        "votes": args.votes,
        "questions": len(problems),
        "table": {n: summary([one["sizes"][n] for one in found]) for n in sizes},
        "by_run": [
            {"model": one["model"], "seed": one["seed"]}
            | {n: {name: value["mean"] for name, value in summary([one["sizes"][n]]).items()} for n in sizes}
            for one in found
        ],
        "runs": found,
    }


async def played(
    args: argparse.Namespace,
    settings: RaroSettings,
    problems: Sequence[dict[str, Any]],
    llm: TrainableLLM,
    seed: int,
) -> dict[str, dict[str, list[float]]]:
    """`columns` by size of one model and seed."""
    slots, pool = asyncio.Semaphore(args.parallel), VerifierPool()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        caller = Caller(llm, session)

        async def one(problem: dict[str, Any]) -> list[Selection]:
            async with slots:
                rng = random.Random(f"{seed}:{problem['id']}")
                return await play(caller, settings, problem, args.n, args.votes, rng, pool)

        with closing(pool):
            selections = await together([one(problem) for problem in problems])
    return {str(n): columns([found[at] for found in selections]) for at, n in enumerate(args.n)}


def numbers(text: str) -> list[int]:
    """`4,8,16` as integers; argparse turns the ValueError into its message."""
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = CommandParser(prog="python -m domains.raro.tournament", description=__doc__)
    found.add_argument(
        "--base-url", help="address of an engine that runs; default: an embedded one is started"
    )
    found.add_argument("--model", required=True, nargs="+", help="folders of models, one with --base-url")
    found.add_argument("--dataset", default="", help="folder of a run, or overrides of +domain=raro: a=1,b=2")
    found.add_argument("--split", default="test")
    found.add_argument("--n", type=numbers, default="4,8,16", help="answers per question, rising")
    found.add_argument("--votes", type=int, default=2, help="critic calls per match, even")
    found.add_argument("--seeds", type=numbers, default="0", help="of the brackets; each samples anew")
    found.add_argument("--limit", type=int, default=0, help="first questions only; 0 = all")
    found.add_argument("--parallel", type=int, default=16, help="questions at a time")
    found.add_argument("--context", type=int, help="the engine's context in tokens; default: of --dataset")
    found.add_argument("--threads", type=int, default=1, help="of an embedded engine")
    found.add_argument("--out", type=Path, help="JSON file: the table, and every question of every seed")
    return found


def wrong(args: argparse.Namespace) -> str | None:
    """What is wrong with the options, in one line."""
    if args.votes < 2 or args.votes % 2:
        return f"--votes {args.votes}: must be even and at least 2, half of them in each order"
    if args.n[0] < 1 or args.n != sorted(set(args.n)):
        return f"--n {','.join(map(str, args.n))}: give rising numbers of answers, from 1 on, such as 4,8,16"
    if args.base_url and len(args.model) > 1:
        return f"--base-url {args.base_url} serves one model; leave it out for {len(args.model)} models"
    if missing := [model for model in args.model if not args.base_url and not Path(model).is_dir()]:
        return f"--model {missing[0]}: no such folder; name one with a model, or give --base-url"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print the table, write the outcomes; exit status 2 for bad input."""
    args = parser().parse_args(argv)
    if problem := wrong(args):
        print(printable(f"tournament: {problem}"), file=sys.stderr)
        return 2
    try:
        result = asyncio.run(run(args))
    except (ConfigError, EngineError, ValueError) as error:
        print(printable(f"tournament: {error}"), file=sys.stderr)
        return 2
    for n, means in result["table"].items():
        for name, one in means.items():
            print(f"n={n:<4}{name:<24}{one['mean']:8.3f} [{one['low']:.3f}, {one['high']:.3f}]")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    leave("tournament", main)
