"""What a world is made from: its size, seed and mixture, validated before anything is drawn."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

GENERATOR_VERSION: Final = 1
"""Raised with every change that alters the bytes of a world."""

SPLITS: Final = ("train", "val", "test")
MANIFEST: Final = "manifest.json"

DEFAULT_PATTERNS: Final = {"LW": 4, "WL": 1, "LLW": 3, "LWL": 3, "LWW": 1, "LWLW": 2, "LLWL": 1, "LWWL": 1}
_COUNTS: Final = (
    *("companies", "test_companies", "private_docs", "web_docs"),
    *("train_chains", "val_chains", "test_chains"),
)
MAX_COMPANIES: Final = 5000
"""Per side (train and val, test): task ids are `DR90000`..`DR94999` and `DR95000`..`DR99999`."""


class WorldError(ValueError):
    """A world that cannot be made as asked; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """One synthetic enterprise world. Equal configurations give equal bytes."""

    seed: int = 0
    size: str = "small"
    """`tiny`, `quick`, `small`, `paper` or `custom`; the counts below are what counts."""
    companies: int = 4
    """Companies of the train and val splits."""
    test_companies: int = 2
    """Companies of the test split; they share nothing with the others."""
    private_docs: int = 80
    """Private documents per company."""
    web_docs: int = 1200
    """Pages of the public web, shared out equally over all companies."""
    train_chains: int = 512
    val_chains: int = 96
    test_chains: int = 192
    patterns: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_PATTERNS))
    """Weights of the hop patterns, one `L` (private) or `W` (web) per hop."""
    long_fraction: float = 0.06
    """Share of documents longer than 12,000 characters; 0 makes training worlds faster to build."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise WorldError(f"world.{problem}")

    def _problems(self) -> Iterator[str]:
        for name in _COUNTS:
            low = 12 if name == "private_docs" else 0
            if getattr(self, name) < low:
                yield f"{name}={getattr(self, name)} is below {low}; raise it to at least {low}"
        if max(self.companies, self.test_companies) > MAX_COMPANIES:
            yield f"companies and world.test_companies may be at most {MAX_COMPANIES}"
        if self.companies == 0 and self.train_chains + self.val_chains:
            yield "companies=0 leaves no company for train and val chains; set those to 0 too"
        if self.test_companies == 0 and self.test_chains:
            yield "test_companies=0 leaves no company for test chains; set test_chains to 0 too"
        total = self.companies + self.test_companies
        if total == 0:
            yield "companies and world.test_companies are both 0; ask for at least one company"
        if self.web_docs < 50 * total:
            yield f"web_docs={self.web_docs} is too few; {total} companies need {50 * total}"
        if not 0 <= self.long_fraction <= 0.5:
            yield f"long_fraction={self.long_fraction} must lie in 0..0.5"
        if not self.patterns:
            yield "patterns is empty; give at least one pattern such as LW: 1"
        for pattern, weight in self.patterns.items():
            if not 2 <= len(pattern) <= 4 or set(pattern) != {"L", "W"}:
                yield f"patterns: {pattern!r} must be 2-4 letters with at least one L and one W"
            if weight <= 0:
                yield f"patterns.{pattern}={weight} must be above 0; leave a pattern out instead"

    def chains(self, split: str) -> int:
        """Chains asked for in `train`, `val` or `test`."""
        return {"train": self.train_chains, "val": self.val_chains, "test": self.test_chains}[split]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {**asdict(self), "patterns": dict(sorted(self.patterns.items()))}


def _sized(size: str, *counts: int) -> WorldConfig:
    named: dict[str, Any] = dict(zip(_COUNTS, counts, strict=True))
    return WorldConfig(size=size, **named)


SIZES: Final[Mapping[str, WorldConfig]] = {
    "tiny": _sized("tiny", 2, 1, 24, 200, 24, 8, 8),
    "quick": _sized("quick", 4, 2, 40, 400, 160, 12, 60),
    "small": _sized("small", 4, 2, 80, 1200, 512, 96, 192),
    "paper": _sized("paper", 2, 1, 400, 4000, 559, 98, 344),
}


def world_config(size: str = "small", seed: int = 0, **changes: Any) -> WorldConfig:
    """The configuration of a named size; `custom` starts from `small` and takes every field by name.

    Raises `WorldError` for an unknown size or field, and for counts given to a named size.
    """
    if size not in (*SIZES, "custom"):
        raise WorldError(f"world.size={size!r} is not one of {', '.join(SIZES)}, custom")
    fields = WorldConfig.__dataclass_fields__
    if unknown := sorted(set(changes) - set(fields)):
        raise WorldError(f"world.{unknown[0]} is unknown; allowed: {', '.join(fields)}")
    if size != "custom" and (fixed := sorted(set(changes) - {"patterns", "long_fraction"})):
        raise WorldError(f"world.{fixed[0]} is fixed by size={size}; use size=custom to choose it")
    return replace(SIZES["small" if size == "custom" else size], size=size, seed=seed, **changes)


def manifest_of(task_data_root: str | None) -> dict[str, Any]:
    """The manifest beside a task folder; empty if the data do not come from a generated world."""
    path = Path(task_data_root).parent / MANIFEST if task_data_root else None
    if path is None or not path.is_file():
        return {}
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest
