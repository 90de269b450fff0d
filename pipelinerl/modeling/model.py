"""Loading and saving the policy: a Hugging Face causal language model with float32 master weights."""

import logging
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from pipelinerl.base.logs import REMARK
from pipelinerl.config.finetune import Checkpointing
from pipelinerl.modeling.activations import checkpoint_layers, compile_layers, decoder_layers
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.attention import ATTENTION_NAME, PER_TEXT_NAME, tell_attention
from pipelinerl.modeling.capped_attention import capped
from pipelinerl.modeling.delta_net import delta_nets, use_packed_delta_nets
from pipelinerl.modeling.layer_kinds import ACTIVE, TRAINED, refusal, stated, type_refusal, unknown_kinds
from pipelinerl.modeling.loading import load_causal_lm
from pipelinerl.modeling.lora import Exact, merged_name, merged_weight
from pipelinerl.modeling.segments import Segments

_RANDOM = re.compile("^(?!classifier|summary).*(drop|jitter)")
"""Names of probabilities and widths with which modules draw in training: `resid_pdrop`, `hidden_dropout`,
`layerdrop`, `router_jitter_noise`; a causal LM has no classifier and no summary."""
_THRESHOLDS = ("PhimoeTopKRouter",)
_THRESHOLD = "router_jitter_noise"
"""Modules in which this is a threshold in evaluation, which engines keep: 0 would make it another model."""
_PROBED = 4
"""Tokens for which the model's own logits are compared with those that are computed here."""
_DRAWS = 8
"""Forwards in training of a model that draws numbers, while none shows a difference."""
_ROUNDING = 1e-5
"""Of the largest logit; by it the same operations may differ on a GPU."""
_TOLERANCE = 1e-3
"""Of the largest logit; rounding in float32 stays far below it, and a forgotten factor far above."""

log = logging.getLogger(__name__)

# Output of a role is a log file, in which a progress bar is noise.
disable_progress_bar()


def load_model(
    path: str | Path,
    device: torch.device | str = "cpu",
    trust_remote_code: bool = False,
    **options: Any,
) -> PreTrainedModel:
    """Load a causal LM from a folder or hub name in float32, in training mode; `options` of `prepare_model`.

    Raises DamagedModel for weights that are damaged, missing or of other shapes.
    """
    model = load_causal_lm(path, dtype=torch.float32, trust_remote_code=trust_remote_code)
    return prepare_model(model, device, **options)


def prepare_model(
    model: PreTrainedModel,
    device: torch.device | str = "cpu",
    gradient_checkpointing: Checkpointing = False,
    reentrant_checkpointing: bool = False,
    compile: bool = False,
    flash_attention: bool = True,
) -> PreTrainedModel:
    """Give a freshly built causal LM packed attention and float32 weights, turn dropout off, and move it.

    `compile` compiles the decoder layers for any length of row; it is for GPUs, where the attention of a row
    is one operation whatever its segments. Without `flash_attention` that, too, goes text by text. Raises
    ValueError for layers that would not keep the texts of a row apart, for logits that are not computed here,
    and for a model that computes others in training.
    """
    attention = ATTENTION_NAME if flash_attention else PER_TEXT_NAME
    model.set_attn_implementation(attention)
    _refuse_layers(model, attention)
    use_packed_delta_nets(model)
    _freeze_all_but_text(model)
    if switched_off := _stop_draws(model):
        said = ", ".join(f"{name}={value:g}" for name, value in switched_off.items())
        line = "engines draw nothing, so the policy does not either: %s of the model set to 0"
        log.warning(line, said, extra=REMARK)
    model.to(device=device, dtype=torch.float32)
    _check_logits(model)
    checkpoint_layers(model, gradient_checkpointing, reentrant_checkpointing)
    if compile:
        compile_layers(model)
    return model.train()


