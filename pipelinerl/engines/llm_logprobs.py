"""Log-probabilities of given completions, from the engine behind a model, for `TrainableLLM`.

Engines score prompts at temperature 1, whatever `llm.parameters` says.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np

from pipelinerl.base.tokenizing import encode
from pipelinerl.engines.client import EngineClient
from pipelinerl.engines.llm_call import LLMOutput, Prompt
from pipelinerl.engines.llm_engine import EngineLLM

# `{"content": [{"logprob": float, "token_id": int}, ...]}`, one entry per completion token.
Scores = dict[str, list[dict[str, Any]]]


async def batch_logprobs(
    llm: EngineLLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    session: aiohttp.ClientSession,
) -> list[Scores]:
    """Scores of each pair, at most `llm.max_parallel_requests` requests at a time.

    Each is tried `llm.max_retries` times more while the engine is away. Raises ValueError for an empty prompt
    or completion, EngineRequestError for what the engine refuses (such as a text longer than its context),
    EngineUnavailable when it does not answer.
    """
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts but {len(completions)} completions; give one for each")
    limit = asyncio.Semaphore(llm.max_parallel_requests)
    client = EngineClient(llm.get_base_url(), session)

    async def one(prompt: Sequence[int], completion: Sequence[int]) -> Scores:
        if not len(prompt) or not len(completion):
            raise ValueError(
                f"{len(prompt)} prompt ids and {len(completion)} completion ids; both need at least one"
            )
        ids = np.concatenate([np.asarray(prompt, np.int32), np.asarray(completion, np.int32)])
        async with limit:
            scores = await llm.retried(lambda: client.prompt_logprobs(ids))
        pairs = zip(completion, scores[-len(completion) :].tolist(), strict=True)
        return {"content": [{"logprob": logprob, "token_id": int(token)} for token, logprob in pairs]}

    return list(await asyncio.gather(*(one(*pair) for pair in zip(prompts, completions, strict=True))))


def text_ids(
    llm: EngineLLM, prompt: str, completion: str, begins: bool = False
) -> tuple[list[int], list[int]]:
    """Ids of a plain prompt and of its completion, tokenised apart.

    A prompt that `begins` a text gets the token of a beginning, if the tokeniser writes one and it has none.
    """
    tokenizer = llm.load_tokenizer()
    ids = encode(tokenizer, prompt).tolist()
    bos = tokenizer.bos_token_id
    if begins and bos is not None and ids[:1] != [bos] and tokenizer("")["input_ids"][:1] == [bos]:
        ids = [bos, *ids]
    return ids, encode(tokenizer, completion).tolist()


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
