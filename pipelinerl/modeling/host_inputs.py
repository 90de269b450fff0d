"""Layers that are recomputed from inputs in host memory (`finetune.gradient_checkpointing=offload`).

A recomputed layer keeps its input alone; a long row has that of every layer. Each is copied to page-locked
memory on a side stream, beside the layer that it goes into, and back beside the backward of the layer behind
it: at any time the card has the inputs of two layers. `modeling/activations.py` wraps the layers.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


class _Kept:
    """One layer's input, on its device until the next layer begins, and in host memory.

    The device's memory is given back to the stream that computes, once that waits for the copy. Marking it as
    used by the side stream (`record_stream`) would not do: the host queues a whole pass ahead of the device,
    and would find none of that memory free meanwhile.
    """

    def __init__(self, tensor: torch.Tensor, before: "_Kept | None", side: torch.cuda.Stream | None) -> None:
        self._side, self._trained = side, tensor.requires_grad
        self._before = None if before is None else weakref.ref(before)  # it goes with its own graph
        self._there: torch.Tensor | None = tensor.detach()
        # torch keeps page-locked memory that was freed for the next row; making it anew would take long.
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=side is not None)
        self._copied = self._copy(self._host, self._there)

    def _copy(self, to: torch.Tensor, tensor: torch.Tensor) -> torch.cuda.Event | None:
        """Copy beside what is computed, behind what is queued by now; the event is its end."""
        if self._side is None:
            to.copy_(tensor)
            return None
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            to.copy_(tensor, non_blocking=True)
        return self._side.record_event()

    def _wait(self) -> None:
        if self._side is not None and self._copied is not None:
            torch.cuda.current_stream(self._side.device).wait_event(self._copied)

    def release(self) -> None:
        """The next layer begins: let the device's memory go."""
        self._wait()
        self._there = None

    def fetch(self) -> None:
        """Begin to copy it back, unless it is there."""
        if self._there is None:
            there = torch.empty_like(self._host, device=None if self._side is None else self._side.device)
            self._copied = self._copy(there, self._host)
            self._there = there

    def take(self) -> torch.Tensor:
        """The tensor on its device; the copy of the one before it begins."""
        self.fetch()
        self._wait()
        found, self._there = self._there, None
        assert found is not None
        before = None if self._before is None else self._before()
        if before is not None:
            before.fetch()
        return found.requires_grad_(self._trained)


class HostInputs:
    """What the layers of one model have in host memory. On a CPU it is a copy, for the sake of tests."""

    def __init__(self) -> None:
        self._last: weakref.ref[_Kept] | None = None
        self._side: torch.cuda.Stream | None = None

    def keep(self, tensor: torch.Tensor) -> _Kept:
        """The input of the layer that begins now."""
        if tensor.is_cuda and self._side is None:
            self._side = torch.cuda.Stream(tensor.device)
        before = None if self._last is None else self._last()
        if before is not None:
            before.release()
        one = _Kept(tensor, before, self._side)
        self._last = weakref.ref(one)
        return one


class FromHost:
    """A layer's forward that is recomputed from its input in host memory; a compiler gets `forward` alone."""

    def __init__(self, forward: Callable[..., Any], inputs: HostInputs) -> None:
        self.forward, self._inputs = forward, inputs

    def __call__(self, hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(hidden, *arguments, **named)
        kept, given = self._inputs.keep(hidden), [hidden]

        def run(_: torch.Tensor) -> Any:
            # The first call has the tensor itself, through which gradients flow; nobody keeps it.
            return self.forward(given.pop() if given else kept.take(), *arguments, **named)

        # What it is given tells torch which device's random state the recomputation needs.
        return checkpoint(run, hidden.new_empty(0), use_reentrant=False)
