"""Blocking work beside the caller, with a future for its result; also work that may never end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Run `work` in a daemon thread of its own; the future has its result or what it raised."""
    # No ThreadPoolExecutor: the interpreter joins its threads at exit, so one call that hangs for ever
    # would keep the process alive.
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # handed to whoever asks the future
            future.set_exception(error)

    name = getattr(work, "__name__", type(work).__name__)
    threading.Thread(target=run, name=f"in_thread-{name}", daemon=True).start()
    return future
