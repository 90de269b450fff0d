"""Blocking JSON over HTTP for the publisher, with a deadline on every call."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class CallFailed(RuntimeError):
    """A call that did not answer 200. `status` is None when no answer came (connection lost, deadline)."""

    def __init__(self, status: int | None, body: str) -> None:
        super().__init__(body if status is None else f"HTTP {status}: {body}")
        self.status = status
        self.body = body


def call(method: str, url: str, path: str, deadline_s: float, body: Any = None) -> bytes:
    """The body of the 200 answer of `url` + `path`; CallFailed otherwise."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=deadline_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Connection": "close"} | ({} if data is None else {"Content-Type": "application/json"})
        connection.request(method, parts.path.rstrip("/") + path, body=data, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
    except TimeoutError:
        raise CallFailed(None, f"{method} {path}: no answer within {deadline_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise CallFailed(None, f"{method} {path}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise CallFailed(answer.status, " ".join(content[:1000].decode(errors="replace").split()))
    return content


def get_json(url: str, path: str, deadline_s: float) -> Any:
    """Decoded answer of a GET."""
    return json.loads(call("GET", url, path, deadline_s))
