"""The bodies of the inference routes: typed, and closed (an unknown field is an error).

Servers read them through `handlers`; `served` checks their values against the model.
"""

from typing import Any, Literal, TypeVar

import msgspec

T = TypeVar("T")
MESSAGE_CHARS = 900
"""Most characters of an error."""
VERSION_DIGITS = 18
"""Of a weight version, which then fits an integer of 64 bits."""


class BadRequest(ValueError):
    """The request cannot be served as asked; the message says why (HTTP 400)."""


class UnknownModel(BadRequest):
    """The request names another model than the one that is served (HTTP 404)."""


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`sampling_params` of a generate request; names and meaning as in vLLM."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = False
    output_kind: Literal[0, 1, 2] = 0
    """How often vLLM builds an answer that is not streamed; here always once, at its end."""
    flat_logprobs: bool = False
    """How vLLM collects log-probabilities; it sends the same."""
    routed_experts_prompt_start: int | None = None
    """From where vLLM names the experts of a prompt; this engine names those of all its tokens."""

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class GenerateFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /inference/v1/generate`."""

    token_ids: list[int]
    sampling_params: SamplingFields
    model: str | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    """The prefix cache shares among requests of one salt only."""
    priority: int = 0
    """vLLM takes others only where it schedules by them; here the first to come is the first."""
    stream: bool = False

    def check(self) -> None:
        """Raises BadRequest for what the token route never does."""
        sampling = self.sampling_params
        require(
            (self.priority == 0, f"priority {self.priority} is not supported; send 0 or leave it out"),
            # 1 is what clients of vLLM's token route send; it adds the likeliest token.
            (
                sampling.logprobs in (None, 0, 1),
                f"logprobs {sampling.logprobs} is not supported; send 0 or 1",
            ),
        )


class TokenizeFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /tokenize`, as vLLM's for a text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class AbortFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /abort_requests`; an empty list means every request."""

    request_ids: list[str] = []


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a route that takes none."""


class InitFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /init_weight_transfer_engine`; nothing is agreed on beforehand."""

    init_info: NoFields


class FinishFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /finish_weight_update`."""

    weight_version: str


def parse(body: bytes, kind: type[T]) -> T:
    """Decode JSON `body` (empty counts as `{}`) into `kind`; BadRequest names field and problem."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # also ValidationError
        raise BadRequest(str(error)) from None


def check_version(text: str) -> None:
    """BadRequest unless a weight version is a decimal integer of at most `VERSION_DIGITS` digits."""
    # `isdigit` alone also holds for characters that `int` refuses, and `int` refuses thousands of digits.
    sound = text.isascii() and text.isdigit() and len(text) <= VERSION_DIGITS
    require(
        (sound, f"weight version {text[:30]!r} is not a decimal integer of at most {VERSION_DIGITS} digits")
    )


def require(*rules: tuple[bool, str]) -> None:
    """Raise BadRequest with the message of the first rule that does not hold."""
    for holds, message in rules:
        if not holds:
            raise BadRequest(message)


def error_body(error: BaseException, status: int, kind: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients expect it, on one line, however long what it quotes of the request is."""
    message = " ".join(str(error).split())
    message = message if len(message) <= MESSAGE_CHARS else f"{message[: MESSAGE_CHARS - 3]}..."
    return {
        "error": {"message": message, "type": kind or type(error).__name__, "param": None, "code": status}
    }
