"""Questions to a language model behind an OpenAI-compatible endpoint, answered with one JSON object each.

Transport errors are retried with back-off, an unparseable reply is asked for once more and then counted. Good
replies can be kept in a file, so that an evaluation that was stopped goes on where it was.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from domains.privacy_hopqa.agent.concurrency import run_limited
from domains.privacy_hopqa.agent.private_lines import PrivateLines
from domains.privacy_hopqa.agent.transport import JsonClient, Retries
from domains.privacy_hopqa.data.json_extract import ExtractError, extract
from pipelinerl.base.line_file import read_lines

RETRIES = Retries(backoff_s=(1.0, 2.0, 4.0, 8.0, 16.0))
ROUTE = "/chat/completions"
T = TypeVar("T")


class BadReply(ValueError):
    """A reply that does not hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model and how to ask it. `api_key_env` names an environment variable; keys are never written."""

    url: str
    model: str
    api_key_env: str | None = None
    timeout_s: float = 120.0
    max_tokens: int = 1024

    @property
    def base_url(self) -> str:
        """Address below which `/chat/completions` lies; `/v1` is added where the address names no path."""
        url = self.url.rstrip("/").removesuffix(ROUTE)
        return url if urlsplit(url).path.strip("/") else f"{url}/v1"

    def headers(self) -> dict[str, str]:
        """Raises ValueError if the variable that should hold the key is empty."""
        if self.api_key_env is None:
            return {}
        key = os.environ.get(self.api_key_env)
        if not key:
            raise ValueError(f"the environment variable {self.api_key_env} holds no key; set it")
        return {"Authorization": f"Bearer {key}"}

    def described(self) -> dict[str, Any]:
        """For reports: model and address, without user names, keys and query strings."""
        parts = urlsplit(self.base_url)
        host = parts.netloc.rpartition("@")[2]
        return {"model": self.model, "url": urlunsplit((parts.scheme, host, parts.path, "", ""))}


@dataclass(slots=True)
class ReplyCounts:
    """What became of the questions: `asked` distinct ones, of which `unparseable` got no usable reply."""

    asked: int = 0
    replies: int = 0
    kept: int = 0
    asked_again: int = 0
    unparseable: int = 0


class Replies:
    """Good replies by question, in memory and, given a path, in a private file of JSON lines."""

    def __init__(self, path: Path | None = None) -> None:
        self._lines = PrivateLines(path) if path is not None else None
        self.texts: dict[str, str] = {}
        if path is not None:  # a question whose reply a kill left incomplete is asked again
            self.texts.update(read_lines(path, _kept))

    def keep(self, key: str, reply: str) -> None:
        """Remember a reply. Raises OSError if the file cannot be written."""
        self.texts[key] = reply
        if self._lines is not None:
            self._lines.append({"key": key, "reply": reply})


class ChatModel:
    """One model; asks many questions at once, at most `concurrency` at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: aiohttp.ClientSession,
        replies: Replies,
        concurrency: int = 8,
    ) -> None:
        self._endpoint = endpoint
        self._client = JsonClient(
            endpoint.base_url, session, endpoint.timeout_s, RETRIES, quote_refusals=True
        )
        self._replies = replies
        self._concurrency = concurrency
        self.counts = ReplyCounts()

    async def ask_all(self, prompts: Iterable[str], parse: Callable[[Any], T]) -> dict[str, T | None]:
        """What `parse` makes of the reply's JSON object, by prompt; None where no reply could be used.

        `parse` raises BadReply. Raises TransportFailure once the retries are spent, RequestRefused for a
        request that the endpoint will not answer.
        """
        distinct = list(dict.fromkeys(prompts))
        self.counts.asked += len(distinct)
        found: Sequence[T | None] = await run_limited(
            [partial(self._ask, prompt, parse) for prompt in distinct], self._concurrency
        )
        return dict(zip(distinct, found, strict=True))

    async def _ask(self, prompt: str, parse: Callable[[Any], T]) -> T | None:
        body = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self._endpoint.max_tokens,
        }
        key = sha256(json.dumps([self._endpoint.base_url, body], sort_keys=True).encode()).hexdigest()
        if (kept := self._replies.texts.get(key)) is not None:
            self.counts.kept += 1
            return parse(extract(kept, "object").value)
        for attempt in range(2):
            self.counts.asked_again += attempt
            reply = await self._client.post(ROUTE, body)
            self.counts.replies += 1
            try:
                text = _content(reply)
                value = parse(extract(text, "object").value)
            except (BadReply, ExtractError):
                continue
            self._replies.keep(key, text)
            return value
        self.counts.unparseable += 1
        return None


def _kept(line: bytes) -> tuple[str, str]:
    """Key and reply of one line. Raises ValueError for another."""
    row = json.loads(line)
    try:
        key, reply = row["key"], row["reply"]
    except (TypeError, KeyError):
        raise ValueError("no key and reply") from None
    if not isinstance(key, str) or not isinstance(reply, str):
        raise ValueError("key and reply must be texts")
    return key, reply


def _content(reply: Any) -> str:
    """The text of the first choice. Raises BadReply."""
    try:
        text = reply["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        raise BadReply("the reply has no choices[0].message.content") from None
    if not isinstance(text, str):
        raise BadReply(f"the content is a {type(text).__name__}")
    return text
