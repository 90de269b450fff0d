"""Calls to the model of one rollout, read as completions; for both roles, evaluation and the tournament."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from pipelinerl.async_llm import llm_async_generate
from pipelinerl.llm import LLMCall, Prompt, TrainableLLM

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote, and whether a length limit cut it off."""

    text: str
    truncated: bool
    call: LLMCall

    @property
    def version(self) -> int | None:
        """Oldest weight version among its tokens, in trained samples."""
        return min((version for version, _, _ in self.call.weight_versions), default=None)


@dataclass(frozen=True, slots=True)
class Caller:
    """The model behind the engines, with a session."""

    llm: TrainableLLM
    session: aiohttp.ClientSession

    async def complete(self, prompt: Prompt, max_tokens: int) -> Completion:
        """One sample. Errors of the engine pass through to the scheduler's retries."""
        call = await llm_async_generate(self.llm, prompt, self.session, max_tokens)
        return Completion(call.completion, call.llm_info.get("finish_reason") == "length", call)

    def at(self, **parameters: Any) -> "Caller":
        """The same model with other sampling parameters."""
        llm = self.llm.model_copy()
        llm.parameters = {**self.llm.parameters, **parameters}
        return Caller(llm, self.session)


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first error ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
