"""Options of `python -m domains.privacy_hopqa.leakage`, and the two endpoints that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from domains.privacy_hopqa.leakage.chat import Endpoint
from domains.privacy_hopqa.leakage.llm import PROMPTS


def parse_arguments(argv: Sequence[str], description: str | None) -> argparse.Namespace:
    """The options; argparse ends the process for wrong ones."""
    parser = argparse.ArgumentParser(prog="leakage", description=description)
    parser.add_argument("run_dir", type=Path, help="output directory of a run, or an audit file")
    parser.add_argument("--chains", nargs="*", help="dataset files; default: those of the run")
    parser.add_argument("--tasks", help="folder of task trees, for company names")
    parser.add_argument("--questions", choices=("chain", "task"), help="default: the run's setting")
    parser.add_argument("--rollouts", choices=("all", "evaluation", "training"), default="all")
    parser.add_argument("--max-rollouts", type=int, metavar="N", help="of each split and weight version")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for the results; default: the run's folder")
    model = parser.add_argument_group(
        "language-model adversary",
        "queries, private questions and answers are sent to these addresses and nowhere else",
    )
    model.add_argument("--adversary-url", metavar="URL", help="an OpenAI-compatible endpoint")
    model.add_argument("--adversary-model", metavar="NAME")
    model.add_argument("--judge-url", metavar="URL", help="default: the adversary's")
    model.add_argument("--judge-model", metavar="NAME", help="default: the adversary's")
    model.add_argument("--api-key-env", metavar="VAR", help="environment variable with the adversary's key")
    model.add_argument(
        "--judge-api-key-env", metavar="VAR", help="default: --api-key-env, if there is no --judge-url"
    )
    model.add_argument("--prompts", type=Path, default=PROMPTS, metavar="DIR", help="six template files")
    model.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests at a time")
    model.add_argument("--timeout-s", type=float, default=120.0, metavar="S", help="of one attempt")
    model.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="of one reply")
    arguments = parser.parse_args(argv)
    for name in ("max_rollouts", "concurrency", "timeout_s", "max_tokens"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value} must be positive")
    if (arguments.adversary_url is None) != (arguments.adversary_model is None):
        parser.error("--adversary-url and --adversary-model go together")
    if arguments.adversary_url is None and (arguments.judge_url or arguments.judge_model):
        parser.error("--judge-url and --judge-model go with --adversary-url")
    return arguments


def endpoints(arguments: argparse.Namespace) -> tuple[Endpoint, Endpoint]:
    """Adversary and judge."""
    common = {"timeout_s": arguments.timeout_s, "max_tokens": arguments.max_tokens}
    adversary = Endpoint(arguments.adversary_url, arguments.adversary_model, arguments.api_key_env, **common)
    # The adversary's key is the adversary's server's: another address never gets it unasked.
    shared_key = arguments.api_key_env if arguments.judge_url is None else None
    judge = Endpoint(
        arguments.judge_url or adversary.url,
        arguments.judge_model or adversary.model,
        arguments.judge_api_key_env or shared_key,
        **common,
    )
    return adversary, judge
