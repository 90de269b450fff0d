"""The rollout policy of `fn_calling`: a question and functions, one completion, one verdict on its calls."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.fn_calling.verifier_api import Verdict, verify_fn_calling_answer, verify_fn_calling_answer_rpc
from domains.math.rewards import rollout_reward
from domains.prompts import question_messages
from domains.verdict_server import any_server
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.base.foreign_calls import notation
from pipelinerl.base.logs import REMARK
from pipelinerl.base.thoughts import answer_part
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import resolve_environment_key

log = logging.getLogger(__name__)

KEY = "fn_calling"
FORM = (
    "Answer with all calls that are needed, as a JSON list: "
    '<tool_calls>[{"name": "f", "arguments": {"x": 1}}]</tool_calls>. '
    "If none of the functions helps, say so in words."
)


_SAID: set[str] = set()


def remark_notation(completion: str) -> None:
    """Say, once a notation, that answers have calls as another family of models writes them."""
    mark = notation(answer_part(completion))
    if mark is None or mark in _SAID:
        return
    _SAID.add(mark)
    log.warning(
        "fn_calling: answers have calls behind %s, a notation that is not read, and count as unparsable; "
        "expected <tool_calls>[...]</tool_calls> as the system message says, <tool_call>, <function=...>, "
        "[TOOL_CALLS], <|python_tag|> or Python's calls; ask for one of them in system_prompt",
        mark,
        extra=REMARK,
    )


class FnCallingMetrics(BaseMetrics):
    """Statistics of one answer."""

    penalty: float
    """Length penalty, at most 0."""
    partial_score: float
    """Share of the wanted calls that are made, calls too many counted against it; 0 or 1 where one call or
    none is wanted."""


def tools_text(functions: Sequence[Any]) -> str:
    """The functions, a line each, and how they are called."""
    lines = [json.dumps(one.get("function", one), ensure_ascii=False) for one in functions]
    return "\n".join(["You may call these functions:", *lines, FORM])


def messages_of(cfg: DictConfig, problem: dict[str, Any]) -> list[dict[str, Any]]:
    """The system message with the functions, what was said before, and the question.

    Functions stand in the text, so that any model can be asked and no engine needs a parser for its calls.
    """
    *system, question = question_messages(cfg, problem["task"], KEY)
    extra = problem.get("extra_info") or {}
    parts = [message["content"] for message in system]
    if extra.get("oai_tools"):
        parts.append(tools_text(extra["oai_tools"]))
    before = list(extra.get("before") or [])
    parts += [message["content"] for message in before if message["role"] == "system"]
    turns = [message for message in before if message["role"] != "system"]
    opening = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
    return [*opening, *turns, question]


async def verdict(
    cfg: DictConfig, problem: dict[str, Any], completion: str, session: aiohttp.ClientSession
) -> Verdict:
    """From one of the run's servers, or without any from this process."""
    context = problem["reward_context"]
    server = any_server(cfg, resolve_environment_key(cfg, default=KEY))
    if server is None:
        return verify_fn_calling_answer(completion, context)
    host, port = server
    return await verify_fn_calling_answer_rpc(
        session=session, host=host, port=port, generation=completion, reward_context=context
    )


async def generate_fn_calling_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one question; the reward is that of `rewards`, discounted and shortened by its length.

    Where several calls are wanted, an answer with some of them has their share of the reward.
    """
    call = await llm_async_generate(llm, Prompt(messages=messages_of(cfg, problem)), session)
    found = await verdict(cfg, problem, call.completion, session)
    status, share = found["answer_status"], float(found["partial_score"])
    if status == "unparsable":
        remark_notation(call.completion)
    text = make_training_text(llm, call)
    text.metadata |= {KEY: {"answer_status": status, "partial_score": share}}
    text.reward, penalty = rollout_reward(cfg, llm, [text], status, share=share)
    metrics = FnCallingMetrics(
        reward=text.reward,
        success=status == "correct",
        no_error=status != "unparsable",
        no_answer=status == "no_answer",
        penalty=penalty,
        partial_score=share,
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem.get("dataset"),
        domain=KEY,
    )
