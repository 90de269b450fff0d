"""Does an engine have what was sent? A probe, scored on both sides; and checksums, where it can say them.

A probe shows what any engine makes of its weights, within rounding. Checksums also show what rounding hides,
such as a tensor of the version before, and rows of the vocabulary that no probe meets. Called by
`finetune/broadcast.py` after the first updates since a start of either side, and then now and again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from pipelinerl.engines.wire import parameter_checksum
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.refusals import Failure
from pipelinerl.weights.version_update import WeightUpdateError

PROBE_SEQUENCES = 4
PROBE_LENGTH = 64
PROBE_PIECE = 16
"""Tokens that the trainer's policy draws in one go; a row of the probe is several such pieces."""
ROUNDING_FACTOR = 3.0
"""Two sound bfloat16 forwards differ by about 1.4 times what rounding does to one of them.

Of an engine with keys and values in 8 bits, rounding is measured with queries, keys and values in these. Its
kernel also rounds what the softmax gives, as coarsely as values: at most 1.4 times that error, and with
the trainer's own rounding 1.4 x 1.4, which is within this factor.
"""
LEAST_MEAN_LIMIT = 0.01
"""Nats; below it differences do not matter to training, whatever rounding explains."""


@dataclass(frozen=True, slots=True)
class ParityLimits:
    """Largest differences allowed, in nats; None is not checked."""

    max_abs: float | None
    mean_abs: float | None

    def hold(self, max_abs: float, mean_abs: float) -> bool:
        """Whether differences are within; NaN is not."""
        pairs = ((max_abs, self.max_abs), (mean_abs, self.mean_abs))
        return all(limit is None or value <= limit for value, limit in pairs)


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Differences of the log-probabilities of one engine and the trainer, in nats."""

    engine: str
    max_abs: float
    mean_abs: float


def mean_limit(rounding: float) -> float:
    """Largest sound mean difference, in nats, where rounding moves the trainer's own scores by `rounding`."""
    return max(LEAST_MEAN_LIMIT, ROUNDING_FACTOR * rounding)


def probe_starts(vocab_size: int) -> np.ndarray:
    """int32 [4, pieces]: the ids with which the pieces of a probe begin."""
    return probe_ids(vocab_size, PROBE_LENGTH // PROBE_PIECE)


def probe_ids(vocab_size: int, length: int = PROBE_LENGTH) -> np.ndarray:
    """int32 [4, length]: random ids, the same in every run."""
    generator = np.random.default_rng(20)
    return generator.integers(0, vocab_size, (PROBE_SEQUENCES, length), dtype=np.int32)


def check_loaded(publisher: Publisher) -> None:
    """Compare the parameters that engines have with those that were sent; nothing where either is missing.

    Raises WeightUpdateError for the first engine that has others, which is marked broken.
    """
    found = publisher.loaded_checksums()
    tensors = publisher.sent_tensors() if found else None
    if tensors is None:
        return
    sent = {name: parameter_checksum(one.view(-1).view(torch.uint8).numpy()) for name, one in tensors.items()}
    for engine, checksums in found.items():
        if wrong := sorted(name for name, one in sent.items() if checksums.get(name) != one):
            publisher.mark_broken(engine)
            reason = f"{len(wrong)} of {len(sent)} parameters are not what was sent: {wrong[0]} is the first"
            raise WeightUpdateError([Failure(engine, "checksums", reason)], [engine])


def check_parity(
    publisher: Publisher,
    ids: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    limits: ParityLimits,
) -> list[ParityResult]:
    """Score `ids` [N, P] on every engine and with the trainer's `score` ([N, P] to float32 [N, P - 1]).

    Raises WeightUpdateError for the first engine beyond `limits`, which is marked broken.
    """
    expected = score(ids)
    rows = [publisher.prompt_logprobs(row) for row in ids]
    results = []
    for engine in rows[0]:
        found = np.stack([row[engine] for row in rows])
        difference = np.abs(found.astype(np.float64) - expected)
        result = ParityResult(engine, float(difference.max()), float(difference.mean()))
        results.append(result)
        if not limits.hold(result.max_abs, result.mean_abs):
            publisher.mark_broken(engine)
            found_text = f"{result.max_abs:.2g} at most and {result.mean_abs:.2g} on average"
            allowed = f"allowed: max {limits.max_abs}, mean {limits.mean_abs}"
            reason = f"log-probabilities differ by {found_text}; {allowed}"
            raise WeightUpdateError([Failure(engine, "parity", reason)], [engine])
    return results
