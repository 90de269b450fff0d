"""The trainer's ranks: nothing at all for one process, accelerate's process group for several."""

import os
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")
HOST_DEADLINE = timedelta(hours=2)
"""How long a rank waits for the others' data; above any deadline of the data itself."""


class Ranks:
    """This process among the trainer's; of one rank every operation is the identity."""

    index: int = 0
    count: int = 1
    local_index: int = 0
    """Among the ranks of its own host, which is the number of its card there."""

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in order, on every rank."""
        return [value]

    def arrive(self) -> dist.Work:
        """Of several ranks: a handle that is complete once all of them have called this."""
        raise NotImplementedError("one rank waits for no other")

    def close(self) -> None:
        """Leave the process group."""


class AccelerateRanks(Ranks):
    """Ranks started by `accelerate launch` or torchrun: gloo on the CPU, NCCL on GPUs.

    What the hosts tell each other goes over gloo in any case: it must not wait for the devices, and a rank
    whose texts come late must not run into NCCL's short patience.
    """

    def __init__(self, cpu: bool) -> None:
        from accelerate import PartialState

        self._state = PartialState(cpu=cpu)
        self.index = self._state.process_index
        self.count = self._state.num_processes
        self.local_index = self._state.local_process_index
        self._hosts = dist.new_group(backend="gloo", timeout=HOST_DEADLINE)

    def gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, value, group=self._hosts)
        return gathered

    def arrive(self) -> dist.Work:
        return dist.barrier(self._hosts, async_op=True)

    def close(self) -> None:
        self._state.destroy_process_group()


def join_ranks(cpu: bool) -> Ranks:
    """One rank, unless a distributed launcher started this process (it sets LOCAL_RANK)."""
    several = "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return AccelerateRanks(cpu) if several else Ranks()
