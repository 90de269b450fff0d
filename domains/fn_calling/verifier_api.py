"""What a completion is worth as calls: in this process, or asked of a server."""

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from domains.fn_calling.calls import Unreadable, read_calls, speaks_of_a_call
from domains.fn_calling.compare import matched
from domains.verdict_server import ask, make_app, serve
from pipelinerl.base.thoughts import thoughts_are_open

Verdict = dict[str, Any]
"""`answer_status` (`correct`, `wrong`, `no_answer` or `unparsable`) and `partial_score`, from 0 to 1."""


def verify_fn_calling_answer(
    generation: str,
    reward_context: Mapping[str, Any],
    tool_calls: Sequence[Mapping[str, Any]] | None = None,
) -> Verdict:
    """Judge a completion by `{category, function, ground_truth}`.

    Of an irrelevance problem no call is right, unless thoughts never ended or a call stands among words; of a
    relevance problem any.
    `partial_score` of a wrong answer is above 0 for several wanted calls only: the share that is made, calls
    too many counting against it.
    """
    category = str(reward_context.get("category", "simple"))
    try:
        calls = read_calls(generation, tool_calls, reward_context.get("function") or ())
    except Unreadable:
        return _verdict("unparsable")
    if "relevance" in category:
        if not calls and not tool_calls and thoughts_are_open(generation):
            return _verdict("no_answer")  # cut off in its thoughts: nothing was declined
        if not calls and speaks_of_a_call(generation, reward_context.get("function") or ()):
            return _verdict("unparsable")
        right = not calls if "irrelevance" in category else bool(calls)
        return _verdict("correct" if right else "wrong" if calls else "no_answer")
    if not calls:
        return _verdict("no_answer")
    wanted = reward_context["ground_truth"]
    wanted = wanted["ground_truth"] if isinstance(wanted, Mapping) else wanted  # a row of BFCL's answers
    found, most = matched(calls, wanted, reward_context["function"]), max(len(calls), len(wanted))
    if found == most:
        return _verdict("correct")
    return _verdict("wrong", found / most if len(wanted) > 1 else 0.0)


evaluate_fn_calling_answer = verify_fn_calling_answer
"""The name in earlier versions of upstream."""


def _verdict(status: str, partial: float | None = None) -> Verdict:
    return {
        "answer_status": status,
        "partial_score": float(status == "correct") if partial is None else partial,
    }


async def verify_fn_calling_answer_rpc(
    *,
    session: aiohttp.ClientSession,
    host: str,
    port: int,
    generation: str,
    reward_context: Mapping[str, Any],
    tool_calls: Sequence[Mapping[str, Any]] | None = None,
) -> Verdict:
    """`verify_fn_calling_answer` by the server at `host:port`; errors as in `verdict_server.ask`."""
    calls = None if tool_calls is None else list(tool_calls)
    body = {"generation": generation, "reward_context": reward_context, "tool_calls": calls}
    return await ask(session, host, port, body)


class BFCLEnvironment:
    """The verifier as a server; `_target_` of an entry of `environments`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """`host` is the address that the server listens at."""
        self.host = host

    def launch(self, port: int) -> None:
        """Serve until the process is stopped."""
        serve(make_app(verify_fn_calling_answer), self.host, port)


AgenticToolsEnvironment = BFCLEnvironment
"""The name that upstream's configuration gives it."""
