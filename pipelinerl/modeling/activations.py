"""Activation memory and speed of the decoder layers: what is recomputed in the backward, what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from pipelinerl.config.finetune import Checkpointing

_KEPT = ("_varlen_attn", "_flash_attention_forward", "_scaled_dot_product")


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

    The layers' forwards are replaced, so copies of the model have to be made before. Raises ValueError for a
    mode that does not exist, or `selective` with reentrant checkpointing.
    """
    if mode is False:
        return
    if mode == "selective" and reentrant:
        raise ValueError("gradient_checkpointing=selective needs reentrant_checkpointing=false")
    every = 1 if mode is True or mode == "selective" else mode
    if not isinstance(every, int) or every < 1:
        raise ValueError(
            f"gradient_checkpointing={mode!r} is not known; use true, false, selective or n >= 1"
        )
    options: dict[str, Any] = {"use_reentrant": reentrant}
    if mode == "selective":
        options["context_fn"] = _selective_contexts
    for layer in list(decoder_layers(model))[::every]:
        # On the instance and inside of torch.compile, so that the compiler plans the recomputation as well.
        layer.forward = _checkpointed(layer.forward, options)


def compile_layers(model: PreTrainedModel, dynamic: bool | None = True) -> None:
    """Compile the decoder layers, in place and after `checkpoint_layers`; all share one piece of code."""
    for layer in decoder_layers(model):
        # Of the forward alone: hooks of the module, such as those that gather its shards, stay outside.
        layer.forward = torch.compile(layer.forward, dynamic=dynamic)


@contextmanager
def compiled_layers(model: PreTrainedModel, enabled: bool = True) -> Iterator[None]:
    """Compile the decoder layers for a while, so that the model can be copied and saved as any other."""
    if not enabled:
        yield
        return
    before = [vars(layer).get("forward") for layer in decoder_layers(model)]
    compile_layers(model)
    try:
        yield
    finally:
        for layer, forward in zip(decoder_layers(model), before):
            del layer.forward
            if forward is not None:
                layer.forward = forward


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
