"""Small blocking HTTP calls with a deadline: health checks, questions to engines, steps of a weight update.

`call` gives the body of a 200 answer or raises CallFailed; `get_or_none` is for callers to whom the reason
does not matter. The trainer, which is told the run's token, shows it to the engines (`base/access.py`).
Several calls to one server go over a `Connection`. No proxy is used: servers are on this
host or in a private network. The actor's requests are asynchronous: `pipelinerl/engines/client.py`.
"""

import contextlib
import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from pipelinerl.base.access import control_token


class CallFailed(RuntimeError):
    """A call that did not answer 200. `status` is None when no answer came (connection lost, deadline)."""

    def __init__(self, status: int | None, body: str) -> None:
        super().__init__(body if status is None else f"HTTP {status}: {body}")
        self.status = status
        self.body = body


class Connection:
    """One connection to a server, kept open over several calls; for one thread, except `cut`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._prefix = parts.path.rstrip("/")
        self._http = kind(parts.hostname or "127.0.0.1", parts.port)
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
        if connection.sock is not None:  # `timeout` alone only counts for the next connection
            connection.sock.settimeout(deadline_s)
        headers = {} if body is None else {"Content-Type": "application/json"}
        if method != "GET" and (token := control_token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
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


def encode(body: Any) -> bytes:
    """JSON of a request."""
    return json.dumps(body).encode()


def call(method: str, url: str, path: str, deadline_s: float, body: Any = None) -> bytes:
    """The body of the 200 answer of `url` + `path` to a JSON `body`; CallFailed otherwise."""
    with contextlib.closing(Connection(url)) as connection:
        return connection.call(method, path, deadline_s, None if body is None else encode(body))


def get_or_none(url: str, deadline_s: float, body: Any = None) -> bytes | None:
    """The body of a 200 answer to a GET, or to a POST of a JSON `body`; None for anything else."""
    path = urlsplit(url)._replace(scheme="", netloc="").geturl() or "/"
    try:
        return call("GET" if body is None else "POST", url.removesuffix(path), path, deadline_s, body)
    except CallFailed:
        return None
