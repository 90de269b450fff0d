"""The trainer's ranks: nothing at all for one process, accelerate's process group for several."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import torch

T = TypeVar("T")


class Ranks:
    """This process among the trainer's; of one rank every operation is the identity."""

    index: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in order, on every rank."""
        return [value]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over ranks."""

    def close(self) -> None:
        """Leave the process group."""


class AccelerateRanks(Ranks):
    """Ranks started by `accelerate launch` or torchrun: gloo on the CPU, NCCL on GPUs."""

    def __init__(self, cpu: bool) -> None:
        from accelerate import PartialState

        self._state = PartialState(cpu=cpu)
        self.index = self._state.process_index
        self.count = self._state.num_processes

    def gather(self, value: T) -> list[T]:
        from accelerate.utils import gather_object

        gathered: list[T] = gather_object([value])
        return gathered

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        import torch.distributed as dist

        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # a rank without any label takes part all the same
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def close(self) -> None:
        self._state.destroy_process_group()


def join_ranks(cpu: bool) -> Ranks:
    """One rank, unless a distributed launcher started this process (it sets LOCAL_RANK)."""
    several = "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return AccelerateRanks(cpu) if several else Ranks()
