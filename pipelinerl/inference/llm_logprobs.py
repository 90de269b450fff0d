"""Log-probabilities of given completions, from the engine behind a model, for `TrainableLLM`.

Engines score prompts at temperature 1, whatever `llm.parameters` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np

from pipelinerl.base.tokenizing import encode
from pipelinerl.inference.client import EngineClient
from pipelinerl.inference.llm_call import LLMOutput, Prompt
from pipelinerl.inference.llm_engine import EngineLLM

# `{"content": [{"logprob": float, "token_id": int}, ...]}`, one entry per completion token.
Scores = dict[str, list[dict[str, Any]]]


async def completion_logprobs(
    llm: EngineLLM,
    prompt_ids: Sequence[int] | np.ndarray,
    completion_ids: Sequence[int] | np.ndarray,
    session: aiohttp.ClientSession,
) -> np.ndarray:
    """float32 `[completion tokens]`. Tried `llm.max_retries` times more while the engine is away.

    Raises ValueError for an empty prompt or completion, EngineRequestError for what the engine refuses (such
    as a text longer than its context), EngineUnavailable when it does not answer.
    """
    if not len(prompt_ids) or not len(completion_ids):
        raise ValueError(
            f"{len(prompt_ids)} prompt ids and {len(completion_ids)} completion ids; both need at least one"
        )
    ids = np.concatenate([np.asarray(prompt_ids, np.int32), np.asarray(completion_ids, np.int32)])
    client = EngineClient(llm.get_base_url(), session)
    scores = await llm.retried(lambda: client.prompt_logprobs(ids))
    return scores[-len(completion_ids) :]


async def batch_logprobs(
    llm: EngineLLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    session: aiohttp.ClientSession,
) -> list[Scores]:
    """Scores of each pair, at most `llm.max_parallel_requests` requests at a time."""
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts but {len(completions)} completions; give one for each")
    limit = asyncio.Semaphore(llm.max_parallel_requests)

    async def one(prompt: Sequence[int], completion: Sequence[int]) -> Scores:
        async with limit:
            return _listed(completion, await completion_logprobs(llm, prompt, completion, session))

    return list(await asyncio.gather(*(one(*pair) for pair in zip(prompts, completions, strict=True))))


def text_ids(llm: EngineLLM, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Ids of a plain prompt and of its completion, tokenised apart."""
    tokenizer = llm.load_tokenizer()
    return encode(tokenizer, prompt).tolist(), encode(tokenizer, completion).tolist()


def chat_ids(llm: EngineLLM, prompt: Prompt, output: LLMOutput) -> tuple[list[int], list[int]]:
    """Ids of a rendered prompt and of what the template writes for the assistant's message after it.

    Raises ValueError if the template does not write the message behind its generation prompt.
    """
    if prompt.token_ids:
        completion = encode(llm.load_tokenizer(), output.content or "").tolist()
        return list(prompt.token_ids), completion
    # Ids of the reply must be those behind the prompt as the engine sees it: both texts are rendered, and
    # what the template adds for the reply is cut off.
    before = llm.render(prompt)
    reply = {"role": output.role, "content": output.content or ""}
    whole = llm.render(prompt.model_copy(update={"messages": [*prompt.messages, reply]}), False)
    if not whole.startswith(before):
        raise ValueError("the chat template does not continue its own prompt; give token ids instead")
    return text_ids(llm, before, whole.removeprefix(before))


def _listed(ids: Sequence[int], logprobs: np.ndarray) -> Scores:
    pairs = zip(ids, logprobs.tolist(), strict=True)
    return {"content": [{"logprob": logprob, "token_id": int(token)} for token, logprob in pairs]}
