"""A group of engines for the NCCL transport without NCCL: receives as vLLM's stock back-end does."""

import math
import threading
from typing import Any

import torch


class FakeGroup:
    """Stands for vLLM's communicator on the trainer's side; keeps what was broadcast.

    `hang` makes every broadcast wait until the group is destroyed, as when an engine does not take part.
    """

    def __init__(self, rendezvous: dict[str, Any]) -> None:
        self.rendezvous = dict(rendezvous)
        self.received: list[torch.Tensor] = []
        self.destroyed = threading.Event()
        self.hang = False

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        assert src == 0 and tensor.dtype == torch.uint8
        if self.hang:
            self.destroyed.wait(100)
            raise RuntimeError("NCCL error: the communicator was aborted")
        self.received.append(tensor.clone())

    def destroy(self) -> None:
        self.destroyed.set()


def unpack(
    received: list[torch.Tensor], info: dict[str, Any], limit: int
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """What the engines make of the broadcasts: tensors by name, and the sizes of packets they expected.

    Follows `packed_nccl_broadcast_consumer` of vLLM 0.26: tensors are added to a packet until it exceeds the
    limit.
    """
    tensors: dict[str, torch.Tensor] = {}
    expected: list[int] = []
    pending = list(zip(info["names"], info["dtype_names"], info["shapes"], strict=True))
    packets = iter(received)
    while pending:
        packet, size = [], 0
        while pending and size <= limit:
            name, dtype_name, shape = pending.pop(0)
            dtype = getattr(torch, dtype_name)
            packet.append((name, dtype, shape, math.prod(shape) * dtype.itemsize))
            size += packet[-1][3]
        expected.append(size)
        data = next(packets)
        assert data.numel() == size, f"a packet of {data.numel()} bytes where {size} were expected"
        for (name, dtype, shape, _), part in zip(packet, data.split([one[3] for one in packet])):
            tensors[name] = part.view(dtype).view(shape)
    assert next(packets, None) is None, "more packets than expected"
    return tensors, expected
