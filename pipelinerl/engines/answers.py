"""From the bytes of an engine's answer to values that may be trained on, or a refusal. Called by `client`.

Until 0.31 vLLM names the id beside a log-probability `token: "token_id:N"`, later versions and the embedded
engine `token_id: N`; version spans exist from 0.32 on. An engine that was started with
`--enable-return-routed-experts` says the experts of each token, in one form throughout.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

# JSON has no infinity. Engines send this number for an impossible token, which a sampled one cannot be.
LOGPROB_FLOOR = -9999.0
# Version of tokens sampled before the first weight update (label "default"); never data for training.
UNVERSIONED = -1

# (version, start, end): output tokens start (included) to end (excluded).
Span = tuple[int, int, int]


class InvalidAnswer(ValueError):
    """An answer that contradicts itself or the request; the message says where."""


@dataclass(slots=True)
class Generation:
    """One sampled continuation, exactly as the engine sampled it."""

    prompt_ids: np.ndarray
    """int32 [P]"""
    token_ids: np.ndarray
    """int32 [T], with the id that ended generation."""
    logprobs: np.ndarray
    """float32 [T], log-probability of each id under the distribution it was drawn from."""
    versions: list[Span]
    """Contiguous, versions never decrease, together they cover all T tokens."""
    exact_versions: bool
    """False: `versions` is one lower bound, the version announced when the request was sent."""
    finish_reason: str
    stop_reason: int | str | None = None
    engine: str = ""
    latency_s: float = 0.0
    """From sending the successful request to its decoded answer."""
    tries: int = 1
    """Requests it took, counting those that an engine lost."""
    routed_experts: np.ndarray | None = None
    """uint8 or uint16 [n, layers, active], experts of the first n <= P + T tokens; None where none are said.
    The last sampled token went to none."""
    message: dict[str, Any] | None = None
    """The engine's reading of the ids (`role`, `content`, `tool_calls`), from its chat route alone."""


class _Entry(msgspec.Struct):
    logprob: float
    token_id: int | None = None
    token: str | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[_Span] | None = None
    routed_experts: bytes | None = None
    """An array as numpy writes it, in base64."""
    message: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Answer)
_chunk_decoder = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokens of an answer, in their order."""

    ids: list[int]
    logprobs: list[float]
    """As float32, which is what is recorded."""
    versions: list[Span]
    """By output position; [] from an engine that says them at the end of the answer alone."""


class LiveAnswer:
    """An answer whose tokens are handed to `on_tokens` while the engine samples the others.

    From the first on, the request may not be made again: another answer would contradict what was handed
    over. Tokens that come together with the end of the answer are not handed over.
    """

    def __init__(self, on_tokens: Callable[[Tokens], None]) -> None:
        self._on_tokens = on_tokens
        self.engine = ""
        self.sent(np.empty(0, np.int32), None, "")

    def sent(self, prompt_ids: np.ndarray, announced_version: int | None, engine: str) -> None:
        """A request begins; arguments as those of `read_generation`, and the engine's URL."""
        self._prompt_ids, self._announced, self.engine = prompt_ids, announced_version, engine
        self._choice = _Choice(token_ids=[], logprobs=_Logprobs(content=[]))

    @property
    def begun(self) -> bool:
        """Whether tokens were handed over."""
        return bool(self._choice.token_ids)

    @property
    def ended(self) -> bool:
        """Whether the engine said why the answer ends."""
        return self._choice.finish_reason is not None

    def take(self, chunk: bytes) -> None:
        """One event of the engine's stream. Raises InvalidAnswer."""
        try:
            found = _chunk_decoder.decode(chunk).choices
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"a chunk of an answer cannot be decoded: {error}") from None
        for more in found:  # none in a chunk of token counts
            self._join(more)

    def _join(self, more: _Choice) -> None:
        whole, ids = self._choice, more.token_ids or []
        entries = more.logprobs.content if more.logprobs and more.logprobs.content else []
        assert whole.token_ids is not None and whole.logprobs and whole.logprobs.content is not None
        whole.token_ids += ids
        whole.logprobs.content += entries
        for span in more.weight_versions or ():
            whole.weight_versions = _with_span(whole.weight_versions, span)
        if more.finish_reason is not None:
            whole.finish_reason, whole.stop_reason = more.finish_reason, more.stop_reason
            whole.routed_experts = more.routed_experts
        elif ids:
            versions = [(_version(one), one.start, one.end) for one in more.weight_versions or ()]
            logprobs = np.asarray([one.logprob for one in entries], np.float32).tolist()
            self._on_tokens(Tokens(ids, logprobs, versions))

    def cut(self) -> Generation:
        """What came until now, as an answer that a length ended. Raises InvalidAnswer."""
        if self._choice.finish_reason in (None, "abort"):
            self._choice.finish_reason = "length"
        return self.generation()

    def generation(self) -> Generation:
        """The whole answer, checked as any other. Raises InvalidAnswer."""
        found = _generation(self._choice, self._prompt_ids, self._announced)
        found.engine = self.engine
        return found


