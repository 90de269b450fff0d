"""torch.compile as the trainer needs it: one compilation for all sizes, and a name for the time it takes."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._dynamo.callback import callback_handler
from torch.fx.experimental import _config as symbolic_shapes

from pipelinerl.base.waits import Wait

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
USUAL_S = 300.0
"""Seconds that a compilation may take before it is remarkable; nothing ends it."""


def compiled(function: F, dynamic: bool | None = True) -> F:
    """`torch.compile` for sizes that differ from call to call."""
    # By default sizes that are equal at the first call are taken to be equal always. A row as long as the
    # model is wide, or with as many texts as a head has numbers, was then compiled for rows of that size
    # alone, and the next one made another compilation.
    symbolic_shapes.use_duck_shape = False
    return torch.compile(function, dynamic=dynamic)


@contextmanager
def named_compilations() -> Iterator[None]:
    """While the block runs, each compilation of this process is a wait with a name and a line in its log."""
    under_way: list[Wait] = []

    def begin(*_: object) -> None:
        under_way.append(Wait("torch.compile", USUAL_S, normal="minutes, once").start())

    def end(*_: object) -> None:
        wait = under_way.pop()
        wait.end()
        log.info("torch.compile took %.1f s", wait.elapsed_s)

    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(begin)
        callback_handler.remove_end_callback(end)
