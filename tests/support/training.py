"""Short runs of the trainer over a recorded stream of four steps, six samples each; killed and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelinerl.finetune.broadcast import Announce, Broadcaster
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.observe.metrics import MetricsWriter
from tests.support.builders import trainer_config, write_steps
from tests.support.policy import tiny_model

SAVED = ("current/model.safetensors", "training_state/tensors.safetensors")


class Noting(Broadcaster):
    """Notes what it was asked to publish."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        self.versions.append(version)
        return super().publish(version, announce) | {"weights/bytes": 1.0}


def unheard(version: int) -> None:
    """An announcement of which a test wants to know nothing."""


class Killed(RuntimeError): ...


class Deadly(Noting):
    """Stops the trainer when it publishes a certain version."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._last = version

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        if version >= self._last:
            raise Killed
        return super().publish(version, announce)


def trainer(folder: Path, broadcaster: Broadcaster | None = None, **fields: Any) -> Trainer:
    """The trainer of a run in `folder`, whose steps are recorded if they are not there yet."""
    if not (folder / "streams/training_data").exists():
        write_steps(folder, 4, 6)
    return Trainer(trainer_config(folder, tiny_model(), **fields), Ranks(), None, broadcaster)


def train(folder: Path, broadcaster: Broadcaster | None = None, **fields: Any) -> Trainer:
    """Run it, with metrics."""
    one = trainer(folder, broadcaster, **fields)
    with MetricsWriter(folder, "finetune") as one._writer:
        one.run()
    return one


def saved(folder: Path, name: str = SAVED[0]) -> dict[str, torch.Tensor]:
    return load_file(folder / "finetune" / name)


def assert_resumes_bit_for_bit(root: Path, killed_at: int = 18, **fields: Any) -> tuple[Path, Path]:
    """A run killed before it publishes `killed_at` and started again saves what one does that was not.

    Returns the folders of the latter and the former.
    """
    straight, resumed = root / "straight", root / "resumed"
    train(straight, **fields)
    with pytest.raises(Killed):
        train(resumed, Deadly(killed_at), **fields)
    train(resumed, **fields)
    for name in SAVED:
        expected, found = saved(straight, name), saved(resumed, name)
        assert expected.keys() == found.keys() and len(expected) > 5
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    return straight, resumed
