"""How a rollout asks a verification server (`service.py`) whether an answer is right."""

import aiohttp

from domains.math.answers import MAX_PREDICTION_LENGTH
from domains.math.rewards import STATUSES, AnswerStatus
from domains.verdict_server import ask
from retrieval_server.surrogates import replaced


async def verify_answer_rpc(
    session: aiohttp.ClientSession,
    host: str,
    port: int,
    prediction: str,
    gold: str,
    strict: bool = True,
    max_prediction_length: int = MAX_PREDICTION_LENGTH,
) -> AnswerStatus:
    """Status of an answer, from the server at `host:port`; errors as in `verdict_server.ask`."""
    body = {
        # Half a surrogate pair is no JSON to the server; an answer that holds one is wrong, and no failure.
        "prediction": replaced(prediction),
        "gold": gold,
        "strict": strict,
        "max_prediction_length": max_prediction_length,
    }
    status: AnswerStatus = (await ask(session, host, port, body))["answer_status"]
    if status not in STATUSES:
        raise ValueError(f"verifier {host}:{port}: {status[:100]!r} is no answer status")
    return status
