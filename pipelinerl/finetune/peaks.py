"""What the throughput of a step is compared with. Called by the trainer, read by its metrics."""

from dataclasses import dataclass

import torch

from pipelinerl.config.card_limit import nominal_speed


@dataclass(frozen=True, slots=True)
class Hardware:
    """What throughput is compared with: tokens that a row has room for, numbers in the model that one token
    passes through, the operations per second of one device in the type that the model computes in (None:
    not known), the ranks that compute a row together, and bytes a second that a copy on the main rank's
    device reads and writes (None: not measured)."""

    row: int
    parameters: int
    peak_flops: float | None
    ranks_of_row: int = 1
    copy_bytes_per_s: float | None = None


def peak_flops(device: torch.device, bfloat16: bool) -> float | None:
    """Operations per second of a device whose figure is known."""
    if device.type != "cuda" or not bfloat16:
        return None
    speed = nominal_speed(torch.cuda.get_device_name(device))
    return None if speed is None else speed.flops


COPIED_BYTES, COPIES = 2**28, 10


def copy_bandwidth(device: torch.device) -> float | None:
    """Bytes a second that copies within a GPU's memory read and write together; None for other devices.

    The fastest of ten copies of 256 MiB, by the device's own clock: what a kernel that only reads can reach
    is about the same. It takes some milliseconds and 512 MiB, which are given back.
    """
    if device.type != "cuda":
        return None
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target, fastest = torch.empty_like(source), float("inf")
    with torch.cuda.device(device):
        for _ in range(COPIES):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            target.copy_(source)
            end.record()
            end.synchronize()
            fastest = min(fastest, begin.elapsed_time(end) / 1000)
        del source, target
        torch.cuda.empty_cache()
    return 2 * COPIED_BYTES / fastest
