"""A request to an engine's chat route, for what token ids cannot say: tools and formats of answers.

`pipelinerl.async_llm` builds one for a prompt with `tools` or `response_format`; all others go as token ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from pipelinerl.inference.requests import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Messages with tools or a response format. The engine renders its own chat template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    def body(self, sampling: SamplingParams) -> bytes:
        """The request as JSON; ids and log-probabilities are asked for, so that the answer can be trained."""
        optional = {
            "tools": self.tools,
            "response_format": self.response_format,
            "chat_template_kwargs": self.chat_template_kwargs or None,
        }
        return msgspec.json.encode(
            {
                "messages": self.messages,
                "logprobs": True,
                "return_token_ids": True,
                # vLLM then names each log-probability by the id, so that `answers` can check the pairing.
                "return_tokens_as_token_ids": True,
                "stream": False,
                **sampling.fields(),
                **{name: value for name, value in optional.items() if value is not None},
            }
        )
