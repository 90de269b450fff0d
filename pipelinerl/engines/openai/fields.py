"""Bodies of `/v1/completions` and `/v1/chat/completions`: closed, and checked before anything is sampled.

Names and defaults are OpenAI's and, where OpenAI has none, vLLM's.
"""

from typing import Any

import msgspec

from pipelinerl.engines.openai.protocol import BadRequest, SamplingFields, require

# OpenAI's default of `/v1/completions`; a chat fills the context.
COMPLETION_MAX_TOKENS = 16


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool = False


class SharedFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both routes take; null stands for the default."""

    model: str | None = None
    request_id: str | None = None
    user: str | None = None
    cache_salt: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def sampling(self, max_tokens: int | None) -> SamplingFields:
        """The same values as the engine takes them; text and log-probabilities are always collected."""
        shared = SHARED & set(SamplingFields.__struct_fields__)
        given = {name: value for name in shared if (value := getattr(self, name)) is not None}
        return SamplingFields(**{**given, "max_tokens": max_tokens, "logprobs": 0, "detokenize": True})


SHARED = set(SharedFields.__struct_fields__)


class CompletionFields(SharedFields, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt. Raises BadRequest for a list of mixed kinds."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        kinds = {type(one) for one in prompt}
        if len(kinds) != 1:
            raise BadRequest("prompt must be text, ids, or a list of either; it is empty or mixes them")
        return [prompt] if kinds == {int} else prompt  # type: ignore[list-item, return-value]

    def check(self) -> None:
        """Raises BadRequest for what this engine does not do."""
        require(
            (not self.echo, "echo: true is not supported; the prompt is known to the caller"),
            (self.logprobs in (None, 0), f"logprobs {self.logprobs} is not supported; send 0 or null"),
            _stream_rule(self),
        )


class ChatFields(SharedFields, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | int | None = None
    """True or 1: the log-probability of each sampled token."""
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    # The template writes special tokens itself; a second one at the beginning would be another prompt.
    add_special_tokens: bool = False

    @property
    def most_tokens(self) -> int | None:
        """`max_tokens` under either name; OpenAI's newer one counts where both are sent."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        """Raises BadRequest for what this engine does not do."""
        kind = (self.response_format or {}).get("type", "text")
        require(
            *(
                (
                    tool.get("type") in (None, "function"),
                    f"tools[{at}].type {tool.get('type')!r} is not supported; only functions are",
                )
                for at, tool in enumerate(self.tools or ())
            ),
            (bool(self.messages), "messages is empty; at least one is needed"),
            (self.logprobs in (None, 0, 1), f"logprobs {self.logprobs} is not supported; send true"),
            (not self.top_logprobs, f"top_logprobs {self.top_logprobs} is not supported; send 0 or null"),
            (
                self.tool_choice in (None, "auto", "none"),
                f"tool_choice {self.tool_choice!r} is not supported; send auto or none",
            ),
            (
                self.parallel_tool_calls is not False,
                "parallel_tool_calls: false is not supported; leave it out",
            ),
            (kind == "text", f"response_format {kind!r} is not supported; this engine samples freely"),
            _stream_rule(self),
        )


def _stream_rule(fields: SharedFields) -> tuple[bool, str]:
    used = fields.stream_options is None or bool(fields.stream)
    return used, "stream_options without stream: true has no effect; leave it out"
