"""What all rollouts of one worker process share: settings, buffer, random numbers, critic slots, watch."""

import asyncio
import hashlib
import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from domains.math.pool import VerifierPool
from domains.raro.config import RaroSettings, settings_of
from domains.raro.pairs import PairBuffer
from domains.raro.replay import ReplayBuffer
from domains.raro.watch import Watch
from pipelinerl.utils import PerTree

if TYPE_CHECKING:  # the client is an extra
    from domains.raro.replay_redis import RedisReplayBuffer

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
        return _in_server(settings, output_dir)
    return ReplayBuffer(replay_path(settings, output_dir), replay.capacity, replay.mode, output_dir.name)


def clear_server(settings: RaroSettings, output_dir: Path) -> None:
    """Empty the run's buffer in its server. Raises OSError with one line if that does not answer."""
    from redis import RedisError

    try:
        with closing(_in_server(settings, output_dir)) as buffer:
            buffer.clear()
    except RedisError as error:
        raise OSError(f"the replay buffer's server does not answer: {error}") from error


def _in_server(settings: RaroSettings, output_dir: Path) -> "RedisReplayBuffer":
    from domains.raro.replay_redis import RedisReplayBuffer

    # Runs of one server may have folders of one name, so the whole path tells them apart.
    path = str(output_dir.absolute())
    run_id = f"{output_dir.name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    replay = settings.replay
    return RedisReplayBuffer(str(replay.path), run_id, replay.capacity, replay.mode)
