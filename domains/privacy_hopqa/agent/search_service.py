"""The retrieval service as the agent sees it: searches, audited before they leave, and whose world it serves.

The rollout policy makes one searcher per rollout and checks the service once per worker process.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.agent.audit import Audit
from domains.privacy_hopqa.agent.errors import SearchActionError
from domains.privacy_hopqa.agent.hits import parse_local, parse_web
from domains.privacy_hopqa.agent.interfaces import Hit, Search
from domains.privacy_hopqa.agent.transport import (
    Client,
    JsonClient,
    RequestRefused,
    Unavailable,
    with_retries,
)
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from pipelinerl.base.errors import printable
from pipelinerl.base.logs import REMARK
from pipelinerl.run_state.shared_problems import note_digest
from retrieval_server.access import TOKEN_VARIABLE
from retrieval_server.world import HEADER

log = logging.getLogger(__name__)
TOKEN_FILE_VARIABLE = "RETRIEVAL_TOKEN_FILE"
"""Where the launcher keeps the secret of servers that it spread over hosts."""


@dataclass(frozen=True, slots=True)
class HttpSearcher:
    """Searches through the retrieval service. Every web attempt is audited before it leaves."""

    client: Client
    audit: Audit
    settings: PrivacyHopQASettings

    async def search(self, search: Search) -> Sequence[Hit]:
        """Hits, best first. Raises SearchActionError, TransportFailure or AuditFailure."""
        settings = self.settings
        body = {"query": search.query, "k": search.k, "task_id": search.task_id}
        if settings.retrieval_answer_chars:
            body["max_answer_chars"] = settings.retrieval_answer_chars
        try:
            if search.source == "local":
                if settings.retrieval_source_chars:
                    body["max_chars"] = settings.retrieval_source_chars
                body["threshold"] = settings.local_search_threshold
                return parse_local(await self.client.post("/local/search", body))
            body["max_chars"] = settings.retrieval_source_chars
            # Retried here and not by the client: each attempt is a request that leaves, so each is audited.
            return await with_retries(lambda: self._web_once(search, body), self.client.retries)
        except RequestRefused as error:
            raise SearchActionError(str(error), error.of_request) from None

    async def _web_once(self, search: Search, body: Mapping[str, Any]) -> list[Hit]:
        with self.audit.attempt(search) as attempt:
            hits = parse_web(await self.client.once("POST", "/browsecomp/search", body))
            attempt.n_hits = len(hits)
        return hits


def helper_headers() -> dict[str, str]:
    """The retrieval service's token: of the servers that the launcher spread over hosts, or the user's.

    The user's comes from the environment, so that no file of a run holds it. Raises OSError for a file of
    the launcher's that cannot be read.
    """
    file = os.environ.get(TOKEN_FILE_VARIABLE)
    token = Path(file).read_text(encoding="utf-8") if file else os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token.strip()}"} if token else {}


class ServedWorlds:
    """What each server has served since it was first asked, by the header of its answers.

    Made once per worker process. A server that comes back is asked nothing else before its next search, so
    this is where one that was exchanged for another world, with or without a fingerprint, is noticed. What
    the last start of the run in `output_dir` searched is compared with the first answer.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._first: dict[str, str | None] = {}

    def check(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises ValueError once an answer of `url` says something else than its first one."""
        told = headers.get(HEADER)
        if not self._first and told:
            before = note_digest(self._output_dir, "world", told)
            if before not in ("", told):
                log.warning(
                    "the retrieval service serves world %s, in the last start %s: what was evaluated before "
                    "had searched other texts; serve the files of that start, or force_restart=true",
                    *(_named(told), _named(before)),
                    extra=REMARK,
                )
        first = self._first.setdefault(url, told)
        if told != first:
            raise ValueError(
                f"the retrieval service at {url} was exchanged during the run: its answers are of world "
                f"{_named(told)}, those before of {_named(first)}; restart it on the files of this run"
            )


def _named(world: str | None) -> str:
    return "(not told)" if world is None else printable(world[:80])


async def check_fingerprint(client: JsonClient, expected: str | None) -> Mapping[str, Any]:
    """What the service says of itself, once its world's fingerprint is that of the data, if both have one.

    Raises ValueError if they differ and for a service that asks for another token: its refusals would look
    like searches that found nothing, and no later try would do better. Raises TransportFailure if the
    service does not get ready.
    """
    return await with_retries(lambda: ask_health(client, expected), client.retries)


async def ask_health(client: JsonClient, expected: str | None) -> Mapping[str, Any]:
    """One attempt of `check_fingerprint`. Raises ValueError, and Unavailable while it is not ready."""
    health = await _health(client)
    if health.get("authorized") is False:
        raise ValueError(
            f"the retrieval service at {client.base_url} asks for a token; set {TOKEN_VARIABLE} to the "
            "server's own"
        )
    served = health.get("fingerprint")
    if served and expected and served != expected:
        raise ValueError(
            f"the retrieval service at {client.base_url} serves world {served}, the chains belong to "
            f"{expected}; restart it on the files of this run"
        )
    return health


async def _health(client: JsonClient) -> Mapping[str, Any]:
    try:
        body = await client.once("GET", "/health")
    except RequestRefused as error:
        if error.status in (401, 403):
            raise ValueError(f"{error}; set {TOKEN_VARIABLE} to the server's own token") from None
        raise Unavailable(str(error)) from None  # one that comes up may refuse for a moment
    if not isinstance(body, dict) or body.get("status") != "ok":
        raise Unavailable(f"{client.base_url}/health: not ready")
    return body
