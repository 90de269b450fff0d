"""A forward of a bfloat16 model with float32 activations: what is missing from it is rounding.

Used by the trainer (`pipelinerl/finetune/step.py`) to tell how far apart two sound bfloat16 forwards may be.
Weights stay as they are, and one at a time is widened where it meets an activation, so that it works for
sharded policies and needs no second copy of the model. Grouped products of experts still round what goes in
and comes out, which hides 2 % of the rounding at the width of Qwen3-30B-A3B.
"""

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_any, tree_map


class Float32Activations(TorchFunctionMode):
    """Embeddings become float32, and operations on float32 and bfloat16 together widen the latter first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Not in place (names end in one underscore), where a widened copy would take the result.
        in_place = name.endswith("_") and not name.endswith("__")
        if not in_place and _has(torch.float32, args, kwargs) and _has(torch.bfloat16, args, kwargs):
            try:
                return func(*tree_map(_widened, args), **tree_map(_widened, kwargs))
            except (
                RuntimeError
            ):  # no kernel for float32, as grouped products of experts on GPUs: this one rounds
                return _widened(func(*tree_map(_narrowed, args), **tree_map(_narrowed, kwargs)))
        result = func(*args, **kwargs)
        return _widened(result) if func is functional.embedding else result


def _has(dtype: torch.dtype, *values: Any) -> bool:
    return bool(tree_any(lambda leaf: isinstance(leaf, torch.Tensor) and leaf.dtype == dtype, values))


def _narrowed(leaf: Any) -> Any:
    return leaf.bfloat16() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 else leaf


def _widened(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16 else leaf
