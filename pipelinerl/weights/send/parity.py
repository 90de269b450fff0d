"""Do engine and trainer give the same log-probabilities? A fixed probe, scored on both sides."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipelinerl.weights.send.publisher import Publisher
from pipelinerl.weights.send.version_update import WeightUpdateError

PROBE_SEQUENCES = 4
PROBE_LENGTH = 64


@dataclass(frozen=True, slots=True)
class ParityLimits:
    """Largest differences allowed, in nats; None is not checked."""

    max_abs: float | None
    mean_abs: float | None


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Differences of the log-probabilities of one engine and the trainer, in nats."""

    engine: str
    max_abs: float
    mean_abs: float


def probe_ids(vocab_size: int, length: int = PROBE_LENGTH) -> np.ndarray:
    """int32 [4, length]: the same ids in every run."""
    generator = np.random.default_rng(20)
    return generator.integers(0, vocab_size, (PROBE_SEQUENCES, length), dtype=np.int32)


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
        pairs = ((result.max_abs, limits.max_abs), (result.mean_abs, limits.mean_abs))
        # Not `value > limit`: NaN must be outside.
        if not all(limit is None or value <= limit for value, limit in pairs):
            publisher.mark_broken(engine)
            found_text = f"{result.max_abs:.2g} at most and {result.mean_abs:.2g} on average"
            allowed = f"allowed: max {limits.max_abs}, mean {limits.mean_abs}"
            reason = f"log-probabilities differ by {found_text}; {allowed}"
            raise WeightUpdateError(engine, "parity", reason, [engine])
    return results
