"""Serve privacy scores: `python -m domains.privacy_hopqa.scorer --host 127.0.0.1 --port 8710`.

The deterministic rules answer unless a classifier is named: `--model DIR` is a transformers model,
`--classifier package.module.name` any class or function (see `classifiers.py`).
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from domains.privacy_hopqa.scorer.app import ScoringService, build_app
from domains.privacy_hopqa.scorer.classifiers import Classifier, RulesClassifier, load_classifier
from pipelinerl.base.errors import CommandParser, printable
from retrieval_server.limits import DEFAULT_MAX_WAITING, SearchQueue
from retrieval_server.status import exit_status


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Options of the command; argparse ends the process for wrong ones."""
    parser = CommandParser(prog="scorer", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8710)
    parser.add_argument("--workers", type=int, default=2, help="requests scored at a time")
    parser.add_argument("--max-waiting", type=int, default=DEFAULT_MAX_WAITING, help="then 429")
    backing = parser.add_mutually_exclusive_group()
    backing.add_argument("--model", type=Path, metavar="DIR", help="a sequence classifier or a causal model")
    backing.add_argument("--classifier", metavar="PATH", help="package.module.name of a class or function")
    parser.add_argument("--classifier-argument", metavar="TEXT", help="passed to the class")
    parser.add_argument("--prompt", type=Path, metavar="FILE", help="with --model; $company $queries $facts")
    parser.add_argument("--batch-size", type=int, default=8, help="with --model")
    parser.add_argument("--device", help="with --model; default: cuda if there is one, else cpu")
    arguments = parser.parse_args(argv)
    for name in ("workers", "max_waiting", "batch_size"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(arguments, name)} must be at least 1")
    if arguments.model is None and (arguments.prompt or arguments.device):
        parser.error("--prompt and --device go with --model DIR")
    if arguments.classifier is None and arguments.classifier_argument is not None:
        parser.error("--classifier-argument goes with --classifier PATH")
    return arguments


def make_classifier(arguments: argparse.Namespace) -> Classifier:
    """The classifier that the options name. Raises ValueError or OSError with one line."""
    if arguments.classifier:
        return load_classifier(arguments.classifier, arguments.classifier_argument)
    if arguments.model is None:
        return RulesClassifier()
    # Only a model needs torch: the rules start in a fraction of a second without it.
    from domains.privacy_hopqa.scorer.transformer import DEFAULT_PROMPT, TransformerClassifier

    prompt = arguments.prompt or DEFAULT_PROMPT
    return TransformerClassifier(arguments.model, prompt, arguments.batch_size, arguments.device)


def serve(arguments: argparse.Namespace, classifier: Classifier) -> None:
    """Serve until a signal. Raises OSError if the address cannot be bound."""
    queue = SearchQueue(arguments.workers, arguments.max_waiting)
    app = build_app(ScoringService(classifier, queue, arguments.workers))
    logging.info("scoring with %s %s", classifier.name, classifier.version)
    place = {"host": arguments.host, "port": arguments.port}
    web.run_app(app, **place, backlog=1024, shutdown_timeout=5, access_log=None, print=None)


def main(argv: Sequence[str]) -> int:
    """Serve until a signal; one line on standard error if it cannot start, and 2 where no start could."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        arguments = parse_arguments(argv)
        # Loaded before the port is bound: whoever waits for /health waits for the classifier too.
        serve(arguments, make_classifier(arguments))
    except (OSError, ValueError) as error:
        print(printable(f"scorer: {' '.join(str(error).split())}"), file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
