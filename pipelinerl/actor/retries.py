"""Which errors of a rollout are worth another try, and when."""

import random

import aiohttp

from pipelinerl.inference.client import AbortedCompletion, EngineUnavailable

SERVER_ERROR = 500
TOO_MANY_REQUESTS = 429


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


def reason_of(error: BaseException) -> str:
    """One short line for counting and for people, in characters that any file can hold."""
    text = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:300]