def _refuse_layers(model: PreTrainedModel, attention: str) -> None:
    """Whatever else passes something on from token to token would pass it on from text to text."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    kinds: list[str] = getattr(config, "layer_types", None) or []
    linear = kinds.count("linear_attention")
    with_states = linear > 0 and len(delta_nets(model)) == linear  # all of those layers are known
    others = unknown_kinds(kinds, with_states)
    if not others and not with_states and getattr(model, "_is_stateful", False):
        others = ["a recurrent kind"]
    if others:
        raise ValueError(f"{name} {refusal(others)}")
    if said := type_refusal(config.model_type):
        raise ValueError(f"{name} {said}")
    if config._attn_implementation != attention:  # transformers only warns
        raise ValueError(f"{name} cannot be given another attention, so it cannot be trained on packed rows")
    # One that counts them itself would go on counting from sample to sample, and run without an error.
    if "position_ids" not in signature(model.get_decoder().forward).parameters:
        raise ValueError(f"{name} takes no positions of tokens, so it cannot be trained on packed rows")


def _freeze_all_but_text(model: PreTrainedModel) -> None:
    """Of a model that also sees the decoder of text and its head are trained; the rest stays as it is."""
    beside = _beside_text(model)
    for one in model.parameters():
        if id(one) in beside:
            one.requires_grad_(False)


def _beside_text(model: PreTrainedModel) -> set[int]:
    """Ids of the parameters of a model that also sees which no token of a text passes through."""
    if model.config.get_text_config(decoder=True) is model.config:
        return set()
    text = (model.get_decoder(), model.get_output_embeddings())
    return {id(one) for one in model.parameters()} - {id(one) for part in text for one in part.parameters()}


def _stop_draws(model: PreTrainedModel) -> dict[str, float]:
    """Set everything that the model's modules draw with to 0; returns what was not, by name.

    Engines draw nothing, so a trainer that drops units compares two models: its importance ratios are those
    of the dropout. Some modules read their own attributes in a forward, some the configuration.
    """
    found: dict[str, float] = {}
    thresholds = [one for one in model.modules() if type(one).__name__ in _THRESHOLDS]
    for module in thresholds:
        module.__class__ = type(type(module).__name__, (_Evaluated, type(module)), {})
    for module in model.modules():
        for owner in (getattr(module, "config", None), module):
            for name, value in _draws_of(owner):
                if thresholds and name == _THRESHOLD:
                    continue
                if owner is not module or value not in found.values():  # a name that people have written
                    found.setdefault(name, value)
                setattr(owner, name, 0.0)
    return found


class _Evaluated:
    """A module that computes in training what it computes in evaluation, and draws nothing."""

    training = property(lambda self: False, lambda self, mode: None)


def _draws_of(owner: Any) -> list[tuple[str, float]]:
    named = vars(owner).items() if owner is not None else ()
    dropout = isinstance(owner, nn.modules.dropout._DropoutNd)
    return [
        (name, value)
        for name, value in named
        if isinstance(value, float) and value > 0 and (_RANDOM.search(name) or (dropout and name == "p"))
    ]


def sliding_window(model: PreTrainedModel) -> int | None:
    """Tokens that its layers with a window look at, the one itself included; None where no layer has one."""
    config = model.config.get_text_config(decoder=True)
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return window if "sliding_attention" in kinds else None
    # Without kinds all layers have it; Qwen's older configurations switch it off beside its size.
    return window if getattr(config, "use_sliding_window", True) else None


def hidden_states(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    segments: Segments | None,
    **options: Any,
) -> torch.Tensor:
    """Last hidden states `[B, L, D]` of int64 `[B, L]` ids; the output head is not applied.

    options go to every layer's attention.
    """
    decoder = model.get_decoder()
    out = decoder(
        input_ids=input_ids, position_ids=position_ids, segments=segments, use_cache=False, **options
    )
    return out.last_hidden_state


def output_head(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight `[V, D]` and bias `[V]` or None of the output head."""
    head = model.get_output_embeddings()
    return head.weight, getattr(head, "bias", None)


def logit_scale(model: PreTrainedModel) -> float:
    """What the model multiplies the output head's product by: Granite divides it, Cohere multiplies it."""
    config = model.config.get_text_config(decoder=True)
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        return 1.0 / divisor
    factor = getattr(config, "logit_scale", None)
    return 1.0 if factor is None else factor


def logit_cap(model: PreTrainedModel) -> float | None:
    """Where the model's logits z become `cap * tanh(z / cap)`, as Gemma 2's; None where they do not."""
    cap: float | None = getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    return cap


@torch.no_grad()
def _check_logits(model: PreTrainedModel) -> None:
    """Log-probabilities are computed from hidden states, without what the model does to its logits.

    That differs between architectures, so the model itself is asked, once. Raises ValueError.
    """
    name = type(model).__name__
    weight, bias = output_head(model)
    ids = torch.arange(_PROBED, device=weight.device)[None] % len(weight)
    training = model.training
    model.eval()  # no dropout, and no number drawn
    own = model(input_ids=ids, use_cache=False).logits
    hidden = _told_layers(model, ids)
    model.train()
    difference, largest = _difference_in_training(model, ids, own), float(own.abs().max())
    model.train(training)
    if not bool(torch.isfinite(own).all()):
        raise ValueError(
            f"{name}: its own logits hold NaN or infinity, so its weights are damaged; give another "
            "folder, or an earlier checkpoint"
        )
    if not difference <= _ROUNDING * largest:
        raise ValueError(
            f"{name} computes other logits in training than in evaluation (a difference of {difference:.2g} "
            f"in {largest:.2g}) although its dropout is 0, so engines sample from another model; "
            "give another architecture"
        )
    found = capped(nn.functional.linear(hidden, weight, bias) * logit_scale(model), logit_cap(model))
    largest = max(float(own.abs().max()), float(found.abs().max()))
    difference = float((own - found).abs().max())
    if not difference <= _TOLERANCE * largest:  # not `>`: that would let NaN pass
        raise ValueError(
            f"{name} does more to its logits than is known here (a difference of {difference:.2g} in "
            f"{largest:.2g}), so its log-probabilities cannot be computed; give another architecture"
        )


