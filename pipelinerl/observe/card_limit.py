"""What share of their cards' limit the engines of a run reached, for the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.config.card_limit import EngineReads, nominal_speed
from pipelinerl.config.files import config_path, read_shown
from pipelinerl.observe.history import series


@dataclass(frozen=True)
class CardLimit:
    """Sampled tokens a second of all engines, beside what reading their cards' memory allows."""

    tokens_per_second: float
    limit: float
    """The same if reading weights, keys and values were all that takes time."""
    context: float
    """Tokens that a sampled token attends to, on average."""
    requests: float
    """Requests in flight at an engine, on average."""
    bandwidth: float
    """Bytes a second of a card."""
    measured: bool
    """Whether the bandwidth was measured, and is not the data sheet's."""

    @property
    def share(self) -> float:
        """What was reached of the limit."""
        return self.tokens_per_second / self.limit

    def __str__(self) -> str:
        source = "a copy on the trainer's card reached" if self.measured else "its data sheet says, nominal"
        return (
            f"The engines sampled {self.share:.0%} of their cards' limit: {self.tokens_per_second:,.0f} of "
            f"the {self.limit:,.0f} tokens/s that reading the weights once a step, and {self.context:,.0f} "
            f"keys and values for each of {self.requests:,.0f} requests at an engine, would leave at "
            f"{self.bandwidth / 1e12:.2f} TB/s ({source})."
        )


def card_limit(
    output_dir: Path, actor: list[dict[str, Any]], finetune: list[dict[str, Any]]
) -> CardLimit | None:
    """The limit of the run in `output_dir` by its own lengths and requests; None where it is not known.

    That is so on a CPU, of engines that the run did not start, and of cards or models without known sizes.
    """
    if not config_path(output_dir).is_file():
        return None
    tree = read_shown(output_dir)
    found = (tree.get("derived") or {}).get("engine_reads")
    engines = sum(job.kind == "actor_llm" for job in tree.get("jobs") or ())
    rate, context, requests = (
        _typical(actor, f"actor/{name}")
        for name in ("output_tokens_per_second", "context_tokens", "requests/engine_running")
    )
    if found is None or not engines or not (rate and context and requests):
        return None
    reads = EngineReads.model_validate(dict(found))
    copied = _typical(finetune, "throughput/copy_bytes_per_sec") if reads.trainer_alike else None
    speed = nominal_speed(reads.card)
    if not (bandwidth := copied or (speed and speed.bandwidth)):
        return None
    limit = engines * reads.tokens_per_second(requests, context, bandwidth)
    return CardLimit(rate, limit, context, requests, bandwidth, copied is not None)


def _typical(records: Sequence[dict[str, Any]], name: str) -> float | None:
    found = series(list(records), name)
    return float(np.median(found.y)) if len(found) else None
