"""Do engine and trainer give the same log-probabilities? A fixed probe, scored on both sides."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipelinerl.weights.send.publisher import Publisher, WeightUpdateError

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


def limits_for(dtype: str, max_abs: float = 1e-4) -> ParityLimits:
    """float32: each probability within `max_abs`; bfloat16: within 0.02 on average."""
    if dtype == "float32":
        return ParityLimits(max_abs, None)
    if dtype == "bfloat16":
        return ParityLimits(None, 0.02)
    raise ValueError(f"no parity limits for dtype {dtype!r}; use float32 or bfloat16")


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
        if not _within(result, limits):
            publisher.mark_broken(engine)
            raise WeightUpdateError(
                engine,
                "parity",
                f"log-probabilities differ by {result.max_abs:.2g} at most and {result.mean_abs:.2g} "
                f"on average; allowed: max {limits.max_abs}, mean {limits.mean_abs}",
                [engine],
            )
    return results


def _within(result: ParityResult, limits: ParityLimits) -> bool:
    # Written so that NaN is outside.
    return (limits.max_abs is None or result.max_abs <= limits.max_abs) and (
        limits.mean_abs is None or result.mean_abs <= limits.mean_abs
    )
