"""Requests that are no HTTP, or whose body cannot be decoded: answered 400, and one line in the log.

`pipelinerl/base/malformed.py` is its twin for the servers of a run, because this package imports nothing of
that one; a test compares them.
"""

import errno
import logging
import time
from collections.abc import Mapping

from aiohttp import http_exceptions, web_protocol
from aiohttp.log import server_logger

BODY_ERRORS = (http_exceptions.BadHttpMessage, web_protocol.RequestPayloadError)
"""What reading a body raises whose chunks are broken; the client's fault, so 400."""
BAD_BODY = "the body cannot be decoded; check Transfer-Encoding"
UNCOMPRESSED = {"auto_decompress": False}
"""Arguments of an application's handlers: aiohttp would inflate a body before anybody looks at it, and go on
for seconds after it was refused: a megabyte of gzip holds a gigabyte."""
COMPRESSED = "the body is compressed; send it without Content-Encoding"
HANDLES_EVERY_S = 60.0
_OF_CLIENTS = (*BODY_ERRORS, http_exceptions.HttpProcessingError)


class _OneLine(logging.Filter):
    """aiohttp logs a traceback of its own code for what a client sent, and for a client that hangs up."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):  # a client that hangs up is nobody's error
            return False
        if isinstance(error, _OF_CLIENTS):
            # Not the error's text: it quotes the request, which may be private.
            record.msg, record.args = "refused a malformed request (%s)", (type(error).__name__,)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class _OutOfHandles(logging.Filter):
    """asyncio logs a traceback for each of a thousand connections a second that it cannot accept."""

    def __init__(self) -> None:
        super().__init__()
        self._told = -HANDLES_EVERY_S

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            return True
        if time.monotonic() - self._told < HANDLES_EVERY_S:
            return False
        self._told = time.monotonic()
        record.msg, record.args = (
            "out of file handles (%s): connections wait; raise ulimit -n",
            (error.strerror,),
        )
        record.exc_info = record.exc_text = None
        return True


_ONE_LINE, _OUT_OF_HANDLES = _OneLine(), _OutOfHandles()


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Whether a request says so; its body is then refused unread (415)."""
    return headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")


def log_one_line() -> None:
    """From now on a malformed request costs this process one line of its log; to be called by each server.

    So does want of file handles, once a minute.
    """
    server_logger.addFilter(_ONE_LINE)
    logging.getLogger("asyncio").addFilter(_OUT_OF_HANDLES)
