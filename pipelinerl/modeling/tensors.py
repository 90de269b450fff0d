"""From arrays of the host to tensors of the device that computes; called for every micro-batch."""

import numpy as np
import torch


def to_device(array: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """The array as a tensor: copied to a GPU without waiting for it, on the CPU the same memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor
