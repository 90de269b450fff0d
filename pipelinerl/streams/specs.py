"""Names of streams: which topic, instance and partition, and where it lies below the run's folder.

Every reader and writer is opened with one of these; a backend maps it to files or to keys.
"""

import math
from dataclasses import dataclass
from pathlib import Path


def is_stats_topic(topic: str) -> bool:
    """Statistics are for people and stay JSON lines: `stats`, `stats_test`, `preprocessor_stats`."""
    return topic == "stats" or topic.startswith("stats_") or topic.endswith("_stats")


KEPT_TOPIC = "rollouts"
"""Whole groups for people, where those of the stream `actor` do not stay."""


def is_for_people(topic: str) -> bool:
    """Topics that no process of the run reads; they stay on disk whatever the backend."""
    return is_stats_topic(topic) or topic in ("actor_test", KEPT_TOPIC)


CURRENT = "streams"


def stream_folders(exp_path: Path) -> list[str]:
    """Names of the folders that hold the streams of each start of a run, the earliest first."""
    aside = [path.name for path in Path(exp_path).glob(f"{CURRENT}_[0-9]*") if path.is_dir()]
    return [*sorted(aside, key=attempt_of), CURRENT]


def attempt_of(folder: str) -> float:
    """Which attempt of the launcher wrote one of `stream_folders`, from 0; infinity for the last."""
    return math.inf if folder == CURRENT else int(folder.removeprefix(f"{CURRENT}_"))


def check_plain(kind: str, name: str) -> None:
    """ValueError for the name of a topic or a reader that cannot be the name of a file."""
    if not name or name != name.strip() or "/" in name or name.startswith((".", "~")):
        raise ValueError(f"stream {kind} {name!r} is not a plain name; use letters, digits and underscores")


@dataclass(frozen=True)
class _Topic:
    exp_path: Path
    topic: str
    instance: int = 0

    def __post_init__(self) -> None:
        check_plain("topic", self.topic)
        object.__setattr__(self, "exp_path", Path(self.exp_path))


@dataclass(frozen=True)
class SingleStreamSpec(_Topic):
    """One partition of a topic: one writer, any number of readers."""

    partition: int = 0

    @property
    def directory(self) -> Path:
        return self.exp_path / CURRENT / self.topic / str(self.instance) / str(self.partition)

    def __str__(self) -> str:
        return f"{self.topic}/{self.instance}/{self.partition}"


@dataclass(frozen=True)
class StoredStreamSpec(SingleStreamSpec):
    """One that may be of an earlier start; `folder` is one of `stream_folders`."""

    folder: str = CURRENT

    @property
    def directory(self) -> Path:
        return self.exp_path / self.folder / self.topic / str(self.instance) / str(self.partition)


@dataclass(frozen=True)
class StreamRangeSpec(_Topic):
    """Partitions `partition_range[0] .. partition_range[1] - 1` of a topic, written by one writer."""

    partition_range: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        start, end = self.partition_range
        if not 0 <= start < end:
            raise ValueError(f"partition range {self.partition_range} of {self.topic} is empty or negative")

    @property
    def partitions(self) -> range:
        return range(*self.partition_range)

    def single(self, partition: int) -> SingleStreamSpec:
        return SingleStreamSpec(self.exp_path, self.topic, self.instance, partition)


StreamSpec = SingleStreamSpec | StreamRangeSpec
