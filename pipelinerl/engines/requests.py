"""What a request to an engine says, how long it may take and how requests are counted: values, no I/O.

`client` and `fleet` send and count by these; whoever asks a model builds `SamplingParams`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

# How an answer is asked for: with the log-probability of each sampled token, in whatever way is cheapest.
# vLLM then builds it once, at its end (2 is `FINAL_ONLY`; before 0.29 it would at every token), and collects
# log-probabilities in a few lists, not in objects of each token. What an engine sends is the same.
WHOLE_ANSWER = {"logprobs": 0, "output_kind": 2, "flat_logprobs": True}
STREAMED_ANSWER = {"logprobs": 0, "output_kind": 1}
"""The same for one whose tokens are sent as they are sampled (1 is vLLM's `DELTA`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds a client waits, each with the name of the wait in the error."""

    connect_s: float = 5.0
    generate_s: float = 3600.0
    stall_s: float = 120.0
    health_s: float = 2.0
    health_interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample; names and meaning as in vLLM. The defaults reshape nothing."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    """Texts that end the answer; their ids belong to it."""

    def fields(self) -> dict[str, Any]:
        """What decides which tokens are sampled, by names that every route knows; defaults are left out."""
        given = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        always = ("max_tokens", "temperature")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, (value, default) in given.items()
            if name in always or value != default
        }


ENDS = ("max_tokens", "stop", "stop_token_ids")
"""Where an answer ends, which changes no token's probability."""
RULED = {one.name: one.default for one in fields(SamplingParams) if one.name not in ENDS}
"""What the run decides, with its value where `llm.parameters` has none."""


def overridden(asked: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What somebody asks for of `RULED`, not None, of which the run's `parameters` say otherwise."""
    sent = {name: asked[name] for name in RULED if asked.get(name) is not None}
    return {name: value for name, value in sent.items() if not _same(name, value, of_run(name, parameters))}


def of_run(name: str, parameters: Mapping[str, Any]) -> Any:
    """The run's value of one of `RULED`."""
    return parameters.get(name, RULED[name])


def _same(name: str, asked: Any, own: Any) -> bool:
    # -1 turns it off as well, as in vLLM.
    return asked == own or (name == "top_k" and {asked, own} <= {0, -1})


# A run samples with a few settings in all its requests, so each is encoded once and not with every request.
@lru_cache(maxsize=256)
def encoded_sampling(sampling: SamplingParams, streams: bool = False) -> msgspec.Raw:
    """`sampling_params` of a request to the token route, as JSON that is put into the body unread."""
    how = STREAMED_ANSWER if streams else WHOLE_ANSWER
    detokenize = bool(sampling.stop)  # an engine looks for stop strings in the text
    return msgspec.Raw(msgspec.json.encode({**sampling.fields(), **how, "detokenize": detokenize}))


def cache_salt(announced: int | None) -> dict[str, str]:
    """What keeps a request from keys and values that other weights computed, in an engine's prefix cache.

    Engines serve a version before it is announced, and the first blocks of an announced version's requests
    are computed by it, so nobody finds older ones there. A request that was sent before an update and starts
    after it finds blocks of the old weights, as requests that run during an update keep theirs
    (`weights.kv=keep`). Before the first announcement there is nothing to keep apart.
    """
    return {} if announced is None else {"cache_salt": str(announced)}


def scoring_body(prompt: np.ndarray) -> dict[str, Any]:
    """A request to the token route for the log-probabilities of a prompt, int32 `[P]`, at temperature 1."""
    # Without `cache_salt`: vLLM reads no prefix cache where a prompt is scored, since a block that is found
    # there is not computed and has no log-probabilities.
    # Engines sample at least one token, also where only the prompt is to be scored; it is thrown away.
    sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
    return {"token_ids": prompt.tolist(), "sampling_params": sampling, "stream": False}


@dataclass(slots=True)
class RequestCounts:
    """What was asked and how it ended, to be compared with the engines' own counters.

    `sent` equals completed + refused + cancelled + failed + those still in flight; `retries` says why
    requests were made again.
    """

    sent: int = 0
    completed: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    exact_tokens: int = 0
    """Tokens whose weight version the engine reported."""
    answer_bytes: int = 0
    checks: int = 0
    """How often an engine in rotation was looked at."""
    idle_checks: int = 0
    """Of these, how often no request was running on it."""
    running: float = 0.0
    """Requests that were running on it, summed over these looks."""
    cache_queries: float = 0.0
    """Prompt tokens that engines looked for in their prefix caches, whoever asked."""
    cache_hits: float = 0.0
    """Of these, how many they found."""

    def as_dict(self) -> dict[str, float]:
        """Flat numbers for a metrics record; a ratio of nothing is absent."""
        flat = {name: getattr(self, name) for name in ("sent", "completed", "refused", "cancelled", "failed")}
        flat.update({f"retries/{reason}": count for reason, count in sorted(self.retries.items())})
        ratios = {
            "bytes_per_token": (self.answer_bytes, self.tokens),
            "exact_versions": (self.exact_tokens, self.tokens),
            "engine_idle_share": (self.idle_checks, self.checks),
            "engine_running": (self.running, self.checks),
            "prefix_cache_share": (self.cache_hits, self.cache_queries),
        }
        return flat | {name: above / below for name, (above, below) in ratios.items() if below}
