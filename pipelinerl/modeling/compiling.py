"""torch.compile and Triton as the trainer needs them.

One compilation serves all sizes. The time that compilations take has a name. The configurations among which
Triton chooses are compiled side by side.
"""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


@contextmanager
def candidates_side_by_side(threads: int | None = None) -> Iterator[None]:
    """While the block runs, the configurations that Triton tries for a kernel are compiled in threads.

    Triton's tuner compiles and times one configuration after the other, and most of that time is the
    compiler, which leaves Python's lock. The choice is still the tuner's, by its measurement alone.
    `threads` is as many as this process may use cores, unless it is given. Without Triton nothing changes.
    """
    try:
        from triton.runtime._async_compile import AsyncCompileMode
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # a CPU, or a Triton before 3.4
        yield
        return
    choose = Autotuner.prune_configs

    def compile_and_choose(tuner: Any, given: dict[str, Any]) -> Any:
        candidates = choose(tuner, given)
        # Without a launch to come (`warmup`) nothing is tried, and nothing waits.
        if len(candidates) > 1 and given.get("warmup") is False:
            try:
                # What does not compile fails again where the tuner tries it, which knows what to make of it.
                with AsyncCompileMode(pool, ignore_errors=True):
                    for one in candidates:
                        tuner.fn.run(*tuner.nargs.values(), **{**given, **one.all_kwargs(), "warmup": True})
            except Exception as error:
                log.warning(
                    "a kernel's candidates are compiled one by one: %s: %s", type(error).__name__, error
                )
        return candidates

    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), "triton") as pool:
        Autotuner.prune_configs = compile_and_choose
        try:
            yield
        finally:
            Autotuner.prune_configs = choose
