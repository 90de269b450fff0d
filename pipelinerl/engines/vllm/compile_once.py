"""Lets one engine of a host compile a model while the others wait for what it made; vLLM's plug-in calls it.

vLLM keeps a compiled model in `VLLM_CACHE_ROOT/torch_compile_cache/torch_aot_compile/<hash>/rank_<n>_<m>`.
The hash is of its version, its variables, the model's folder and the flags that change the graph, not of
ports, GPUs or the weight transfer, so engines of one run share it. Engines that start at the same time would
all find nothing there and compile the same thing. Here an engine that finds nothing takes a lock beside the
file, looks again, and compiles while it has the lock. One that finds the model never waits. Engines are not
held back earlier, by the launcher: one that starts when another has compiled has yet to load its weights.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelinerl.engines.vllm.start import COMPILES, WAITS

DECORATORS = "vllm.compilation.decorators"
LOOK, SAVE = "_try_load_aot_compiled_fn", "save_aot_compiled_function"
"""The function of that module that looks for a compiled model, and the model's method that keeps one; 0.26 to
0.33 have both."""
WAIT_S = 300.0
"""For another engine's compilation; then it compiles for itself."""
_LOOK_AGAIN_S = 0.2
# vLLM writes out only what its own loggers say.
log = logging.getLogger(f"vllm.{__name__}")


def compile_once(decorators: ModuleType, wait_s: float = WAIT_S) -> None:
    """Let `decorators` (`vllm.compilation.decorators`) look for a compiled model under a lock."""
    look = getattr(decorators, LOOK, None)
    if look is None:
        log.warning("this vLLM has no %s.%s: engines of a run may compile the same model", DECORATORS, LOOK)
    elif not hasattr(look, "__wrapped__"):  # a plug-in may be called more than once
        setattr(decorators, LOOK, _under_lock(look, wait_s))


def _under_lock(look: Callable[[Any, str], Any], wait_s: float) -> Callable[[Any, str], Any]:
    def look_under_lock(model: Any, path: str) -> Any:
        before, found = _made(path), look(model, path)
        if found is not None or not _is_kept(model.vllm_config.compilation_config):
            return found
        try:
            lock = _lock(Path(f"{path}.lock"), wait_s)
        except OSError as error:  # a file system without locks
            log.warning("%s.lock: %s; the model is compiled beside other engines", path, error)
            return None
        if lock is None:
            log.warning("another engine did not compile %s within %g s", path, wait_s)
        elif (found := look(model, path)) is not None or _made(path) != before:
            # What another engine has just made and cannot be loaded helps nobody: no further engine waits.
            _release(lock)
            if found is not None:
                return found
        else:
            _release_when_saved(model, lock)
        log.info(COMPILES)
        return None

    look_under_lock.__wrapped__ = look  # type: ignore[attr-defined]
    return look_under_lock


def _is_kept(config: Any) -> bool:
    """Whether a model that is compiled so can be loaded again.

    A CPU build (`DYNAMO_TRACE_ONCE`) keeps what it never loads, and the eager backend keeps nothing.
    """
    return config.mode.name == "VLLM_COMPILE" and config.backend != "eager"


def _made(path: str) -> int:
    """When the compiled model was kept, in nanoseconds; 0 if there is none."""
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def _lock(path: Path, wait_s: float) -> int | None:
    """A descriptor that holds the lock, which ends with this process at the latest; None after `wait_s`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    end, said = time.monotonic() + wait_s, False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(descriptor)
                    return None
            if not said:
                log.info("%s, at most %g s", WAITS, wait_s)
                said = True
            time.sleep(_LOOK_AGAIN_S)
    except OSError:
        os.close(descriptor)
        raise


def _release(lock: int) -> None:
    fcntl.flock(
        lock, fcntl.LOCK_UN
    )  # closing would not do while a helper of the compiler, forked, has it too
    os.close(lock)


def _release_when_saved(model: Any, lock: int) -> None:
    save = getattr(model, SAVE)

    def save_and_release() -> None:
        try:
            save()
        finally:
            _release(lock)
            delattr(model, SAVE)  # the method of its class is there again

    setattr(model, SAVE, save_and_release)
