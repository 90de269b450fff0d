"""How a rollout asks a verification server (`service.py`) whether an answer is right."""

import json

import aiohttp

from domains.math.answers import MAX_PREDICTION_LENGTH
from domains.math.rewards import STATUSES, AnswerStatus
from domains.math.service import ROUTE
from retrieval_server.surrogates import replaced

DEADLINE_S = 60.0


async def verify_answer_rpc(
    session: aiohttp.ClientSession,
    host: str,
    port: int,
    prediction: str,
    gold: str,
    strict: bool = True,
    max_prediction_length: int = MAX_PREDICTION_LENGTH,
) -> AnswerStatus:
    """Status of an answer, from the server at `host:port`.

    Raises ValueError for what the server refuses and for an answer that is no status; what a retry may mend
    (aiohttp's connection errors, 5xx as ClientResponseError, TimeoutError after 60 s) is left to the caller.
    """
    body = {
        # Half a surrogate pair is no JSON to the server; an answer that holds one is wrong, and no failure.
        "prediction": replaced(prediction),
        "gold": gold,
        "strict": strict,
        "max_prediction_length": max_prediction_length,
    }
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with session.post(f"http://{host}:{port}{ROUTE}", json=body, timeout=timeout) as response:
        text = await response.text()
        if 400 <= response.status < 500:
            raise ValueError(
                f"verifier {host}:{port}: HTTP {response.status}: {' '.join(text.split())[:200]}"
            )
        response.raise_for_status()
    try:
        status = json.loads(text)["answer_status"]
    except (ValueError, TypeError, KeyError):
        status = None
    if status not in STATUSES:
        raise ValueError(f"verifier {host}:{port}: {' '.join(text.split())[:100]!r} is no answer status")
    return status  # type: ignore[no-any-return]
