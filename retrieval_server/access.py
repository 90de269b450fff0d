"""Who may ask: loopback unless remote access is wanted, a bearer token, and no web pages.

The index holds private documents, so a server that other machines can reach must have a token. The token is
read from a file or the environment, never from the command line, which every user of the machine can list.
"""

import hashlib
import hmac
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

TOKEN_VARIABLE = "RETRIEVAL_TOKEN"
MIN_TOKEN_CHARS = 16
_HOST = re.compile(r"(?:\[(?P<bracketed>[^\[\]@]+)\]|(?P<name>[^\[\]:@]+))(?::\d*)?")


class AccessError(ValueError):
    """A way of serving that is refused; the message names the remedy."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. A name other than localhost may point anywhere."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_binding(host: str, allow_remote: bool, token: str | None) -> None:
    """Raises `AccessError` unless `host` is loopback, or remote access is asked for and has a token."""
    if is_loopback(host):
        return
    if not allow_remote:
        raise AccessError(
            f"--host {host} is reachable from other machines; use 127.0.0.1, or --allow-remote and a token"
        )
    if token is None:
        raise AccessError(
            f"--host {host} would show private documents to everyone who reaches it; set a token "
            f"with --token-file FILE or {TOKEN_VARIABLE}"
        )


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token of `--token-file`, else of the environment, else None. Raises `AccessError`, `OSError`."""
    if file is not None:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise AccessError(f"--token-file {file} can be read by other users; run chmod 600 {file}")
        source, token = f"--token-file {file}", file.read_text(encoding="utf-8").strip()
    elif TOKEN_VARIABLE in environment:
        source, token = TOKEN_VARIABLE, environment[TOKEN_VARIABLE].strip()
    else:
        return None
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError(
            f"{source} holds no token: {MIN_TOKEN_CHARS} or more printable ASCII characters without spaces"
        )
    return token


def page_refusal(headers: Mapping[str, str], any_name: bool = False) -> str | None:
    """Why a request is refused as one of a web page in somebody's browser; None for any other.

    Browsers name the page in `Origin`, or say that it is another site's in `Sec-Fetch-Site`. A page whose own
    name was pointed at this machine is known by its `Host`, which must be localhost, an address or this
    machine's name; `any_name` leaves that out, for servers whose token no page has.
    """
    host, origin = headers.get("Host", ""), headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != host:
        return "web pages may not ask; send the request without Origin"
    if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return "web pages of other sites may not ask; send the request without Sec-Fetch-Site"
    if host and not any_name and not _is_of_this_machine(host):
        return f"{host[:100]!r} is not a name of this machine; ask its address, or localhost"
    return None


def _is_of_this_machine(host: str) -> bool:
    """A longer name than the host name is none of this machine: a page can have one that begins with it."""
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found["bracketed"] or found["name"]).lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        here = socket.gethostname().lower()
        return name.rstrip(".") in ("localhost", here, here.partition(".")[0])
    return True


class Gate:
    """Compares the `Authorization` header with the token, in a time that does not depend on either."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else _digest(f"Bearer {token}")

    @property
    def asks(self) -> bool:
        """Whether there is a token at all."""
        return self._expected is not None

    def admits(self, authorization: str | None) -> bool:
        """Whether a request with this header may ask; without a token every one may."""
        if self._expected is None:
            return True
        return hmac.compare_digest(self._expected, _digest(authorization or ""))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