def _with_span(spans: list[_Span] | None, more: _Span) -> list[_Span]:
    """The spans of a stream so far: the embedded engine says them token by token, vLLM all at the end."""
    if not spans or more.start == 0:
        return [more]
    if spans[-1].version == more.version and spans[-1].end == more.start:
        return [*spans[:-1], _Span(more.version, spans[-1].start, more.end)]
    return [*spans, more]


def read_generation(body: bytes, prompt_ids: np.ndarray, announced_version: int | None) -> Generation:
    """Decode and check the answer to a request for one continuation.

    `announced_version` stands in, as a lower bound, where the engine reports no versions. An aborted or empty
    continuation is returned as it is: whether to ask again is the caller's decision. Raises InvalidAnswer.
    """
    return _generation(_only_choice(_decode(body)), prompt_ids, announced_version)


def read_chat(body: bytes, announced_version: int | None) -> Generation:
    """The same for an answer of the chat route that was asked for ids and log-probabilities.

    A generation that ended in a tool call ended by itself. Raises InvalidAnswer, also for missing ids: a text
    that is tokenised again is no sample.
    """
    answer = _decode(body)
    choice = _only_choice(answer)
    if not answer.prompt_token_ids or choice.token_ids is None or choice.message is None:
        raise InvalidAnswer(
            "an answer without token ids or without a message; the engine must return token ids"
        )
    if choice.finish_reason == "tool_calls":
        choice.finish_reason = "stop"
    return _generation(choice, np.asarray(answer.prompt_token_ids, np.int32), announced_version)


def read_prompt_logprobs(body: bytes, prompt_ids: np.ndarray) -> np.ndarray:
    """float32 [P - 1]: log-probability of prompt tokens 1 … P - 1 at temperature 1. Raises InvalidAnswer."""
    entries = _decode(body).prompt_logprobs
    if entries is None or len(entries) != len(prompt_ids):
        found = None if entries is None else len(entries)
        raise InvalidAnswer(f"prompt_logprobs has {found} entries for {len(prompt_ids)} prompt tokens")
    values = []
    # Nothing precedes the first token, so its entry is null.
    for position, (entry, token) in enumerate(
        zip(entries[1:], prompt_ids[1:].tolist(), strict=True), start=1
    ):
        if entry is None or str(token) not in entry:
            raise InvalidAnswer(f"prompt_logprobs[{position}] does not score token {token}")
        values.append(entry[str(token)]["logprob"])
    return _finite(np.asarray(values, dtype=np.float32), "prompt_logprobs")


def _decode(body: bytes) -> _Answer:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidAnswer(f"answer cannot be decoded: {error}") from None


def _only_choice(answer: _Answer) -> _Choice:
    if len(answer.choices) != 1:
        raise InvalidAnswer(f"{len(answer.choices)} choices instead of 1")
    return answer.choices[0]


