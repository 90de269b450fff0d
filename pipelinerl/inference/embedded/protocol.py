"""The bodies of the inference routes: typed, closed (an unknown field is an error) and checked.

`server` and `openai_routes` check here, before anything reaches the engine thread.
"""

from typing import Any, Literal

import msgspec

NO_TEXT = "this model has no tokenizer.json, hence no text; send token ids and detokenize: false"


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
    # vLLM's route takes it; without a prefix cache it changes nothing.
    cache_salt: str | None = None
    stream: bool = False


class AbortFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /abort_requests`; an empty list means every request."""

    request_ids: list[str] = []


class InitInfo(msgspec.Struct, forbid_unknown_fields=True):
    """`init_info` of the file transport: nothing to agree on."""


class InitFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /init_weight_transfer_engine`."""

    init_info: InitInfo


class FileUpdateInfo(msgspec.Struct, forbid_unknown_fields=True):
    """Where the weights of one version lie and how to recognise them."""

    path: str
    version: str
    bytes: int
    checksum: str


class UpdateFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /update_weights`."""

    update_info: FileUpdateInfo


class FinishFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /finish_weight_update`."""

    weight_version: str


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a route that takes none."""


class TokenLogprob(msgspec.Struct):
    """One sampled token; its id is repeated so that a client can check the pairing."""

    token_id: int
    logprob: float


class ChoiceLogprobs(msgspec.Struct):
    """Log-probabilities of a choice, one entry per output token."""

    content: list[TokenLogprob]


class VersionSpan(msgspec.Struct):
    """Output tokens `start` (included) to `end` (excluded) were sampled by weights `version`."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct):
    """One sampled continuation."""

    index: int
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None
    logprobs: ChoiceLogprobs | None
    weight_versions: list[VersionSpan]


class Usage(msgspec.Struct):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GenerateAnswer(msgspec.Struct):
    """Answer of `POST /inference/v1/generate`."""

    request_id: str
    model: str
    created: int
    choices: list[Choice]
    usage: Usage
    prompt_logprobs: list[dict[str, Any] | None] | None


def parse(body: bytes, kind: type) -> Any:
    """Decode JSON `body` (empty counts as `{}`) into `kind`; BadRequest names field and problem."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:  # also ValidationError
        raise BadRequest(str(error)) from None


def version_number(text: str) -> int:
    """A weight version as a number; BadRequest unless it is a decimal integer."""
    # `isdigit` alone also holds for characters that `int` refuses.
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"weight version {text!r} is not a decimal integer")
    return int(text)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the model and the slots of an engine allow."""

    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    has_text: bool
    """Whether there is a tokeniser, so that ids can become text."""


def check_generate(fields: GenerateFields, limits: Limits) -> int:
    """Refuse what this engine can never serve; returns `max_tokens` with its default filled in."""
    if fields.stream:
        raise BadRequest("stream: true is not supported on this route; send stream: false")
    if fields.sampling_params.stops and not fields.sampling_params.detokenize:
        raise BadRequest("stop strings need text; send detokenize: true with them")
    return check_prompt(fields.token_ids, fields.sampling_params, limits)


def check_prompt(prompt: list[int], sampling: SamplingFields, limits: Limits) -> int:
    """Refuse ids and sampling values that cannot be served; `max_tokens` with its default filled in."""
    if not prompt:
        raise BadRequest("the prompt is empty; at least one token id is needed")
    # In the forward pass such an id would be an IndexError, which ends the engine for everybody.
    if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        raise BadRequest(f"token ids must lie in [0, {limits.vocab_size}), got {min(prompt)}..{max(prompt)}")
    max_model_len = limits.max_model_len
    room = max_model_len - len(prompt)
    max_tokens = room if sampling.max_tokens is None else sampling.max_tokens
    if max_tokens < 1 or max_tokens > room:
        raise BadRequest(
            f"{len(prompt)} prompt tokens and max_tokens {max_tokens} "
            f"do not fit max_model_len {max_model_len}"
        )
    _check_sampling(sampling, max_tokens, limits)
    return max_tokens


def require(*rules: tuple[bool, str]) -> None:
    """Raise BadRequest with the message of the first rule that does not hold."""
    for holds, message in rules:
        if not holds:
            raise BadRequest(message)


def _check_sampling(fields: SamplingFields, max_tokens: int, limits: Limits) -> None:
    stops, vocab_size, max_num_seqs = fields.stop_token_ids or [], limits.vocab_size, limits.max_num_seqs
    penalties = (fields.presence_penalty, fields.frequency_penalty)
    require(
        (0.0 <= fields.temperature <= 100.0, f"temperature {fields.temperature} is not in [0, 100]"),
        (0.0 < fields.top_p <= 1.0, f"top_p {fields.top_p} is not in (0, 1]"),
        # -1 turns it off as well, as in vLLM.
        (fields.top_k >= -1, f"top_k {fields.top_k} is negative; 0 turns it off"),
        (0.0 <= fields.min_p <= 1.0, f"min_p {fields.min_p} is not in [0, 1]"),
        (1 <= fields.n <= max_num_seqs, f"n {fields.n} is not in [1, max_num_seqs {max_num_seqs}]"),
        (0 <= fields.min_tokens <= max_tokens, f"min_tokens {fields.min_tokens} is not in [0, {max_tokens}]"),
        (fields.logprobs in (None, 0), f"logprobs {fields.logprobs} is not supported; send 0 or null"),
        (
            fields.prompt_logprobs in (None, 0),
            f"prompt_logprobs {fields.prompt_logprobs} is not supported; send 0 or null",
        ),
        (
            0.0 < fields.repetition_penalty <= 100.0,
            f"repetition_penalty {fields.repetition_penalty} is not in (0, 100]",
        ),
        (
            all(-2.0 <= penalty <= 2.0 for penalty in penalties),
            f"presence_penalty {penalties[0]} and frequency_penalty {penalties[1]} must lie in [-2, 2]",
        ),
        (all(fields.stops), "a stop string is empty; leave it out"),
        (limits.has_text or not fields.detokenize, NO_TEXT),
        (
            all(0 <= token < vocab_size for token in stops),
            f"stop_token_ids {stops} must lie in [0, {vocab_size})",
        ),
    )
