"""Causal attention over packed rows without any L x L mask, registered with transformers.

Select it with `attn_implementation=ATTENTION_NAME` and pass `segments=Segments(...)` to the model's
forward; transformers hands unknown keyword arguments down to the attention function. Where sequences share
prefixes, a segment attends to the whole sequence that it ends: keys and values are gathered from the row.
"""

import inspect
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

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
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend causally inside each segment, or in the sequence that it ends.

    query `[B, H, L, D]`, key and value `[B, H_kv, L, D]`; B must be 1 when `segments` is given. Without
    segments every row is one sequence, padded on the right at most (padding then only sees, and is never
    seen by, real tokens).
    Returns `[B, L, H, D]`. Raises ValueError for anything this attention cannot represent.
    """
    _refuse_unsupported(attention_mask, dropout, kwargs)
    if segments is None:
        out = _sdpa(query, key, value, scaling)
    elif use_kernel and _has_varlen_kernel(query, value):
        out = _cuda_varlen(query, key, value, segments, scaling)
        return out, None
    else:
        if (known := segments.keys) is not None:
            key = _GatherKeys.apply(key, known.rows, known.order, known.starts)
            value = _GatherKeys.apply(value, known.rows, known.order, known.starts)
        out = _per_segment(query, key, value, segments, scaling)
    return out.transpose(1, 2), None


def _refuse_unsupported(attention_mask: torch.Tensor | None, dropout: float, kwargs: dict[str, Any]) -> None:
    if attention_mask is not None:
        raise ValueError(f"{ATTENTION_NAME} takes segments, not an attention mask")
    if dropout:
        raise ValueError(f"attention dropout {dropout} is not supported by {ATTENTION_NAME}; set it to 0")
    for option in ("sliding_window", "softcap", "s_aux"):
        if kwargs.get(option) is not None:
            raise ValueError(f"{option} is not supported by {ATTENTION_NAME}")


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


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    query, key = query.to(value.dtype), key.to(value.dtype)
    new, known = query.shape[2], key.shape[2]
    # torch aligns `is_causal` at the top left, where the last query would not see the last key.
    mask = None
    if new < known:
        mask = torch.ones(new, known, dtype=torch.bool, device=query.device).tril(known - new)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling
    )


def _per_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float | None
) -> torch.Tensor:
    # `split` has one concatenation as its backward; slicing would add a full-size gradient per segment.
    lengths = list((segments.keys or segments).lengths)
    parts = zip(query.split(list(segments.lengths), 2), key.split(lengths, 2), value.split(lengths, 2))
    return torch.cat([_sdpa(q, k, v, scaling) for q, k, v in parts], dim=2)


def _has_varlen_kernel(query: torch.Tensor, value: torch.Tensor) -> bool:
    return query.is_cuda and value.dtype in (torch.bfloat16, torch.float16)


_NAMES = inspect.signature(varlen_attn).parameters
# What means "causal", and whether query heads may share a key, in the installed torch.
_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in _NAMES else {"is_causal": True}
_GROUPS_HEADS = "enable_gqa" in _NAMES


def _cuda_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float | None
) -> torch.Tensor:
    dtype = value.dtype
    if segments.keys is not None:
        q, k, v = (t[0].transpose(0, 1).to(dtype).contiguous() for t in (query, key, value))
        return prefix_attention(q, k, v, segments, scaling)[None]
    repeats = query.shape[1] // key.shape[1]
    options = dict(_CAUSAL)
    if repeats > 1 and _GROUPS_HEADS:
        options["enable_gqa"] = True
    elif repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    if scaling is not None:
        options["scale"] = scaling
    q, k, v = (t[0].transpose(0, 1).to(dtype).contiguous() for t in (query, key, value))
    bound = segments.max_length
    return varlen_attn(q, k, v, segments.offsets, segments.offsets, bound, bound, **options)[None]


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, over_ranks(varlen_attention))
ALL_ATTENTION_FUNCTIONS.register(PER_TEXT_NAME, over_ranks(partial(varlen_attention, use_kernel=False)))
