"""The rollout policy behind an engine as the loop's model; the rollout policy makes one per rollout.

Every call gets a token budget of its own, so that prompt and answer together fit the context.
"""

from dataclasses import dataclass

import aiohttp

from domains.privacy_hopqa.agent.errors import ErrorKind, StageError
from domains.privacy_hopqa.agent.interfaces import Completion, StageRequest
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from pipelinerl.async_llm import llm_async_generate
from pipelinerl.llm import Prompt, TrainableLLM


def output_budget(prompt_tokens: int, stage_cap: int, limit: int, margin: int) -> int:
    """Output tokens a call may use: `min(stage_cap, limit - prompt_tokens - margin)`; <= 0 means no room."""
    return min(stage_cap, limit - prompt_tokens - margin)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Asks the engine. Prompts are tokenised once, and exactly those ids are counted and sent."""

    llm: TrainableLLM
    session: aiohttp.ClientSession
    settings: PrivacyHopQASettings

    async def complete(self, request: StageRequest) -> Completion:
        """The answer. Raises StageError CONTEXT_OVERFLOW without a call; engine errors pass through."""
        messages = request.prompt.messages
        ids = self.llm.prompt_ids(Prompt(messages=messages)).tolist()
        limit = self.settings.generation_context_limit_tokens
        margin = self.settings.generation_context_margin_tokens
        budget = output_budget(len(ids), request.max_tokens, limit, margin)
        if budget <= 0:
            raise StageError(
                ErrorKind.CONTEXT_OVERFLOW,
                f"{request.stage}: a prompt of {len(ids)} tokens leaves no room in {limit}",
            )
        prompt = Prompt(messages=messages, token_ids=ids)
        call = await llm_async_generate(self.llm, prompt, self.session, max_tokens_override=budget)
        return Completion(call.completion, call.prompt_length_tokens, call.output_length_tokens, call)
