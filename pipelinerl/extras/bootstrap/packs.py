"""Demonstrations as packed token arrays, made by worker processes while the model trains.

The recipe reads each phase from a `loader`; the gates pack held-out demonstrations with `joined`.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pipelinerl.base.child import die_with_parent
from pipelinerl.extras.bootstrap.demonstrations import Encoded, Source, encode, shuffled
from pipelinerl.extras.bootstrap.formats import SMALL_CHAT, ChatFormat
from pipelinerl.rollouts import MASKED_TOKEN_ID

T = TypeVar("T")
PREFETCHED_BATCHES = 4
DEADLINE_S = 300.0


class PackedBatch(NamedTuple):
    """Whole sequences behind each other in one row of L tokens.

    input_ids, labels: int32 `[L]`; labels are MASKED_TOKEN_ID where nothing is learned. weights float32 `[L]`
    multiplies a label's loss; lengths int32 `[n]`.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray

    def offsets(self) -> np.ndarray:
        """int32 `[n + 1]`: where each sequence starts, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def position_ids(self) -> np.ndarray:
        """int64 `[L]`, from 0 with each sequence."""
        return np.arange(len(self.input_ids)) - np.repeat(self.offsets()[:-1], self.lengths)

    def target_positions(self) -> np.ndarray:
        """Positions int64 `[N]` of the labels that are learned; a sequence's first token has no predictor."""
        return np.flatnonzero((self.labels != MASKED_TOKEN_ID) & (self.position_ids() > 0))


def joined(sequences: Sequence[Encoded]) -> PackedBatch:
    """The sequences as one row, in order."""
    ids, labels, weights = (np.concatenate(column) for column in zip(*sequences))
    return PackedBatch(ids, labels, weights, np.array([len(s.input_ids) for s in sequences], np.int32))


def pack(sequences: Iterable[Encoded], tokens: int) -> Iterator[PackedBatch]:
    """Rows of at most `tokens` tokens in order of arrival; the last, partial one is kept."""
    waiting: list[Encoded] = []
    size = 0
    for sequence in sequences:
        if size + len(sequence.input_ids) > tokens and waiting:
            yield joined(waiting)
            waiting, size = [], 0
        waiting.append(sequence)
        size += len(sequence.input_ids)
    if waiting:
        yield joined(waiting)


@dataclass(eq=False)
class PackStream(IterableDataset[PackedBatch]):
    """Rows of one phase without end; each worker takes its share of the world seeds from `first_seed` on."""

    source: Source
    phase: str
    tokenizer_file: Path
    first_seed: int
    pack_tokens: int
    max_length: int
    prompt_loss: float
    chat: ChatFormat = SMALL_CHAT

    def __iter__(self) -> Iterator[PackedBatch]:
        worker = get_worker_info()
        index, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        worlds = itertools.count(self.first_seed + index, stride)
        made = itertools.chain.from_iterable(self.source(world, self.phase) for world in worlds)
        encoded = encode(tokenizer, made, self.max_length, self.prompt_loss, self.chat)
        random = np.random.default_rng((self.first_seed + index, 7))
        return pack(shuffled(encoded, random), self.pack_tokens)


def loader(stream: PackStream, workers: int) -> DataLoader[PackedBatch]:
    """The stream's rows, made ahead by `workers` processes; their order depends on that number alone.

    Iterating raises what a worker raised, and RuntimeError for one that died or gives nothing in DEADLINE_S.
    """
    return DataLoader(
        stream,
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        multiprocessing_context="spawn",
        worker_init_fn=partial(_die_with, os.getpid()),
        prefetch_factor=PREFETCHED_BATCHES,
        timeout=DEADLINE_S,
    )


def _die_with(parent: int, _: int) -> None:
    die_with_parent(parent)


def _as_it_is(made: T) -> T:
    """Arrays stay arrays: as tensors they would take room in /dev/shm, which containers have little of."""
    return made
