"""The HTTP face of a classifier, for the command: `POST /score` and `GET /health`, errors as JSON objects.

Classifiers run in worker threads, so the event loop only parses and forwards. Nothing that a request holds is
ever logged: queries, questions and answers are private.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from domains.privacy_hopqa.scorer.classifiers import Classifier
from domains.privacy_hopqa.scorer.protocol import (
    MAX_BODY_BYTES,
    ClassifierError,
    Example,
    checked_probabilities,
    parse_request,
)
from pipelinerl.base.malformed import UNCOMPRESSED, log_one_line
from retrieval_server.http_errors import Handler, answered, read_body
from retrieval_server.limits import RequestError, SearchQueue

logger = logging.getLogger(__name__)

ROUTE = "/score"


class ScoringService:
    """State of one server: the classifier, the queue and the counters."""

    def __init__(self, classifier: Classifier, queue: SearchQueue | None = None, workers: int = 2) -> None:
        self.classifier = classifier
        self.queue = queue or SearchQueue(workers)
        self.received = 0
        self.statuses: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="score")
        self._started = time.monotonic()

    async def health(self, _: web.Request) -> web.Response:
        """`GET /health`: the classifier, and requests by status."""
        return web.json_response(
            {
                "status": "ok",
                "scorer": self.classifier.name,
                "version": self.classifier.version,
                "uptime_s": round(time.monotonic() - self._started, 3),
                "waiting": self.queue.waiting,
                "requests": {ROUTE: {"received": self.received, "by_status": dict(self.statuses)}},
            }
        )

    async def score(self, request: web.Request) -> web.Response:
        """`POST /score`: exactly one probability per example, in the order of the request."""
        examples = parse_request(await read_body(request, MAX_BODY_BYTES))
        async with self.queue.slot():
            work = asyncio.get_running_loop().run_in_executor(
                self._threads, scored, self.classifier, examples
            )
            try:
                body = await work
            except ClassifierError as error:
                logger.error("%s", error)
                raise RequestError(500, "bad_classifier", str(error)) from error
        return web.Response(body=body, content_type="application/json")

    @web.middleware
    async def errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the request and turn every failure into `{"error": {"code", "message"}}`."""
        counted = request.path == ROUTE
        self.received += counted
        response = await answered(request, handler, f"/health or {ROUTE}", MAX_BODY_BYTES)
        if counted:
            self.statuses[str(response.status)] += 1
        return response

    async def close(self, _: web.Application) -> None:
        """Give the worker threads back."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def scored(classifier: Classifier, examples: list[Example]) -> bytes:
    """The encoded answer. Examples without queries or facts score 0 without the classifier.

    Raises ClassifierError if the classifier's values are no probabilities.
    """
    asked = [example for example in examples if not example.is_trivial]
    values = checked_probabilities(classifier.score(asked), len(asked)) if asked else []
    by_id = {example.id: value for example, value in zip(asked, values, strict=True)}
    scores = [{"id": example.id, "prob_yes": by_id.get(example.id, 0.0)} for example in examples]
    return json.dumps({"scores": scores, "scorer": classifier.name, "version": classifier.version}).encode()


def build_app(service: ScoringService) -> web.Application:
    """The aiohttp application around a service."""
    app = web.Application(
        middlewares=[service.errors_as_json], client_max_size=MAX_BODY_BYTES, handler_args=UNCOMPRESSED
    )
    app.router.add_get("/health", service.health)
    app.router.add_post(ROUTE, service.score)
    app.on_cleanup.append(service.close)
    log_one_line()
    return app
