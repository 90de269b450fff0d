"""The trainer's ranks: nothing at all for one process, accelerate's process group for several.

`finetune/__main__.py` joins them; loop, learner and gradient sums ask `Ranks`. Every method is collective:
where one rank leaves out a call, the others wait in it.
"""

import os
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from pipelinerl.modeling.seq_parallel import RowGroup, join_row

T = TypeVar("T")
HOST_DEADLINE = timedelta(hours=2)
"""How long a rank waits for the others' data; above any deadline of the data itself."""
HOST_AND_CARD = "cpu:gloo,cuda:nccl"
"""Backends where tensors of both are summed over ranks: gradients in host memory have a norm."""


class Ranks:
    """This process among the trainer's; of one rank every operation is the identity."""

    index: int = 0
    count: int = 1
    local_index: int = 0
    """Among the ranks of its own host, which is the number of its card there."""
    row: RowGroup | None = None
    """The ranks that compute a row together (`finetune.seq_parallel`); None: each has rows of its own."""

    @property
    def is_main(self) -> bool:
        return self.index == 0

    @property
    def leads(self) -> bool:
        """Whether this rank reads rows, and counts them for those that compute them with it."""
        return self.row is None or self.row.leads

    @property
    def partition(self) -> int:
        """Of `training_data`: that which this rank's rows come from."""
        return self.index if self.row is None else self.index // self.row.count

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in order, on every rank."""
        return [value]

    def arrive(self) -> dist.Work:
        """Of several ranks: a handle that is complete once all of them have called this."""
        raise NotImplementedError("one rank waits for no other")

    def close(self) -> None:
        """Leave the process group."""


class LoneRank(Ranks):
    """One rank with a process group, which FSDP wants to keep states in host memory."""

    def __init__(self, cpu: bool) -> None:
        store = dist.HashStore()
        dist.init_process_group("gloo" if cpu else HOST_AND_CARD, store=store, rank=0, world_size=1)

    def close(self) -> None:
        dist.destroy_process_group()


class AccelerateRanks(Ranks):
    """Ranks started by `accelerate launch` or torchrun: gloo on the CPU, NCCL on GPUs.

    What the hosts tell each other goes over gloo in any case: it must not wait for the devices, and a rank
    whose samples come late must not run into NCCL's short patience.
    """

    def __init__(self, cpu: bool, offload: bool = False, seq_parallel: int = 1) -> None:
        from accelerate import PartialState

        backend = {"backend": HOST_AND_CARD} if offload and not cpu else {}
        self._state = PartialState(cpu=cpu, **backend)
        self.index = self._state.process_index
        self.count = self._state.num_processes
        self.local_index = self._state.local_process_index
        self._hosts = dist.new_group(backend="gloo", timeout=HOST_DEADLINE)
        if seq_parallel > 1:
            self.row = join_row(self.index, self.count, seq_parallel, HOST_DEADLINE)

    def gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, value, group=self._hosts)
        return gathered

    def arrive(self) -> dist.Work:
        return dist.barrier(self._hosts, async_op=True)

    def close(self) -> None:
        self._state.destroy_process_group()


def join_ranks(cpu: bool, offload: bool = False, seq_parallel: int = 1) -> Ranks:
    """One rank, unless a distributed launcher started this process (it sets LOCAL_RANK).

    `offload`: the policy will be sharded with its states in host memory, whatever the number of ranks.
    `seq_parallel` neighbours compute each row together; ValueError where that does not divide the ranks.
    """
    if "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return AccelerateRanks(cpu, offload, seq_parallel)
    if seq_parallel > 1:
        raise ValueError(f"finetune.seq_parallel={seq_parallel}: there is one trainer rank; set 1")
    return LoneRank(cpu) if offload else Ranks()
