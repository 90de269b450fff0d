"""What rollout code holds in its hands: prompts, calls (`llm_call.py`), and the model bound to an engine."""

import aiohttp

from pipelinerl.async_llm import llm_async_generate, run_blocking
from pipelinerl.engines.llm_call import (
    LLMCall,
    LLMEvent,
    LLMOutput,
    LLMStream,
    Prompt,
    TokenLogprob,
    TokenLogprobs,
    ToolCall,
    ToolFunction,
)
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.llm_logprobs import Scores, batch_logprobs, chat_ids, text_ids

__all__ = [
    "LLMCall",
    "LLMEvent",
    "LLMOutput",
    "LLMStream",
    "Prompt",
    "TokenLogprob",
    "TokenLogprobs",
    "ToolCall",
    "ToolFunction",
    "TrainableLLM",
]


class TrainableLLM(EngineLLM):
    """A model behind an engine. In a rollout it comes bound to one, with the run's sampling `parameters`.

    Outside a run, give `base_url` (and `model_name` or `tokenizer_name` for the tokeniser).
    """

    async def agenerate(self, prompt: Prompt, session: aiohttp.ClientSession) -> LLMStream:
        call = await llm_async_generate(self, prompt, session)
        if call.output.content is None:  # beside tool calls; upstream's method gives an empty text
            call.output.content = ""
        return LLMStream(iter([LLMEvent(output=call.output, llm_call=call)]), prompt)

    def generate(self, prompt: Prompt) -> LLMStream:
        """The same from code without an event loop; a run's plain rollout functions use it."""
        return run_blocking(self, lambda session: self.agenerate(prompt, session))

    def get_batch_logprobs_token_ids(
        self, prompt_token_ids: list[list[int]], completion_token_ids: list[list[int]]
    ) -> list[Scores]:
        """Log-probabilities of completions at temperature 1; see `pipelinerl.engines.llm_logprobs`.

        Like the four methods below, for code without an event loop.
        """
        return run_blocking(
            self, lambda session: batch_logprobs(self, prompt_token_ids, completion_token_ids, session)
        )

    def get_logprobs_token_ids(self, prompt_token_ids: list[int], completion_token_ids: list[int]) -> Scores:
        (scores,) = self.get_batch_logprobs_token_ids([prompt_token_ids], [completion_token_ids])
        return scores

    def get_logprobs_complete(self, prompt: str, output: str) -> Scores:
        return self.get_logprobs_token_ids(*text_ids(self, prompt, output, begins=True))

    def get_logprobs_chat_complete(self, prompt: Prompt, output: LLMOutput) -> Scores:
        return self.get_logprobs_token_ids(*chat_ids(self, prompt, output))

    def get_logprobs(self, prompt: str | Prompt | list[int], output: str | LLMOutput | list[int]) -> Scores:
        """Of a plain text after a plain prompt, of a message after a chat prompt, or of ids after ids."""
        if isinstance(prompt, list) and isinstance(output, list):
            return self.get_logprobs_token_ids(prompt, output)
        if isinstance(prompt, list) or isinstance(output, list):
            raise ValueError("give ids for both the prompt and the output")
        if isinstance(prompt, str):
            return self.get_logprobs_complete(
                prompt, output if isinstance(output, str) else output.content or ""
            )
        return self.get_logprobs_chat_complete(
            prompt, LLMOutput(content=output) if isinstance(output, str) else output
        )

    def quick_response(self, text: str) -> str:
        return self.generate(Prompt.from_user_message(text)).get_text()
