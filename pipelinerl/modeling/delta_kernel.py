"""Whether flash-linear-attention's kernel can compute gated DeltaNets; asked by launcher and trainer.

Without it they take torch's own form on cards, which launches a few kernels for each 32 tokens of a text.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

_WRONG_ON_HOPPER = ((3, 4, 0), (3, 7, 1))
"""Versions of Triton, half-open, that compile a wrong backward of the kernel for Hopper cards."""


class Missing(NamedTuple):
    """Why the kernel cannot be used, and what to do."""

    because: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.because}; {self.remedy}"


def kernel_missing(hopper: bool) -> Missing | None:
    """Why this interpreter cannot use the kernel on its cards, some of which are Hopper's; None if it can."""
    if any(importlib.util.find_spec(one) is None for one in ("fla", "triton")):
        return Missing("flash-linear-attention is not installed", "install the extra `linear`")
    version = importlib.metadata.version("triton").split("+")[0]
    found = tuple(int(part) for part in version.split(".")[:3])
    first, end = _WRONG_ON_HOPPER
    if hopper and first <= found < end and importlib.util.find_spec("tilelang") is None:
        return Missing(
            f"its gradients are wrong on Hopper cards with Triton {version}",
            "install tilelang or Triton 3.7.1",
        )
    return None


def chunk_rule() -> Callable[..., tuple[Any, Any]]:
    """The kernel, where nothing is missing."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # an optional package

    return chunk_gated_delta_rule  # type: ignore[no-any-return]
