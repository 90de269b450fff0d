"""Causal attention over packed rows without any L x L mask, registered with transformers.

Select it with `attn_implementation=ATTENTION_NAME` and pass `segments=Segments(...)` to the model's
forward; transformers hands unknown keyword arguments down to the attention function. Where sequences share
prefixes, a segment attends to the whole sequence that it ends: keys and values are gathered from the row.
With a sliding window a key counts if it lies less than that many positions before the query, in its sequence.
"""

import inspect
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipelinerl.modeling.capped_attention import Rule, capped_attention
from pipelinerl.modeling.prefix_attention import prefix_attention
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.seq_parallel import over_ranks

ATTENTION_NAME = "pipelinerl_varlen"
PER_TEXT_NAME = "pipelinerl_per_text"
"""The same without the device's variable-length kernel: `finetune.use_flash_attention=false`."""


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    segments: Segments | None = None,
    use_kernel: bool = True,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    windows_seen: dict[int, int | None] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend causally inside each segment, or in the sequence that it ends.

    query `[B, H, L, D]`, key and value `[B, H_kv, L, D]`; B must be 1 when `segments` is given. Without
    segments every row is one sequence, padded on the right at most (padding then only sees, and is never
    seen by, real tokens). sliding_window, softcap and s_aux (sinks) as transformers' models pass them on;
    windows_seen is told the window of the layer, for who checks that all layers were told theirs.
    Returns `[B, L, H, D]`. Raises ValueError for anything this attention cannot represent.
    """
    _refuse_unsupported(attention_mask, dropout)
    segments, windows_seen = getattr(module, "told", (segments, windows_seen))
    if windows_seen is not None:
        windows_seen[getattr(module, "layer_idx", len(windows_seen))] = sliding_window
    rule = Rule(sliding_window, softcap, s_aux)
    if segments is None:
        out = _sdpa(query, key, value, scaling, rule)
    elif not rule.has_kernel:
        out = _without_graph(query, key, value, segments, scaling, rule)
    elif use_kernel and _has_varlen_kernel(query, value):
        out = _cuda_varlen(query, key, value, segments, scaling, rule.window)
        return out, None
    else:
        out = _per_segment(query, key, value, segments, scaling, rule)
    return out.transpose(1, 2), None


class _Tells:
    """A decoder layer that leaves with its attention what it is told of the row, also when recomputed."""

    self_attn: torch.nn.Module

    def forward(self, *args: Any, segments: Any = None, windows_seen: Any = None, **kwargs: Any) -> Any:
        self.self_attn.told = (segments, windows_seen)  # type: ignore[assignment]
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            del self.self_attn.told


def tell_attention(layers: torch.nn.ModuleList) -> None:
    """For architectures whose layers do not hand keyword arguments on (StableLM, Nemotron); in place."""
    for layer in layers:
        if isinstance(getattr(layer, "self_attn", None), torch.nn.Module):
            kind = type(layer)
            layer.__class__ = type(kind.__name__, (_Tells, kind), {})


def _refuse_unsupported(attention_mask: torch.Tensor | None, dropout: float) -> None:
    if attention_mask is not None:
        raise ValueError(f"{ATTENTION_NAME} takes segments, not an attention mask")
    if dropout:
        raise ValueError(f"attention dropout {dropout} is not supported by {ATTENTION_NAME}; set it to 0")


class _GatherKeys(torch.autograd.Function):
    """`[1, H_kv, L, D]` to `[1, H_kv, R, D]`, by the fields of SharedKeys.

    The gradient of a shared token is the sum over its readers, in float32 and in their order: an index's own
    backward would add them in the type that the model computes in, and on a GPU in any order.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, rows: torch.Tensor, order: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(order, starts)
        # By token, as they lie behind the projection and as kernels want them.
        return states.transpose(1, 2).index_select(1, rows).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        order, starts = ctx.saved_tensors
        _, heads, readers, size = gradient.shape
        by_token = gradient.transpose(1, 2).reshape(readers, heads * size)
        sums = torch.embedding_bag(by_token, order, starts)[0]
        return sums.view(1, -1, heads, size).transpose(1, 2), None, None, None


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    rule: Rule,
) -> torch.Tensor:
    if not rule.has_kernel:
        return capped_attention(query, key, value, scaling, *rule)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    query, key = query.to(value.dtype), key.to(value.dtype)
    new, known = query.shape[2], key.shape[2]
    # torch aligns `is_causal` at the top left, where the last query would not see the last key.
    mask = None
    cut = rule.window is not None and rule.window < known
    if new < known or cut:
        mask = torch.ones(new, known, dtype=torch.bool, device=query.device).tril(known - new)
    if mask is not None and cut and rule.window is not None:
        mask = mask.triu(known - new - rule.window + 1)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling
    )


def _per_segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scaling: float | None,
    rule: Rule,
) -> torch.Tensor:
    if (known := segments.keys_within(rule.window)) is not None:
        key = _GatherKeys.apply(key, known.rows, known.order, known.starts)
        value = _GatherKeys.apply(value, known.rows, known.order, known.starts)
    # `split` has one concatenation as its backward; slicing would add a full-size gradient per segment.
    lengths = list((known or segments).lengths)
    parts = zip(query.split(list(segments.lengths), 2), key.split(lengths, 2), value.split(lengths, 2))
    return torch.cat([_sdpa(q, k, v, scaling, rule) for q, k, v in parts], dim=2)


_without_graph = torch.compiler.disable(_per_segment)
"""For layers that are compiled on a GPU: they would be compiled anew for each number and length of texts."""


def _has_varlen_kernel(query: torch.Tensor, value: torch.Tensor) -> bool:
    return query.is_cuda and value.dtype in (torch.bfloat16, torch.float16)


_NAMES = inspect.signature(varlen_attn).parameters
# What means "causal", and whether query heads may share a key, in the installed torch.
_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in _NAMES else {"is_causal": True}
_GROUPS_HEADS = "enable_gqa" in _NAMES


def _cuda_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scaling: float | None,
    window: int | None = None,
) -> torch.Tensor:
    if window is not None and "window_size" not in _NAMES:
        return _without_graph(query, key, value, segments, scaling, Rule(window)).transpose(1, 2)
    dtype, width = value.dtype, value.shape[-1]
    if width < key.shape[-1]:  # latent attention; the kernel wants one size, and zeros change nothing
        value = F.pad(value, (0, key.shape[-1] - width))
    if segments.keys is not None:
        q, k, v = (t[0].transpose(0, 1).to(dtype).contiguous() for t in (query, key, value))
        return prefix_attention(q, k, v, segments, scaling, window)[None, ..., :width]
    repeats = query.shape[1] // key.shape[1]
    # Both ends of the kernel's window count.
    options: dict[str, Any] = dict(_CAUSAL) if window is None else {"window_size": (window - 1, 0)}
    if repeats > 1 and _GROUPS_HEADS:
        options["enable_gqa"] = True
    elif repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    if scaling is not None:
        options["scale"] = scaling
    q, k, v = (t[0].transpose(0, 1).to(dtype).contiguous() for t in (query, key, value))
    bound = segments.max_length
    return varlen_attn(q, k, v, segments.offsets, segments.offsets, bound, bound, **options)[
        None, ..., :width
    ]


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, over_ranks(varlen_attention))
ALL_ATTENTION_FUNCTIONS.register(PER_TEXT_NAME, over_ranks(partial(varlen_attention, use_kernel=False)))
