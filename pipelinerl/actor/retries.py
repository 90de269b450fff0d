"""Which errors of a rollout are worth another try, and when."""

import random
import traceback
from pathlib import Path

import aiohttp

from pipelinerl.base.masking import without_secrets
from pipelinerl.engines.client import AbortedCompletion, EngineUnavailable
from pipelinerl.observe.blocked import of_rollouts

SERVER_ERROR = 500
TOO_MANY_REQUESTS = 429
LONGEST = 300
"""Characters of a reason."""


def retryable(error: BaseException) -> bool:
    """Timeouts, aborted answers and unreachable servers are; bugs and refused requests are not.

    A group of errors is if each of them is.
    """
    if isinstance(error, BaseExceptionGroup):  # of a domain that asks several at a time
        return all(retryable(each) for each in error.exceptions)
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status >= SERVER_ERROR or error.status == TOO_MANY_REQUESTS
    # What the next engine, or the same one a little later, may do better. Anything else is the domain's or
    # the request's fault and would fail again.
    infrastructure = (
        TimeoutError,
        ConnectionError,
        AbortedCompletion,
        EngineUnavailable,
        aiohttp.ClientConnectionError,
        aiohttp.ClientPayloadError,
    )
    return isinstance(error, infrastructure)


def backoff_s(attempt: int, initial_s: float, longest_s: float) -> float:
    """Pause after the `attempt`-th failure (from 0): doubling, with jitter so that retries spread."""
    # The exponent is bounded: with retries without end it would overflow.
    return min(longest_s, initial_s * 2.0 ** min(attempt, 60)) * random.uniform(0.5, 1.0)


def place_of(error: BaseException) -> str:
    """File and line of the rollout code that raised, or called what did; empty where it is all of ours."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if of_rollouts(frame.filename):
            path = Path(frame.filename)
            place = f"{path.parent.name}/{path.name}:{frame.lineno}".replace(" ", "_")
    return place and f" ({place})"


def reason_of(error: BaseException) -> str:
    """One short line for counting and for people, in characters that any file can hold.

    It ends with the file and line of the rollout code. Of a group of errors, such as a TaskGroup raises, it
    is that of the first. An error that shows no such line itself ends with that of its group or its cause.
    """
    raised = [error]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        raised.insert(0, error)
    if error.__cause__ is not None:
        raised.append(error.__cause__)
    try:
        text = str(error)
    except Exception:  # whatever an error of a domain does
        text = "its text cannot be made"
    name = type(error).__name__
    place = next(filter(None, map(place_of, raised)), "")
    text = one_line(text)
    return (f"{name}: {text}" if text else name)[: LONGEST - len(place)] + place


def one_line(text: str) -> str:
    """A reason on one line, at most `LONGEST` characters that any file can hold, without secrets."""
    return " ".join(without_secrets(text).split()).encode("utf-8", "backslashreplace").decode()[:LONGEST]
