"""A forward that attends as an engine does whose keys and values are kept in 8 bits.

Used by the trainer (`pipelinerl/finetune/step.py`) to tell how far apart it and such an engine may be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipelinerl.modeling.attention import ATTENTION_NAME, PER_TEXT_NAME


@contextmanager
def attention_in(cache_type: str | None) -> Iterator[None]:
    """Meanwhile queries, keys and values are rounded to this type of torch before they meet; None: are not.

    vLLM keeps keys and values divided by a scale, 1 unless a checkpoint brings others, and rounds queries too
    where its kernel takes all three in 8 bits (FlashAttention 3). Numbers beyond the type's range become its
    largest, as there. Layers are not compiled meanwhile: the rounding belongs to no graph.
    """
    if cache_type is None:
        yield
        return
    kind: torch.dtype = getattr(torch, cache_type)
    names = (ATTENTION_NAME, PER_TEXT_NAME)
    for name in names:
        ALL_ATTENTION_FUNCTIONS[name] = _rounding(ALL_ATTENTION_FUNCTIONS[name], kind)
    try:
        yield
    finally:
        for name in names:  # what was registered for every instance is seen again
            del ALL_ATTENTION_FUNCTIONS[name]


def _rounding(attend: Any, kind: torch.dtype) -> Any:
    def rounded(states: torch.Tensor) -> torch.Tensor:
        most = torch.finfo(kind).max
        return states.clamp(-most, most).to(kind).to(states.dtype)

    def attention(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        return attend(module, rounded(query), rounded(key), rounded(value), *rest, **named)

    return attention
