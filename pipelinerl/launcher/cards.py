"""GPUs as the memory plan sees them: bytes in all and free, and how fast they are.

Real cards are asked with `nvidia-smi`; a dry run may imagine others: `hardware.devices=4xH100-80GB`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.card_limit import SPEEDS, Speed, nominal_speed
from pipelinerl.config.detect import nvidia_smi

GIB = 2**30
_MIB = 2**20
_HOPPER = ("H100", "H200", "H800", "H20", "GH200")
_USABLE_MIB = {24: 23028, 40: 40960, 48: 46068, 80: 81559, 96: 97871, 141: 143771, 180: 183359}
"""What the driver reports of cards that are sold with so many GB."""
_IMAGINED = re.compile(r"(?P<count>\d+)x(?P<name>[A-Za-z0-9]+)-(?P<gb>\d+)GB", re.IGNORECASE)


@dataclass(frozen=True)
class Card:
    """One GPU; sizes in bytes."""

    total: int
    free: int
    name: str = ""
    """As the driver says it; empty where it is not known."""

    @property
    def speed(self) -> Speed:
        """That of an H100 where the name is not known.

        Only the ratio of its values matters, to divide cards between engines and trainer.
        """
        return nominal_speed(self.name) or SPEEDS["H100"]

    @property
    def hopper(self) -> bool:
        """Whether it is known to be one of Hopper's."""
        return any(kind in self.name.upper() for kind in _HOPPER)

    def __str__(self) -> str:
        return f"{self.name or 'GPU'}, {self.total / GIB:.0f} GiB"


CardOf = Callable[[str], Card | None]
"""The card with a device's id, as `CUDA_VISIBLE_DEVICES` names it; None if nothing is known of it."""


def card_memory(device: str) -> Card | None:
    """What `nvidia-smi` says about a device; None if it says nothing."""
    said = nvidia_smi(
        "--query-gpu=memory.total,memory.free,name", "--format=csv,noheader,nounits", "-i", device
    )
    try:
        total, free, name = (said or "").strip().split(",", 2)
        return Card(int(total) * _MIB, int(free) * _MIB, name.strip())
    except ValueError:
        return None


def imagined_cards(devices: object) -> tuple[int, Card] | None:
    """The number and the kind of cards in `4xH100-80GB`; None for anything that is no such text.

    Raises ConfigError for a number that is 0.
    """
    found = _IMAGINED.fullmatch(str(devices))
    if found is None:
        return None
    count, gb = int(found["count"]), int(found["gb"])
    if not count or not gb:
        raise ConfigError(f"hardware.devices={devices}: imagine at least one card with some memory")
    total = _USABLE_MIB.get(gb, gb * 953) * _MIB  # others: what they are sold with, in units of 1e9 bytes
    return count, Card(total, total, f"{found['name'].upper()}-{gb}GB")
