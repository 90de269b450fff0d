"""A linear value head over the policy's last hidden states; it is saved beside the model, never sent away."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

FILE = "value_head.pt"
_OF_UPSTREAM = "output."
"""Before the names of both tensors in the file, so that upstream's scripts load it; earlier files lack it."""


def build_value_head(model: PreTrainedModel) -> nn.Linear:
    """float32 head `D -> 1` on the model's device, all 0: at first the advantage is the reward."""
    weight = model.get_output_embeddings().weight
    head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def load_tensors(path: Path) -> Any:
    """What `torch.save` wrote there. Raises ValueError for a file that is none, or that would run code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and torch, by what is wrong with the file
        # Not the error's text: torch advises to load it with the checks turned off.
        raise ValueError(
            f"{path}: damaged, or it holds more than tensors and would run code ({type(error).__name__}); "
            "remove it, or take it from where it came from again"
        ) from None


def save_value_head(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write the head's state dict, which upstream's trainer reads too."""
    torch.save({_OF_UPSTREAM + name: tensor.cpu() for name, tensor in tensors.items()}, folder / FILE)


def load_value_head(head: nn.Linear, folder: Path) -> bool:
    """Read a saved head; False if the folder has none. Raises ValueError for one of another kind or model."""
    path = folder / FILE
    if not path.is_file():
        return False
    state = {name.removeprefix(_OF_UPSTREAM): tensor for name, tensor in load_tensors(path).items()}
    if state.keys() != {"weight", "bias"}:
        raise ValueError(f"{path}: no linear head, it holds {', '.join(sorted(state))}; remove the file")
    found, expected = tuple(state["weight"].shape), tuple(head.weight.shape)
    if found != expected:
        raise ValueError(f"{path}: the head has shape {found}, the model needs {expected}; remove the file")
    head.load_state_dict(state)
    return True
