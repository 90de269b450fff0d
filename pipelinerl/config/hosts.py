"""The hosts of a run, as placement and commands see them: pure values.

A run on one host has the launcher's only. With `world.backend=ray` they are the nodes of a Ray cluster
(`launcher/ray_backend.py`), or imagined ones in a dry run.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pipelinerl.base.ports import LOOPBACK

IMAGINED = 2
"""Hosts of a dry run that does not say how many."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host; rank 0 is the launcher's own."""

    rank: int = 0
    name: str = "localhost"
    address: str = LOOPBACK
    """At which the other hosts reach it; the loopback address where there is no other."""
    devices: tuple[str, ...] = ()
    """Ids of the GPUs that the run may use there, as CUDA_VISIBLE_DEVICES names them."""
    cores: int = 1
    """Cores that its processes may use."""
    interface: str | None = None
    """Network interface that has the address; None on a single host."""

    def __str__(self) -> str:
        return f"host {self.rank} ({self.name}, {self.address})"


def this_host(devices: Sequence[str] = ()) -> Host:
    """The launcher's host, alone."""
    return Host(devices=tuple(devices), cores=len(os.sched_getaffinity(0)))


def imagined_hosts(count: int | None, devices: Sequence[str]) -> list[Host]:
    """Hosts of a dry run, each with GPUs of these ids; addresses are those kept for examples (RFC 5737)."""
    cores = len(os.sched_getaffinity(0))
    return [
        Host(
            rank=rank,
            name=f"imagined-{rank}",
            address=f"192.0.2.{rank + 1}",
            devices=tuple(devices),
            cores=cores,
            interface="eth0",
        )
        for rank in range(count or IMAGINED)
    ]
