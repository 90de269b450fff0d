"""Activation memory and speed of the decoder layers: what is recomputed in the backward, what is compiled."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from pipelinerl.config.finetune import Checkpointing
from pipelinerl.modeling.compiling import compiled
from pipelinerl.modeling.host_inputs import FromHost, HostInputs

_KEPT = ("_varlen_attn", "prefix_attention", "_flash_attention_forward", "gated_delta", "_scaled_dot_product")


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The repeated layers of a Hugging Face causal LM."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} keeps its layers elsewhere than in `layers`; set "
            "finetune.gradient_checkpointing=false and finetune.compile=false"
        )
    return layers


def checkpoint_layers(model: PreTrainedModel, mode: Checkpointing, reentrant: bool = False) -> None:
    """Recompute activations of decoder layers in the backward pass, in place.

    The layers' forwards are replaced, so copies of the model have to be made before. `selective` and
    `offload` do not go with reentrant checkpointing, which the launcher refuses.
    """
    if mode is False:
        return
    if mode == "offload":
        inputs = HostInputs()
        for layer in decoder_layers(model):
            layer.forward = FromHost(layer.forward, inputs)
        return
    every = 1 if mode is True or mode == "selective" else mode
    options: dict[str, Any] = {"use_reentrant": reentrant}
    if mode == "selective":
        options["context_fn"] = _selective_contexts
    for layer in list(decoder_layers(model))[::every]:
        # On the instance and inside of torch.compile, so that the compiler plans the recomputation as well.
        layer.forward = _checkpointed(layer.forward, options)


def bare_layers(model: PreTrainedModel) -> None:
    """Undo `checkpoint_layers` and `compile_layers`, in place."""
    for layer in decoder_layers(model):
        vars(layer).pop("forward", None)
        for part in _compiled_parts(layer):
            original = getattr(vars(part).get("forward"), "_torchdynamo_orig_callable", None)
            if original is not None:
                part.forward = original


def compile_layers(model: PreTrainedModel, dynamic: bool | None = True) -> None:
    """Compile the decoder layers, in place and after `checkpoint_layers`; all share one piece of code.

    Of a layer with experts its attention, its norms and the products of its experts, each by itself: the
    router stays as it is, because it may be told what to choose and notes what it chose.
    """
    for layer in decoder_layers(model):
        parts = _compiled_parts(layer)
        for part in parts:
            part.forward = compiled(part.forward, dynamic)
        if parts:
            continue
        # Of the forward alone: hooks of the module, such as those that gather its shards, stay outside.
        if isinstance(layer.forward, FromHost):  # copies to the host and back stay outside
            layer.forward.forward = compiled(layer.forward.forward, dynamic)
            continue
        layer.forward = compiled(layer.forward, dynamic)


def _compiled_parts(layer: nn.Module) -> list[nn.Module]:
    """What is compiled of a layer that has experts; nothing of a dense one, which is compiled as a whole."""
    blocks = [one for one in layer.modules() if isinstance(getattr(one, "experts", None), nn.Module)]
    if not blocks:
        return []
    beside = [one for one in layer.children() if not {*blocks} & {*one.modules()}]
    # A list of single experts loops over those that got tokens.
    return [*beside, *(one.experts for one in blocks if not isinstance(one.experts, nn.ModuleList))]


def _checkpointed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def run(hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(hidden, *arguments, **named)
        return checkpoint(partial(forward, **named), hidden, *arguments, **options)

    return run


def _policy(context: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    """Keep attention, and matrix products at most twice as wide as what they multiply."""
    name = str(operation)
    if any(kept in name for kept in _KEPT):
        return CheckpointPolicy.MUST_SAVE
    if operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        rows, columns = arguments[-1].shape
        if columns <= 2 * rows:
            return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


_selective_contexts = partial(create_selective_checkpoint_contexts, _policy)
