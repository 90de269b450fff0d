"""What computes the tokens of an engine: `Backend`, which a new kind of engine implements in one file.

`server` and `thread` give it everything else: the routes of `docs/engine.md`, limits and errors, versions in
answers, aborts, pauses, the order of an update, health and counters. `command` starts it from a command line.
All methods are called in the engine thread, one after the other, so none needs a lock; `Weights.read` alone
runs beside them. `tests/support/contract/toy.py` is the smallest back end, `engines/cpu/backend.py` the real
one.
"""

import heapq
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelinerl.base.tokenizing import load_tokenizer
from pipelinerl.engines.received import DEFAULT, RECEIVED, Announced
from pipelinerl.engines.serving.sequence import NO_SLOT, Sequence
from pipelinerl.engines.wire import PermanentUpdateError

DEFAULT_MODEL_LEN = 1024

Drawn = tuple[Sequence, int, float]
"""A sequence, the token that was drawn for it, and its log-probability under the distribution drawn from."""


class UnsupportedModel(ValueError):
    """The model cannot run on this engine; the message says why."""


class WeightsRefused(ValueError):
    """The version is not what was announced; no tensor has changed."""


class WeightsUnfit(WeightsRefused, PermanentUpdateError):
    """The model or this host cannot take them, nor could another process; no tensor has changed."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Start-up values that every engine has; `problems` says what is wrong with them."""

    model: Path
    """Folder with a model in Hugging Face format."""
    served_model_name: str = "model"
    """Name that requests may give as `model`."""
    max_num_seqs: int = 32
    """Sequences that run at the same time."""
    max_model_len: int = DEFAULT_MODEL_LEN
    """Tokens of a sequence, prompt and output together."""
    max_waiting: int = 1024
    """Sequences that may wait for a place; beyond that requests are answered 503."""
    weight_transport: str = DEFAULT
    """How new weights come: a name in `RECEIVED` of `engines/received.py`."""
    return_tokens_as_token_ids: bool = False
    """What a request gets that does not say whether `token_id:N` names a token beside its log-probability."""
    started: float = field(default_factory=time.time)
    """Seconds since 1970, before the weights are read: what is written later was not loaded."""

    def positive(self) -> tuple[str, ...]:
        """Names of the values that must be at least 1."""
        return ("max_num_seqs", "max_model_len")

    def problems(self) -> list[str]:
        """One line for each value that cannot work."""
        found = []
        if not (self.model / "config.json").is_file():
            found.append(f"--model {self.model} has no config.json; give a folder in Hugging Face format")
        for name in self.positive():
            value = getattr(self, name)
            if value < 1:
                found.append(f"--{name.replace('_', '-')} {value} is too small; it must be at least 1")
        if self.max_waiting < 0:
            found.append(f"--max-waiting {self.max_waiting} is negative; 0 or more sequences may wait")
        if self.weight_transport not in RECEIVED:
            allowed = ", ".join(RECEIVED)
            found.append(f"--weight-transport {self.weight_transport} is not received; use one of {allowed}")
        return found


class Queue:
    """Which sequences run and which wait, first come first served."""

    def __init__(self, max_num_seqs: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        # Counters of `/metrics`; of a prefix cache tokens looked up, and found.
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        # The lowest free place first, so that those in use lie together.
        self._free = list(range(max_num_seqs))

    def admit(self) -> None:
        """Give free places to those that wait."""
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.slot = heapq.heappop(self._free)
            self.running.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its place; does nothing for one that is unknown."""
        if sequence.slot != NO_SLOT:
            self.running.remove(sequence)
            heapq.heappush(self._free, sequence.slot)
            sequence.slot = NO_SLOT
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def forget_computed(self) -> None:
        """Every running sequence is to compute its keys and values again, prompt and output."""
        for sequence in self.running:
            sequence.computed = 0
        self.preemptions += len(self.running)

    def clear_prefixes(self) -> None:
        """Empty the prefix cache, where there is one."""

    def weights_changed(self) -> None:
        """Nothing that was computed until now may be found by a sequence that comes later."""


class Weights(ABC):
    """How an engine takes a version; `module_weights.ModuleWeights` does it for any torch module."""

    @abstractmethod
    def read(self, info: Announced) -> Any:
        """Read `info.tensors` and check them, in a thread beside the steps; what `switch` gets later.

        Raises WeightsRefused, or WeightsUnfit where no other process could take it either.
        """

    @abstractmethod
    def switch(self, version: Any) -> None:
        """Put what `read` gave in the place of the weights in use; an error here breaks the engine."""

    @abstractmethod
    def checksums(self) -> dict[str, str]:
        """`wire.parameter_checksum` of every parameter in use, by its name in the trainer."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Of the weights, for the error where the host has no memory for a second copy."""


class Backend(ABC):
    """The computing part of an engine."""

    def __init__(
        self,
        settings: ServerSettings,
        weights: Weights,
        config: Any,
        queue: Queue | None = None,
    ) -> None:
        """`config`: the text part of the model's configuration; `queue`: a scheduler of its own."""
        self.settings, self.weights = settings, weights
        self.vocab_size: int = config.vocab_size
        # These end a sequence that does not ignore them.
        self.eos_ids = eos_ids(settings.model, config)
        self.queue = queue or Queue(settings.max_num_seqs)

    def begin(self) -> None:
        """First in the engine thread, such as for settings that hold for one thread."""
        return

    @abstractmethod
    def step(self, admit: bool) -> SequenceOf[Drawn] | None:
        """Compute one step of the running sequences, after `queue.admit()` if `admit`; None if none is due.

        Of each sequence the tokens `[computed, length)` are to be computed and `computed` to be moved on; one
        that reaches `length` draws its next token, mostly with `sampling.sample`. `computed` is 0 where all
        is to be computed, also after a cache was cleared; `state` is for what the back end keeps of a
        sequence. Where `request.scores_prompt`, the first sequence of the request extends
        `request.prompt_scores` by (log-probability, rank) of the prompt's tokens from the second on
        (`sampling.score`). The caller appends the tokens with the version that drew them, ends sequences and
        removes them from the queue.
        """

    def __str__(self) -> str:
        """What runs, for the log."""
        return type(self).__name__


def eos_ids(model: Path, config: Any) -> frozenset[int]:
    """End ids of the model's configuration and of its generation configuration, or else the tokenizer's.

    vLLM ends at the tokenizer's in any case; where a configuration has others it is mostly among them.
    """
    found = [config.eos_token_id]
    path = model / "generation_config.json"
    if path.is_file():
        found.append(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
    ids: set[int] = set()
    for entry in found:
        ids.update(entry if isinstance(entry, list) else [] if entry is None else [entry])
    if not ids and (model / "tokenizer.json").is_file():
        end = load_tokenizer(str(model)).eos_token_id
        ids.update([] if end is None else [end])
    return frozenset(ids)


def default_model_len(model: Path) -> int:
    """DEFAULT_MODEL_LEN, or the model's positions if they are fewer; loading it names damages."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        positions = text.get("max_position_embeddings") or text.get("n_positions")  # as GPT-2's kin say it
        return min(DEFAULT_MODEL_LEN, int(positions or DEFAULT_MODEL_LEN))
    except (OSError, ValueError, AttributeError, TypeError):
        return DEFAULT_MODEL_LEN