def _told_layers(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """`hidden_states` of ids int64 `[1, L]`; every layer's attention must learn of the row and of its window.

    Rows have no masks: an attention that is not told the texts of a row would attend from one to the next.
    Raises ValueError.
    """
    config, positions = model.config.get_text_config(decoder=True), torch.arange(ids.shape[1]).to(ids)[None]
    kinds: list[str] | None = getattr(config, "layer_types", None)
    count = config.num_hidden_layers if kinds is None else sum(kind in TRAINED for kind in kinds)
    seen: dict[int, int | None] = {}
    hidden = hidden_states(model, ids, positions, None, windows_seen=seen)
    if len(seen) < count:
        tell_attention(decoder_layers(model))
        hidden = hidden_states(model, ids, positions, None, windows_seen=seen)
    if len(seen) < count:
        raise ValueError(
            f"{type(model).__name__} tells {len(seen)} of its {count} attention layers where samples of a "
            "row begin, so it cannot be trained on packed rows; give another architecture"
        )
    window = sliding_window(model)
    wrong = [
        number
        for number, told in sorted(seen.items())
        if told != (window if kinds is None or kinds[number] == "sliding_attention" else None)
    ]
    if wrong:
        raise ValueError(
            f"{type(model).__name__} does not tell its attention the sliding window of its layers (layer "
            f"{wrong[0]}: {seen[wrong[0]]}, its configuration: {window}); give another architecture"
        )
    return hidden


def _difference_in_training(model: PreTrainedModel, ids: torch.Tensor, own: torch.Tensor) -> float:
    """The largest difference of logits in training from `own`; NaN where one is.

    A model that draws numbers is asked several times: what it skips rarely may not show at once. Some draw
    and then skip nothing, as OPT does without layer dropout.
    """
    worst = own.new_zeros(())
    with torch.random.fork_rng([ids.device] if ids.is_cuda else []):  # a resume draws what a run drew
        for _ in range(_DRAWS):
            before = _random_state(ids.device)
            trained = model(input_ids=ids, use_cache=False).logits
            worst = torch.maximum(worst, (own - trained).abs().max())
            if torch.equal(before, _random_state(ids.device)):
                break
    return float(worst)


def _random_state(device: torch.device) -> torch.Tensor:
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


@torch.no_grad()
def distinct_parameters(
    model: nn.Module, exact: Exact = torch.Tensor.detach
) -> Iterator[tuple[str, torch.Tensor]]:
    """Named parameters with ties removed by identity and adapters merged: what an engine has to receive.

    `exact` maps a parameter to the tensor that is handed out in its place, such as its float32 master.
    """
    seen: set[int] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in seen and not is_adapter(name):
            seen.add(id(parameter))
            yield merged_name(name), merged_weight(model, name, parameter, exact)


def active_parameters(model: nn.Module) -> int:
    """Numbers that one token passes through, the whole embedding included, adapters and ties left out.

    A part that sees is left out as well. Of a layer's experts those that its router chooses for a token; all
    of them where the configuration does not say how many that is (`ACTIVE`).
    """
    chosen = stated(model.config.get_text_config(decoder=True), ACTIVE)
    total, beside = 0, _beside_text(model)
    for name, parameter in model.named_parameters():
        if is_adapter(name) or id(parameter) in beside:
            continue
        before, inside, _ = name.partition(".experts.")
        if not inside or not chosen:
            total += parameter.numel()
            continue
        experts = model.get_submodule(f"{before}.experts")
        # A list with a module for each expert, or tensors whose first dimension is the expert.
        count = len(experts) if isinstance(experts, nn.ModuleList) else parameter.shape[0]
        total += parameter.numel() * chosen // count
    return total


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Named tensors that a model folder holds beside the parameters, such as the biases of a MoE router."""
    saved = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in saved:
            yield merged_name(name), buffer.detach()