def _generation(choice: _Choice, prompt_ids: np.ndarray, announced_version: int | None) -> Generation:
    token_ids = np.asarray(choice.token_ids or [], dtype=np.int32)
    content = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
    if len(content) != len(token_ids):
        raise InvalidAnswer(f"{len(content)} log-probabilities for {len(token_ids)} tokens")
    # Only vLLM before 0.32 leaves `token_id` out. All others cost no function call per token.
    named = [entry.token_id for entry in content]
    if None in named:
        named = [_entry_id(entry) for entry in content]
    beside = np.asarray(named, dtype=np.int64)
    # Log-probabilities shifted by one position would train the wrong tokens, and nothing else would show it.
    if not np.array_equal(beside, token_ids):
        position = int(np.flatnonzero(beside != token_ids)[0])
        raise InvalidAnswer(
            f"log-probability {position} belongs to token {beside[position]}, not {token_ids[position]}"
        )
    logprobs = np.asarray([entry.logprob for entry in content], dtype=np.float32)
    versions, exact = _versions(choice.weight_versions, len(token_ids), announced_version)
    if choice.finish_reason not in ("stop", "length", "abort", "repetition"):
        raise InvalidAnswer(f"finish_reason {choice.finish_reason!r} is not one that ends a generation")
    return Generation(
        prompt_ids=prompt_ids,
        token_ids=token_ids,
        logprobs=_finite(logprobs, "logprobs"),
        versions=versions,
        exact_versions=exact,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        routed_experts=_routes(choice.routed_experts, len(prompt_ids) + len(token_ids)),
        message=choice.message,
    )


def _routes(data: bytes | None, tokens: int) -> np.ndarray | None:
    if data is None:
        return None
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InvalidAnswer(f"routed_experts cannot be read: {error}") from None
    if found.ndim != 3 or found.dtype not in (np.uint8, np.uint16) or len(found) > tokens:
        raise InvalidAnswer(
            f"routed_experts is {found.dtype} of shape {found.shape}, expected uint8 or uint16 of at most "
            f"{tokens} tokens"
        )
    return np.ascontiguousarray(found)


def _entry_id(entry: _Entry) -> int:
    if entry.token_id is not None:
        return entry.token_id
    prefix, _, number = (entry.token or "").partition(":")
    if prefix != "token_id" or not number.isdigit():
        raise InvalidAnswer(f"log-probability of {entry.token!r}: no token id beside it")
    return int(number)


def _finite(logprobs: np.ndarray, name: str) -> np.ndarray:
    bad = ~(np.isfinite(logprobs) & (logprobs > LOGPROB_FLOOR))
    if bad.any():
        position = int(np.flatnonzero(bad)[0])
        raise InvalidAnswer(f"{name}[{position}] is {logprobs[position]}, not a log-probability")
    return logprobs


def _versions(spans: Sequence[_Span] | None, length: int, announced: int | None) -> tuple[list[Span], bool]:
    if spans is None:
        # vLLM before 0.32 reports no spans. The version announced before the request was sent is the oldest
        # that its tokens can have, so no token counts as fresher than it is.
        version = UNVERSIONED if announced is None else announced
        return ([(version, 0, length)] if length else []), False
    found: list[Span] = []
    position = 0
    for span in spans:
        version = _version(span)
        # Updates only raise the version of an engine: a lower one behind a higher is a mistake of the answer.
        if span.start != position or span.end <= span.start or (found and version < found[-1][0]):
            listed = [(one.version, one.start, one.end) for one in spans]
            raise InvalidAnswer(f"weight_versions {listed} have gaps or decrease")
        found.append((version, span.start, span.end))
        position = span.end
    if position != length:
        raise InvalidAnswer(f"weight_versions cover {position} of {length} tokens")
    return found, True


def _version(span: _Span) -> int:
    text = span.version
    if text == "default":
        return UNVERSIONED
    # `isdigit` alone also holds for characters that `int` refuses, such as superscripts.
    if not (text.isascii() and text.isdigit()):
        raise InvalidAnswer(f"weight version {text!r} is not a decimal integer")
    return int(text)
