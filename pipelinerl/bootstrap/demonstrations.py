"""What a domain hands to the bootstrap recipe, and how it becomes packed token arrays."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pipelinerl.bootstrap.formats import ASSISTANT, END, USER

MASKED = -100
_ENCODE_TOGETHER = 256
_LOOK_S = 1.0
_SHUFFLE_FIRST, _SHUFFLE_MOST = 4_000, 24_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One call: what the model reads and what it should answer.

    `kind` names the skill for the gates; `exact` says whether this answer is the only right one (the gates
    measure exact ones only; an imperfect or freely chosen answer is trained, not measured). `fixed` is the
    beginning of the completion that has to be so when the rest is free; the gates then measure it alone.
    """

    kind: str
    prompt: str
    completion: str
    exact: bool = True
    fixed: str | None = None


class TokenPack(NamedTuple):
    """Whole sequences behind each other: int32 ids [L], labels [L] (−100 = no loss), float32 weights [L] of
    the labels, int32 lengths [n]."""

    input_ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray


class Encoded(NamedTuple):
    """One demonstration: int32 ids and labels, float32 weights, `[n]` each."""

    input_ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


Source = Callable[[int, str], Iterable[Demonstration]]
"""(seed, phase) -> demonstrations of one small world; equal arguments give equal demonstrations."""


def encode(
    tokenizer: Tokenizer, demonstrations: Iterable[Demonstration], max_length: int, prompt_loss: float
) -> Iterator[Encoded]:
    """Token ids, labels and weights of each demonstration.

    Prompt tokens have the weight `prompt_loss`, and no label where it is 0. A demonstration longer than
    `max_length` is an error (ValueError).
    """
    batch: list[Demonstration] = []
    for demonstration in demonstrations:
        batch.append(demonstration)
        if len(batch) == _ENCODE_TOGETHER:
            yield from _encode_batch(tokenizer, batch, max_length, prompt_loss)
            batch = []
    yield from _encode_batch(tokenizer, batch, max_length, prompt_loss)


def _encode_batch(
    tokenizer: Tokenizer, batch: list[Demonstration], max_length: int, prompt_loss: float
) -> Iterator[Encoded]:
    prompts = tokenizer.encode_batch_fast([USER + d.prompt + ASSISTANT for d in batch])
    answers = tokenizer.encode_batch_fast([d.completion + END for d in batch])
    for demonstration, prompt, answer in zip(batch, prompts, answers):
        ids = np.array(prompt.ids + answer.ids, np.int32)
        if len(ids) > max_length:
            raise ValueError(
                f"a {demonstration.kind!r} demonstration has {len(ids)} tokens; max_length is {max_length}"
            )
        labels = ids.copy()
        labels[: 1 if prompt_loss else len(prompt.ids)] = MASKED
        weights = np.ones(len(ids), np.float32)
        weights[: len(prompt.ids)] = prompt_loss
        yield Encoded(ids, labels, weights)


def shuffled(
    sequences: Iterable[Encoded],
    random: np.random.Generator,
    first: int = _SHUFFLE_FIRST,
    most: int = _SHUFFLE_MOST,
) -> Iterator[Encoded]:
    """The sequences in random order, drawn from a buffer that grows from `first` to `most` of them.

    Demonstrations of one world share documents and values. Trained on one after the other they are learned
    by heart and forgotten again, instead of being read; apart from each other they can only be read.
    """
    buffer: list[Encoded] = []
    given = 0
    for sequence in sequences:
        buffer.append(sequence)
        if len(buffer) > min(first + given, most):
            at = int(random.integers(len(buffer)))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            yield buffer.pop()
            given += 1
    random.shuffle(buffer)  # type: ignore[arg-type]
    yield from buffer


def pack(sequences: Iterable[Encoded], tokens: int) -> Iterator[TokenPack]:
    """Packs of at most `tokens` tokens in order of arrival; the last, partial one is kept."""
    waiting: list[Encoded] = []
    size = 0
    for sequence in sequences:
        if size + len(sequence.input_ids) > tokens and waiting:
            yield _join(waiting)
            waiting, size = [], 0
        waiting.append(sequence)
        size += len(sequence.input_ids)
    if waiting:
        yield _join(waiting)


def _join(sequences: list[Encoded]) -> TokenPack:
    ids, labels, weights = (np.concatenate(column) for column in zip(*sequences))
    return TokenPack(ids, labels, weights, np.array([len(s.input_ids) for s in sequences], np.int32))


class PackStream:
    """Packs of one phase, made by worker processes from consecutive world seeds.

    With one worker the order is fixed by the seeds; with several, the packs are the same in another order.
    """

    def __init__(
        self,
        source: Source,
        phase: str,
        tokenizer_file: Path,
        *,
        first_seed: int,
        workers: int,
        pack_tokens: int,
        max_length: int,
        prompt_loss: float,
        deadline_s: float = 300.0,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._phase = phase
        self._deadline_s = deadline_s
        self._packs: multiprocessing.Queue[TokenPack | str] = context.Queue(maxsize=4 * workers)
        self._workers = [
            context.Process(
                target=_produce,
                args=(
                    self._packs, source, phase, str(tokenizer_file), first_seed + index, workers,
                    pack_tokens, max_length, prompt_loss,
                ),
                daemon=True,
            )
            for index in range(workers)
        ]  # fmt: skip
        for worker in self._workers:
            worker.start()

    def __iter__(self) -> Iterator[TokenPack]:
        while True:
            item = self._next()
            if isinstance(item, str):
                raise RuntimeError(f"making demonstrations of phase {self._phase!r} failed: {item}")
            yield item

    def _next(self) -> TokenPack | str:
        expires = time.monotonic() + self._deadline_s
        while True:
            dead = next((w for w in self._workers if w.exitcode not in (None, 0)), None)
            try:
                return self._packs.get(timeout=_LOOK_S)
            except queue.Empty:
                if dead is not None:  # seen dead before the queue was seen empty: nothing of it is lost
                    raise RuntimeError(
                        f"a worker making demonstrations of phase {self._phase!r} ended "
                        f"with exit code {dead.exitcode}"
                    ) from None
            if time.monotonic() > expires:
                raise TimeoutError(
                    f"no demonstrations of phase {self._phase!r} arrived within {self._deadline_s:.0f} s"
                )

    def close(self) -> None:
        """End the workers; what they had ready is dropped."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join(timeout=10)


def _produce(
    packs: multiprocessing.Queue[TokenPack | str],
    source: Source,
    phase: str,
    tokenizer_file: str,
    seed: int,
    stride: int,
    pack_tokens: int,
    max_length: int,
    prompt_loss: float,
) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file)

    def sequences() -> Iterator[Encoded]:
        for world in itertools.count(seed, stride):
            yield from encode(tokenizer, source(world, phase), max_length, prompt_loss)

    try:
        for item in pack(shuffled(sequences(), np.random.default_rng((seed, 7))), pack_tokens):
            packs.put(item)
    except Exception as error:
        packs.put(f"{type(error).__name__}: {error}")
        raise
