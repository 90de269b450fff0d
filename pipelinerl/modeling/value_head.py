"""A linear value head over the policy's last hidden states; it is saved beside the model, never sent away."""

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

FILE = "value_head.pt"


def build_value_head(model: PreTrainedModel) -> nn.Linear:
    """float32 head `D -> 1` on the model's device, all 0: at first the advantage is the reward."""
    weight = model.get_output_embeddings().weight
    head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def save_value_head(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write the head's state dict."""
    torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, folder / FILE)


def load_value_head(head: nn.Linear, folder: Path) -> bool:
    """Read a saved head; False when the folder has none. Raises ValueError when it fits another model."""
    path = folder / FILE
    if not path.is_file():
        return False
    state = torch.load(path, map_location="cpu", weights_only=True)
    found, expected = tuple(state["weight"].shape), tuple(head.weight.shape)
    if found != expected:
        raise ValueError(f"{path}: the head has shape {found}, the model needs {expected}; remove the file")
    head.load_state_dict(state)
    return True
