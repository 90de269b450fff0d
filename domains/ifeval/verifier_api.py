"""What a response is worth by the instructions of its prompt: in this process, or asked of a server.

The checks are pure and quick, linear in a response's length, so that a server has no processes of its own.
"""

import re
from collections.abc import Mapping
from typing import Any

import aiohttp

from domains.ifeval.instructions import judge
from domains.verdict_server import ask, make_app, serve
from pipelinerl.base.thoughts import answer_part

Verdict = dict[str, Any]
"""`answer_status` (`correct`, `partial`, `wrong`, `no_answer`), `followed_count`, `total_count`, `score` (the
share that is followed), how many are followed loosely: `loose_count`, and how many nobody can judge:
`undecided_count`."""
BEGIN = re.compile(r"\[BEGIN FINAL RESPONSE\]", re.IGNORECASE)
END = re.compile(r"\[END FINAL RESPONSE\]", re.IGNORECASE)
_WRAPPED = re.compile(r"\s*<(answer|response)>(.*)</\1>\s*", re.DOTALL)
"""How Hunyuan, Granite 3.3 and ERNIE write the answer behind their thoughts."""


def judged_part(completion: str) -> str:
    """What stands behind the thoughts, or there within the marks of a final response if it has them."""
    shown = answer_part(completion)
    begin = BEGIN.search(shown)
    if begin is not None and (end := END.search(shown, begin.end())) is not None:
        return shown[begin.end() : end.start()].strip()
    wrapped = _WRAPPED.fullmatch(shown) if shown != completion else None
    return shown if wrapped is None else wrapped[2].strip()


def verify_answer(prediction: str, reward_context: Mapping[str, Any]) -> Verdict:
    """Judge a completion by its `judged_part`. Raises ValueError, in one line, for unknown instructions."""
    names = list(reward_context.get("instruction_id_list") or [])
    kwargs = list(reward_context.get("kwargs") or [])
    kwargs += [{}] * (len(names) - len(kwargs))
    prediction = judged_part(prediction)
    followed = judge(names, kwargs, prediction)
    count, total = sum(followed.strict), len(names)
    status = "correct" if count == total else "partial" if count else "wrong"
    return {
        "answer_status": status if prediction.strip() or not names else "no_answer",
        "followed_count": count,
        "total_count": total,
        "score": count / total if total else 1.0,
        "loose_count": sum(followed.loose),
        "undecided_count": followed.undecided,
    }


async def verify_answer_rpc(
    session: aiohttp.ClientSession, host: str, port: int, prediction: str, reward_context: Mapping[str, Any]
) -> Verdict:
    """`verify_answer` by the server at `host:port`; errors as in `verdict_server.ask`."""
    return await ask(session, host, port, {"prediction": prediction, "reward_context": reward_context})


class IFEvalEnvironment:
    """The verifier as a server; `_target_` of an entry of `environments`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """`host` is the address that the server listens at."""
        self.host = host

    def launch(self, port: int) -> None:
        """Serve until the process is stopped."""
        serve(make_app(verify_answer), self.host, port)
