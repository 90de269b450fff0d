"""A request and its sequences while the engine works on them.

Made by `served`, then changed by the engine thread alone; handlers read them again when they have ended.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipelinerl.engines.answers import LOGPROB_FLOOR
from pipelinerl.engines.openai.answers import Piece, usage
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.openai.text import OutputText

NO_SLOT = -1


# No `eq`: the scheduler searches lists of sequences, and == of arrays has no truth value.
@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of a prompt: tokens so far and how many of them are in the KV cache."""

    request: "Request"
    index: int
    tokens: np.ndarray
    """int64 [prompt + max_tokens]; the first `length` entries are valid."""
    length: int
    generator: np.random.Generator
    computed: int = 0
    """Tokens whose keys and values are in the slot."""
    slot: int = NO_SLOT
    """Its place among the sequences that run."""
    state: Any = None
    """What a back end keeps of it, such as keys and values."""
    shareable: bool = True
    """Whether all keys in the slot are of the weights in use, so that others may have them."""
    looked_up: bool = False
    """Whether the prefix cache was asked for the sequence's beginning."""
    leader: "Sequence | None" = None
    """The sequence that computes a beginning of both; this one waits for it."""
    shared: int = 0
    """Tokens that the leader will have computed for this one."""
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[tuple[int, float]] = field(default_factory=list)
    """The most likely id of each position, where `logprobs: 1` asks for it."""
    spans: list[list] = field(default_factory=list)
    """[version, start, end] over output positions."""
    routes: np.ndarray | None = None
    """Experts of the tokens, uint8 or uint16 [prompt + max_tokens, layers, active], if they are recorded."""
    routed: int = 0
    """First tokens whose experts are there."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    output: OutputText | None = None
    """Text of the tokens, where it is asked for."""

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return self.length - self.computed

    @property
    def output_length(self) -> int:
        """Tokens sampled so far."""
        return self.length - self.request.prompt_length

    def append(self, token: int, logprob: float, version: str) -> None:
        """Take a sampled token; sets `finish_reason` when it ends the sequence."""
        position = self.output_length
        self.tokens[self.length] = token
        self.length += 1
        # vLLM reports nothing below this floor either.
        self.logprobs.append(max(logprob, LOGPROB_FLOOR))
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1][2] = position + 1
        else:
            self.spans.append([version, position, position + 1])
        request = self.request
        # End ids first: as in vLLM they end a sequence without a `stop_reason`, also where a request names
        # them.
        if token in request.eos_ids:
            self.finish_reason = "stop"
        elif token in request.stop_ids:
            self.finish_reason, self.stop_reason = "stop", token
        elif position + 1 >= request.max_tokens:
            self.finish_reason = "length"
        stop = self.output and self.output.add(token, ends=self.finish_reason == "stop")
        if stop:
            self.finish_reason, self.stop_reason = "stop", stop

    def piece(self, start: int = 0) -> Piece:
        """What was sampled from output position `start` on; its text is handed out once."""
        text = ""
        if self.output is not None:
            if self.finish_reason:
                self.output.close()
            text = self.output.take()
        return Piece(
            index=self.index,
            token_ids=self.tokens[self.request.prompt_length + start : self.length].tolist(),
            logprobs=self.logprobs[start:],
            weight_versions=[
                {"version": version, "start": max(begin, start), "end": end}
                for version, begin, end in self.spans
                if end > start
            ],
            text=text,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            first=start == 0,
            likeliest=self.likeliest[start:],
            # Those of a stream come with its end: each of its pieces would repeat the prompt's.
            routed_experts=None
            if self.routes is None or (self.request.streams and not self.finish_reason)
            else self.routes[: self.routed],
        )


class Request:
    """A generate request: its prompt, its sampling values and `n` sequences."""

    def __init__(
        self,
        request_id: str,
        prompt: SequenceOf[int],
        sampling: SamplingFields,
        *,
        max_tokens: int,
        eos_ids: frozenset[int],
        tokenizer: Tokenizer | None = None,
        streams: bool = False,
        cache_salt: str | None = None,
    ) -> None:
        """A `tokenizer` makes the sequences collect their text; `streams` asks for an event per token.

        Cached keys are shared among requests of one `cache_salt` only.
        """
        self.request_id = request_id
        self.cache_salt = cache_salt
        self.streams = streams
        self.sampling = sampling
        self.prompt_length = len(prompt)
        self.max_tokens = max_tokens
        self.eos_ids = frozenset() if sampling.ignore_eos else eos_ids
        self.stop_ids = frozenset(sampling.stop_token_ids or ())
        self.end_ids = sorted(self.eos_ids | self.stop_ids)
        # Decided once: a sequence without penalties costs the sampler nothing.
        self.penalised = sampling.repetition_penalty != 1.0 or bool(
            sampling.presence_penalty or sampling.frequency_penalty
        )
        # (logprob, rank) of prompt tokens 1, 2, … as far as they are scored.
        self.prompt_scores: list[tuple[float, int]] = []
        self.error: str | None = None
        self.sequences = [self._sequence(index, prompt) for index in range(sampling.n)]
        if tokenizer is not None:
            for sequence in self.sequences:
                sequence.output = OutputText(tokenizer, sampling)

    def _sequence(self, index: int, prompt: SequenceOf[int]) -> Sequence:
        # All that the sequence can become: appending to an array would copy it for each token.
        tokens = np.zeros(self.prompt_length + self.max_tokens, dtype=np.int64)
        tokens[: self.prompt_length] = prompt
        seed = self.sampling.seed
        # Sequences of one request must differ, yet each must be a function of (seed, index) alone.
        # The mask is for negative seeds, which numpy refuses.
        entropy = None if seed is None else [seed & 0xFFFFFFFFFFFFFFFF, index]
        generator = np.random.Generator(np.random.SFC64(entropy))
        return Sequence(self, index, tokens, self.prompt_length, generator)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt as it is computed."""
        return self.sequences[0].tokens[: self.prompt_length].tolist()

    @property
    def finished(self) -> bool:
        """True when no sequence has anything left to do."""
        return self.error is not None or all(one.finish_reason for one in self.sequences)

    @property
    def scores_prompt(self) -> bool:
        """True when log-probabilities of the prompt were asked for and are not complete yet."""
        wanted = self.sampling.prompt_logprobs is not None
        return wanted and len(self.prompt_scores) < self.prompt_length - 1

    def prompt_logprobs(self) -> list[dict | None] | None:
        """The answer's `prompt_logprobs`: null first, then one id per entry; None if not asked for."""
        if self.sampling.prompt_logprobs is None:
            return None
        ids = self.sequences[0].tokens[1 : self.prompt_length].tolist()
        entries: list[dict | None] = [None]
        # Not strict: an aborted request has scored only the beginning of its prompt.
        for token, (logprob, rank) in zip(ids, self.prompt_scores, strict=False):
            entries.append({str(token): {"logprob": logprob, "rank": rank, "decoded_token": None}})
        return entries


# A piece of a request that is streamed, or the end of a request.
Result = tuple[Request, Piece | None]


def usage_of(requests: SequenceOf[Request]) -> dict[str, int]:
    """Token counts of an answer."""
    prompt = sum(request.prompt_length for request in requests)
    sampled = sum(one.output_length for request in requests for one in request.sequences)
    return usage(prompt, sampled)
