"""Blocking JSON over HTTP for the publisher, with a deadline on every call."""

import contextlib
import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

PREPARE_ROUTE = "/prepare_weights"
"""Takes the body of /update_weights ahead of it. Only for engines that name it when they are initialised."""


class CallFailed(RuntimeError):
    """A call that did not answer 200. `status` is None when no answer came (connection lost, deadline)."""

    def __init__(self, status: int | None, body: str) -> None:
        super().__init__(body if status is None else f"HTTP {status}: {body}")
        self.status = status
        self.body = body


class EngineConnection:
    """One connection to an engine, kept open over several calls; for one thread, except `cut`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._prefix = parts.path.rstrip("/")
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port or 80)
        self._cut = False

    def open(self, deadline_s: float) -> None:
        """Connect now unless that was done, so that the next call need not; CallFailed if nobody listens."""
        if self._http.sock is not None:
            return
        self._http.timeout = deadline_s
        try:
            self._http.connect()
        except OSError as error:
            raise CallFailed(None, f"connect: {type(error).__name__}: {error}") from None

    def call(self, method: str, path: str, deadline_s: float, body: bytes | None = None) -> bytes:
        """The body of the 200 answer; CallFailed otherwise. Connects again after a lost connection."""
        connection = self._http
        connection.timeout = deadline_s
        if connection.sock is not None:
            connection.sock.settimeout(deadline_s)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, self._prefix + path, body=body, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        except TimeoutError:
            connection.close()
            raise CallFailed(None, f"{method} {path}: no answer within {deadline_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = "given up" if self._cut else f"{type(error).__name__}: {error}"
            raise CallFailed(None, f"{method} {path}: {reason}") from None
        if answer.status != 200:
            raise CallFailed(answer.status, " ".join(content[:1000].decode(errors="replace").split()))
        return content

    def cut(self) -> None:
        """End a call that another thread is in; it fails at once."""
        self._cut = True
        sock = self._http.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # it may be closed already
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


def optional_routes(answer: bytes) -> frozenset[str]:
    """What an engine offers beyond the protocol, from its answer to /init_weight_transfer_engine.

    Nothing where the answer has no list of `optional_routes`, as that of vLLM.
    """
    try:
        fields = json.loads(answer)
    except ValueError:
        return frozenset()
    named = fields.get("optional_routes") if isinstance(fields, dict) else None
    return frozenset(map(str, named)) if isinstance(named, list) else frozenset()


def encode(body: Any) -> bytes:
    """JSON of a request."""
    return json.dumps(body).encode()


def call(method: str, url: str, path: str, deadline_s: float, body: Any = None) -> bytes:
    """The body of the 200 answer of `url` + `path` over a connection of its own; CallFailed otherwise."""
    connection = EngineConnection(url)
    try:
        return connection.call(method, path, deadline_s, None if body is None else encode(body))
    finally:
        connection.close()


def get_json(url: str, path: str, deadline_s: float) -> Any:
    """Decoded answer of a GET."""
    return json.loads(call("GET", url, path, deadline_s))
