"""What all rollouts of one worker process share: settings, buffer, random numbers, critic slots, watch."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from domains.math.pool import VerifierPool
from domains.raro.config import RaroSettings, settings_of
from domains.raro.pairs import PairBuffer
from domains.raro.replay import ReplayBuffer
from domains.raro.watch import Watch
from pipelinerl.utils import PerTree

FOLDER = "raro"
WARNINGS = "warnings.jsonl"


@dataclass(slots=True)
class Runtime:
    """One per process and configuration tree. `buffer` is None unless a critic gives the reward."""

    settings: RaroSettings
    buffer: PairBuffer | None
    rng: random.Random
    critic_slots: asyncio.Semaphore
    watch: Watch
    pool: VerifierPool = field(default_factory=lambda: VerifierPool(workers=2))
    """Compares results in mathematics; starts no process before the first comparison."""


def _make(cfg: DictConfig) -> Runtime:
    settings, output_dir = settings_of(cfg), Path(str(cfg.output_dir))
    return Runtime(
        settings=settings,
        buffer=open_buffer(settings, output_dir) if settings.reward == "critic" else None,
        rng=random.Random(),
        critic_slots=asyncio.Semaphore(settings.max_critic_requests),
        watch=Watch(output_dir / FOLDER / WARNINGS),
    )


runtime_of = PerTree(_make).of
"""The runtime of a tree, made on first use."""


def replay_path(settings: RaroSettings, output_dir: Path) -> Path:
    """The live SQLite file."""
    given = settings.replay.path
    return Path(given) if given else output_dir / FOLDER / "replay.sqlite3"


def backup_path(output_dir: Path) -> Path:
    """The copy that the checkpoint hook writes."""
    return output_dir / FOLDER / "replay.checkpoint.sqlite3"


def open_buffer(settings: RaroSettings, output_dir: Path) -> PairBuffer:
    """The run's buffer on the configured backend."""
    replay = settings.replay
    if replay.backend == "redis":
        from domains.raro.replay_redis import RedisReplayBuffer

        return RedisReplayBuffer(str(replay.path), output_dir.name, replay.capacity, replay.mode)
    return ReplayBuffer(replay_path(settings, output_dir), replay.capacity, replay.mode, output_dir.name)
