"""What an answer is worth: by a family's verifier, in a process that may be killed, or by a published row."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from domains.logic.published import judge_row
from domains.pool import JudgePool
from domains.reasoning_gym.answers import AnswerFormat
from domains.reasoning_gym.scoring import RIGHT, make_pool, score
from domains.verdict_server import ask, make_app, serve

Verdict = dict[str, Any]
"""`answer_status` (`correct`, `wrong`, `no_answer` or `unparsable`) and `score`, from 0 to 1."""


async def judged(
    pool: JudgePool, prediction: str, reward_context: Mapping[str, Any], answer_format: AnswerFormat = "auto"
) -> Verdict:
    """Judge a completion; `pool` is asked about generated problems. ValueError for what cannot be judged.

    `unparsable` is an answer at which the verifier fails, is late or needs too much memory.
    """
    if "game_data" in reward_context:
        status = judge_row(str(reward_context["task"]), reward_context["game_data"], prediction)
        return {"answer_status": status, "score": float(status == "correct")}
    found, given = await score(pool, dict(reward_context), prediction, answer_format)
    if found is None:
        return {"answer_status": "unparsable", "score": 0.0}
    status = "correct" if found >= RIGHT else "wrong" if given else "no_answer"
    return {"answer_status": status, "score": found}


async def ask_verdict(
    session: aiohttp.ClientSession,
    host: str,
    port: int,
    prediction: str,
    reward_context: Mapping[str, Any],
    answer_format: AnswerFormat = "auto",
) -> Verdict:
    """`judged` by the server at `host:port`; errors as in `verdict_server.ask`."""
    body = {"prediction": prediction, "reward_context": reward_context, "answer_format": answer_format}
    return await ask(session, host, port, body)


async def verify_answer_rpc(
    session: aiohttp.ClientSession,
    host: str,
    port: int,
    prediction: str,
    reward_context: Mapping[str, Any],
    answer_format: AnswerFormat = "auto",
) -> str:
    """The status alone, as upstream's function of this name gives it."""
    found = await ask_verdict(session, host, port, prediction, reward_context, answer_format)
    return str(found["answer_status"])


class LogicEnvironment:
    """The verifier as a server; `_target_` of an entry of `environments`."""

    def __init__(
        self, workers: int = 1, deadline_s: float = 10.0, memory_mb: int = 2048, host: str = "127.0.0.1"
    ) -> None:
        """The arguments of the pool of scoring processes, and the address that the server listens at."""
        self.host = host
        self.workers, self.deadline_s, self.memory_mb = workers, deadline_s, memory_mb

    def launch(self, port: int) -> None:
        """Serve until the process is stopped."""
        pool = make_pool(self.workers, self.deadline_s, self.memory_mb)

        async def judge(
            prediction: str, reward_context: dict[str, Any], answer_format: AnswerFormat = "auto"
        ) -> Verdict:
            return await judged(pool, prediction, reward_context, answer_format)

        serve(make_app(judge), self.host, port)
