"""Low-rank adapters through peft (Hu et al. 2021), trained alone; engines get them merged, or add them.

Names and the sum itself are in `adapters.py`, which engines use as well.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from pipelinerl.config.finetune import LoraConfig
from pipelinerl.modeling.adapters import PREFIX, adapted, is_adapter

ADAPTER = "default"
FOLDER = "adapter"
"""Below a checkpoint's model: the adapters alone, as peft reads them."""
_FILE = "adapter_model.safetensors"
_BASE = ".base_layer."
_OF_MLP = ("gate_proj", "up_proj", "down_proj")

Exact = Callable[[torch.Tensor], torch.Tensor]


def add_adapters(model: PreTrainedModel, lora: LoraConfig) -> None:
    """Freeze the model and put adapters into it, in place; their output is 0 at first.

    Raises ValueError when peft is missing or a target module does not exist.
    """
    try:
        import peft
    except ImportError as error:
        raise ValueError(
            "finetune.lora.enabled=true needs the package peft; install the extra `lora`"
        ) from error
    targets = lora.target_modules or _linear_layers(model)
    config = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a fraction is as good
        lora_dropout=lora.dropout,
        target_modules=targets,
        # What is frozen as it is, such as a part that sees, gets none.
        exclude_modules=["lm_head", *_frozen_modules(model)],
    )
    model.requires_grad_(False)
    try:
        peft.inject_adapter_in_model(config, model, ADAPTER)
    except ValueError as error:
        chosen = ", ".join(lora.target_modules) or "all linear layers"
        raise ValueError(f"finetune.lora.target_modules={chosen}: {str(error).splitlines()[0]}") from error
    for name, parameter in model.named_parameters():
        inside = name.rpartition(_BASE)[2]  # a parameter that is no layer has a wrapper of its own
        foreign = "lora_" in name and not (is_adapter(name) and parameter.ndim == 2)
        if foreign or (_BASE in name and inside not in ("weight", "bias")):
            raise ValueError(
                f"finetune.lora.target_modules: {name} is of no linear layer; name linear layers only"
            )
        parameter.requires_grad_(is_adapter(name))
        if is_adapter(name):
            parameter.data = parameter.data.float()


def _frozen_modules(model: PreTrainedModel) -> list[str]:
    found = []
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not any(one.requires_grad for one in own):
            found.append(name)
    return found


def _linear_layers(model: PreTrainedModel) -> str | list[str]:
    """All of them but the output head, as peft finds them; beside experts, those outside of gated MLPs.

    Peft would put adapters around the parameters of experts and routers, too, also where names of an MLP's
    layers are given; neither the engines' names nor the merged weights know those.
    """
    if not any(".experts." in name for name, _ in model.named_parameters()):
        return "all-linear"
    head = model.get_output_embeddings()
    linear = [(name, one) for name, one in model.named_modules() if type(one) is nn.Linear]
    return [name for name, one in linear if one is not head and name.rpartition(".")[2] not in _OF_MLP]


def merged_name(name: str) -> str:
    """The name that a wrapped layer's own parameter has without adapters."""
    return name.replace(_BASE, ".")


def merged_weight(module: nn.Module, name: str, parameter: torch.Tensor, exact: Exact) -> torch.Tensor:
    """`parameter`, named so in `module`, plus the product of its adapters (summed in float32)."""
    owner_name, found, kind = name.rpartition(_BASE)
    weight = exact(parameter)
    if not found or kind != "weight":
        return weight
    owner = module.get_submodule(owner_name)
    down, up = (exact(part[ADAPTER].weight) for part in (owner.lora_A, owner.lora_B))
    return adapted(weight, down, up, owner.scaling[ADAPTER], owner.fan_in_fan_out)


def adapter_tensors(model: PreTrainedModel, exact: Exact) -> dict[str, torch.Tensor]:
    """Adapters under the names that peft's files use."""
    return {
        PREFIX + name.replace(f".{ADAPTER}.", "."): exact(parameter)
        for name, parameter in model.named_parameters()
        if is_adapter(name)
    }


def save_adapters(model: PreTrainedModel, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write what `peft.PeftModel.from_pretrained` reads: configuration and tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / _FILE)
    configs: dict[str, Any] = model.peft_config
    configs[ADAPTER].save_pretrained(str(folder))


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Read saved adapters into a model that has fresh ones; raises ValueError when they do not fit."""
    path = folder / _FILE
    saved = load_file(path)
    ours = adapter_tensors(model, lambda tensor: tensor)
    if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in ours.items()}:
        raise ValueError(
            f"{path}: adapters of another shape or of other layers; set finetune.lora as before, "
            "or force_restart=true"
        )
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(saved[name])
