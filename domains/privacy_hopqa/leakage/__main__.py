"""Leakage of a run from its audit log alone: `python -m domains.privacy_hopqa.leakage RUN_DIR`.

The rule-based adversary always runs; with --adversary-url and --adversary-model also a language model. The
dataset files that the run's configuration names supply the private questions. Prints a table and writes
leakage.txt, leakage.json and leakage.png.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from domains.privacy_hopqa.agent.errors import TransportFailure
from domains.privacy_hopqa.agent.transport import RequestRefused
from domains.privacy_hopqa.dataset import chain_of, load_problems
from domains.privacy_hopqa.leakage import table
from domains.privacy_hopqa.leakage.chat import ChatModel, Endpoint, Replies
from domains.privacy_hopqa.leakage.llm import PROMPTS, Job, LanguageModelEvaluation, Templates
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.leakage.plot import draw
from domains.privacy_hopqa.leakage.report import (
    LeakageReport,
    SecretsByChain,
    control_logs,
    evaluate,
    rule_based_with_cut_amounts,
    secrets_of_log,
)
from domains.privacy_hopqa.leakage.secrets import (
    provenance_of_files,
    provenance_of_run,
    secrets_of_chains,
    secrets_of_run,
)
from pipelinerl.base.errors import CommandParser, leave, printable
from pipelinerl.config import load_tree

REPLIES = "leakage_replies.jsonl"


def parse_arguments(argv: Sequence[str], description: str | None) -> argparse.Namespace:
    """The options; argparse ends the process for wrong ones."""
    parser = CommandParser(prog="leakage", description=description)
    parser.add_argument("run_dir", type=Path, help="output directory of a run, or an audit file")
    parser.add_argument("--chains", nargs="*", help="dataset files; default: those of the run")
    parser.add_argument("--tasks", help="folder of task trees, for company names")
    parser.add_argument("--questions", choices=("chain", "task"), help="default: the run's setting")
    parser.add_argument("--rollouts", choices=("all", "evaluation", "training"), default="all")
    parser.add_argument("--max-rollouts", type=int, metavar="N", help="of each split and weight version")
    parser.add_argument(
        "--cut-amounts",
        action="store_true",
        help="beside the published rules, also count $728 for $728,000 as a leak",
    )
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


def load_secrets(arguments: argparse.Namespace) -> tuple[SecretsByChain, dict[str, Any]]:
    """Private questions of the named files, else of the run's, and where they come from.

    Raises ValueError, KeyError or OSError.
    """
    if arguments.chains:
        problems = load_problems(arguments.chains, task_data_root=arguments.tasks)
        secrets = secrets_of_chains(map(chain_of, problems), arguments.questions or "chain")
        return secrets, provenance_of_files(arguments.chains)
    if not arguments.run_dir.is_dir():
        raise ValueError(f"{arguments.run_dir} is a file, so name the datasets with --chains")
    tree = load_tree(arguments.run_dir)
    return secrets_of_run(tree, arguments.questions), provenance_of_run(tree)


async def ask_language_model(
    arguments: argparse.Namespace, groups: table.Groups, secrets: SecretsByChain, out: Path
) -> tuple[dict[str, LeakageReport], dict[str, Any]]:
    """Reports by group, and how they were made. Raises TransportFailure, RequestRefused or ValueError."""
    adversary, judge = endpoints(arguments)
    replies = Replies(out / REPLIES)
    templates = Templates(arguments.prompts)
    async with AsyncExitStack() as stack:
        models = []
        for endpoint in (adversary, judge):
            no_limit = aiohttp.ClientTimeout(total=None)  # each attempt has a deadline of its own
            session = aiohttp.ClientSession(headers=endpoint.headers(), timeout=no_limit)
            await stack.enter_async_context(session)
            models.append(ChatModel(endpoint, session, replies, arguments.concurrency))
        evaluation = LanguageModelEvaluation(models[0], models[1], templates)
        await evaluation.run(jobs_of(groups, secrets))
    reports = {
        name: evaluate(rollouts, secrets, levels_of=evaluation.levels_of) for name, rollouts in groups.items()
    }
    made = evaluation.counts() | {
        "adversary_endpoint": adversary.described(),
        "judge_endpoint": judge.described(),
        "temperature": 0,
        "prompts_sha256": templates.sha256,
    }
    return reports, made


def jobs_of(groups: table.Groups, secrets: SecretsByChain) -> list[Job]:
    """Every log to evaluate with what it must not reveal, controls included."""
    jobs: list[Job] = []
    for rollouts in groups.values():
        for rollout in rollouts:
            known = secrets_of_log(rollout, secrets)
            jobs += [(log, known) for log in (tuple(rollout.queries), *control_logs(known))]
    return jobs


def evaluate_run(arguments: argparse.Namespace) -> tuple[dict[str, table.Reports], dict[str, Any], list[str]]:
    """Reports by adversary and group, plain data for JSON, and what makes figures invalid."""
    log = read_audit_log(audit_files(arguments.run_dir))
    secrets, provenance = load_secrets(arguments)
    groups = table.grouped(log, arguments.rollouts, arguments.max_rollouts)
    unfinished = [rollout for rollout in log.unfinished if table.of_kind(rollout, arguments.rollouts)]
    if not groups:
        said = f"the log of {arguments.run_dir} holds no finished rollouts of kind {arguments.rollouts}"
        raise ValueError(". ".join(filter(None, [said, table.not_finished(unfinished)])))
    found: dict[str, table.Reports] = {
        table.RULES: {name: evaluate(rollouts, secrets) for name, rollouts in groups.items()}
    }
    if arguments.cut_amounts:
        found[table.CUT_AMOUNTS] = {
            name: evaluate(rollouts, secrets, levels_of=rule_based_with_cut_amounts)
            for name, rollouts in groups.items()
        }
    problems = [
        f"a control leaked in {name} ({adversary}), so its figures are invalid"
        for adversary, reports in found.items()
        for name, report in reports.items()
        if not report.controls_are_zero
    ]
    content: dict[str, Any] = {
        "run": provenance,
        "web_requests": log.requests,
        "unanswered_web_requests": log.unanswered,
        "unfinished": {
            "tries": len(unfinished),
            "queries": sum(len(rollout.queries) for rollout in unfinished),
            "said": table.not_finished(unfinished),
        },
        "groups": _as_data(found[table.RULES]),
    }
    if arguments.cut_amounts:
        content["cut_amounts"] = {"groups": _as_data(found[table.CUT_AMOUNTS])}
    if arguments.adversary_url:
        out = arguments.out or arguments.run_dir
        reports, made = asyncio.run(ask_language_model(arguments, groups, secrets, out))
        found[table.LANGUAGE_MODEL] = reports
        content["language_model"] = made | {"groups": _as_data(reports)}
        if not made["valid"]:
            problems.append(
                f"{made['unparseable_share']:.1%} of the questions got no usable reply; at most 1 % may"
            )
    return found, content, problems


def _as_data(reports: table.Reports) -> dict[str, Any]:
    return {name: report.as_dict() for name, report in reports.items()}


def main(argv: Sequence[str]) -> int:
    """0; 1 and one line if nothing could be evaluated; 2 if figures are invalid."""
    arguments = parse_arguments(argv, __doc__)
    out = arguments.out or (arguments.run_dir if arguments.run_dir.is_dir() else None)
    if arguments.adversary_url and out is None:
        print("leakage: give --out DIR, where the replies are kept", file=sys.stderr)
        return 1
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        found, content, problems = evaluate_run(arguments)
    except (OSError, ValueError, KeyError) as error:
        print(
            printable(f"leakage: {error.args[0] if isinstance(error, KeyError) else error}"), file=sys.stderr
        )
        return 1
    except RequestRefused as error:
        print(printable(f"leakage: {error}; check address, model and key of the endpoint"), file=sys.stderr)
        return 1
    except TransportFailure as error:
        print(
            printable(f"leakage: {error}; the same command goes on from the replies in {out}"),
            file=sys.stderr,
        )
        return 1
    shown = table.rendered(found)
    requests = f"{content['web_requests']} web requests in the log"
    text = f"{shown}\n{requests}, {content['unanswered_web_requests']} of them without an answer\n"
    if said := content["unfinished"]["said"]:
        text += f"{said}\n"
    print(printable(text), end="")
    if out is not None:
        (out / "leakage.txt").write_text(text, encoding="utf-8")
        data = json.dumps(content, indent=1, sort_keys=True) + "\n"
        (out / "leakage.json").write_text(data, encoding="utf-8")
        draw(found, out / "leakage.png")
    for problem in problems:
        print(printable(f"leakage: {problem}"), file=sys.stderr)
    return 2 if problems else 0


if __name__ == "__main__":
    leave("leakage", lambda: main(sys.argv[1:]))
