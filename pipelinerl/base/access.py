"""Who may ask a server of a run: no web page, and for the routes that control an engine only its own run.

A browser sends whatever page it shows to 127.0.0.1 too, so loopback keeps nobody out. A request of a foreign
page has a foreign `Origin` or says so in `Sec-Fetch-Site`; one to a name that was pointed at this machine has
a foreign `Host`. Other users of the machine are kept from the control routes by a token. The launcher writes
it into the run's folder, readable by its owner only, and tells engines and trainer the file with
`CONTROL_TOKEN_VARIABLE`. An engine that is started by hand without the variable asks for none; it then has to
listen on the loopback interface. The embedded engine and the servers of the domains call these functions,
vLLM gets `GuardedApp` with `--middleware`. Standard library only, because vLLM's processes import it.
"""

import hashlib
import hmac
import ipaddress
import json
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

CONTROL_TOKEN_VARIABLE = "PIPELINERL_CONTROL_TOKEN_FILE"
SERVER_NAME_VARIABLE = "PIPELINERL_SERVER_NAME"
"""By which the launcher tells an engine the name under which the run's other hosts ask it."""
MIDDLEWARE = f"{__name__}.GuardedApp"
LEAST_TOKEN_CHARS = 16
_OPEN_POSTS = ("/v1/", "/inference/v1/", "/tokenize", "/detokenize")
"""POST routes, or beginnings of them, that only compute. What is not known changes something."""
_HOST = re.compile(r"(?:\[(?P<bracketed>[^\[\]@]+)\]|(?P<name>[^\[\]:@]+))(?::\d*)?")
_LOADS_WEIGHTS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


class AccessError(ValueError):
    """A token that cannot be used, or an address that may not be listened on; the message has the remedy."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. A name other than localhost may point anywhere."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(headers: Mapping[str, str], own_names: Collection[str] = ()) -> str | None:
    """Why a request with these headers is refused as one of a web page; None for any other.

    Names of headers are in lower case, or the mapping ignores case. `own_names` are names of this machine
    beside localhost, its addresses and its host name.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return f"Origin {origin[:100]!r}: web pages may not ask; send the request without Origin"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "Sec-Fetch-Site: web pages of other sites may not ask; send the request without it"
    if host and not _is_own(host, own_names):
        return f"Host {host[:100]!r}: not a name of this machine; ask its address, or localhost"
    return None


def is_control(method: str, path: str) -> bool:
    """Whether a route of an engine changes something that other requests see, such as pauses and weights."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return False
    return path in _LOADS_WEIGHTS or not any(
        path.startswith(one) if one.endswith("/") else path == one for one in _OPEN_POSTS
    )


def control_refusal(method: str, path: str, authorization: str | None, token: str | None) -> str | None:
    """Why a request to an engine lacks the token; None for one that has it or needs none."""
    if token is None or not is_control(method, path):
        return None
    if hmac.compare_digest(_digest(f"Bearer {token}"), _digest(authorization or "")):
        return None
    return (
        f"{method} {path[:100]}: needs the token of the engine's run; send the header Authorization: Bearer "
        f"TOKEN, or name its file with {CONTROL_TOKEN_VARIABLE}"
    )


def control_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The token of the file that the variable names; None without the variable. Raises AccessError."""
    name = environment.get(CONTROL_TOKEN_VARIABLE)
    return None if not name else _token_of(Path(name))


@cache
def _token_of(file: Path) -> str:
    said = f"{CONTROL_TOKEN_VARIABLE}={file}"
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise AccessError(f"{said}: other users can read it; run chmod 600 {file}")
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"{said}: cannot be read ({error}); start the run again, which writes it") from None
    if len(token) < LEAST_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError(
            f"{said}: holds no token, {LEAST_TOKEN_CHARS} or more printable ASCII characters without spaces; "
            "remove it and start the run again"
        )
    return token


def check_binding(host: str, token: str | None) -> None:
    """Raises AccessError for an engine that other machines would reach and that asks for no token."""
    if token is None and not is_loopback(host):
        raise AccessError(
            f"--host {host}: other machines would reach the control routes; use 127.0.0.1, or name a file "
            f"that holds a token (mode 600) with {CONTROL_TOKEN_VARIABLE}"
        )


def own_names(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names under which the launcher said that this server is asked."""
    name = environment.get(SERVER_NAME_VARIABLE)
    return (name,) if name else ()


def _is_own(host: str, names: Collection[str]) -> bool:
    """Whether a `Host` is an address, localhost, this machine's host name or one of `names`.

    No longer name that begins with the host name is: whoever guesses it can have such a name in a domain of
    his own.
    """
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found["bracketed"] or found["name"]).lower()
    try:
        ipaddress.ip_address(name)  # a page cannot be at an address without being there
    except ValueError:
        here = socket.gethostname().lower()
        return name.rstrip(".") in {"localhost", here, here.partition(".")[0], *map(str.lower, names)}
    return True


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class GuardedApp:
    """An ASGI application in front of which the checks stand, as vLLM's `--middleware` wants it."""

    def __init__(self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]]) -> None:
        self._app, self._token, self._names = app, control_token(), own_names()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        status, reason = self._checked(scope) if scope["type"] in ("http", "websocket") else (200, None)
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
        else:
            body = json.dumps({"error": {"message": reason, "code": status}}).encode()
            kind = (b"content-type", b"application/json")
            await send({"type": "http.response.start", "status": status, "headers": [kind]})
            await send({"type": "http.response.body", "body": body})

    def _checked(self, scope: _Scope) -> tuple[int, str | None]:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if (reason := refusal(headers, self._names)) is not None:
            return 403, reason
        method, shown = scope.get("method", "GET"), headers.get("authorization")
        return 401, control_refusal(method, scope["path"], shown, self._token)
