"""Which errors of a rollout are worth another try, and when."""

import random
import traceback
from itertools import pairwise
from pathlib import Path

import aiohttp

from pipelinerl.base.masking import without_secrets
from pipelinerl.engines.client import AbortedCompletion, EngineUnavailable
from pipelinerl.observe.blocked import ROLLOUT, of_rollouts
from pipelinerl.run_state.accounting import CUT

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
    """File and line of the rollout code that raised, or called what did; empty where it is all of ours.

    Of a domain that is installed like a library, it is the last line in the policy's own folder.
    """
    frames = traceback.extract_tb(error.__traceback__)
    policy = next((one for caller, one in pairwise(frames) if caller.name.startswith(ROLLOUT)), None)
    of_domain = [frame for frame in frames if of_rollouts(frame.filename)]
    if not of_domain and policy is not None:
        folder = Path(policy.filename).parent
        of_domain = [frame for frame in frames if Path(frame.filename).parent == folder]
    if not of_domain:
        return ""
    path = Path(of_domain[-1].filename)
    place = f"{path.parent.name}/{path.name}:{of_domain[-1].lineno}".replace(" ", "_")
    return f" ({place})"


def reason_of(error: BaseException) -> str:
    """One short line for counting and for people, in characters that any file can hold.

    It ends with the file and line of the rollout code. Of a group of errors, such as a TaskGroup raises, it
    is that of the first. An error that shows no such line itself ends with that of its group or its cause.
    A cause that says more than the error stands behind it.
    """
    raised = [error]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        raised.insert(0, error)
    said = _said(error)
    if (cause := error.__cause__) is not None:
        raised.append(cause)
        more = _said(cause)
        # A worker process sends as the cause a traceback with the same words; a cancellation makes a timeout.
        if isinstance(cause, Exception) and _words(more) not in said and _words(said) not in more:
            said = f"{said}, from {more}"
    place = next(filter(None, map(place_of, raised)), "")
    return _cut(one_line(said), LONGEST - len(place)) + place


def _said(error: BaseException) -> str:
    """Type and text."""
    try:
        text = str(error).strip()
    except Exception:  # whatever an error of a domain does
        text = "its text cannot be made"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _words(said: str) -> str:
    """The text behind the type, or the type of an error without a text."""
    return said.partition(": ")[2] or said


def one_line(text: str) -> str:
    """A reason on one line, at most `LONGEST` characters that any file can hold, without secrets."""
    whole = " ".join(without_secrets(text).split()).encode("utf-8", "backslashreplace").decode()
    return _cut(whole, LONGEST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}{CUT}"
