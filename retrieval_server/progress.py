"""How far a long step is: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

Update = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Update]]
"""Called with the name of a step and its total; gives what is told how much is done."""

_BAR_EVERY_S = 0.1
_LINE_EVERY_S = 10.0


@contextmanager
def silent(_name: str, _total: int) -> Iterator[Update]:
    """Says nothing."""
    yield lambda _done: None


def shown() -> Progress:
    """A bar if the standard error is a terminal, else lines."""
    return _bar if sys.stderr.isatty() else lines


@contextmanager
def _bar(name: str, total: int) -> Iterator[Update]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield _now_and_then(lambda done: bar.update(task, completed=done), _BAR_EVERY_S)
        bar.update(task, completed=total)


@contextmanager
def lines(name: str, total: int) -> Iterator[Update]:
    """A line on the standard error at most every ten seconds, and one at the end."""
    started = time.monotonic()

    def tell(done: int) -> None:
        print(f"{name}: {done / max(total, 1):.0%} after {time.monotonic() - started:.0f} s", file=sys.stderr)

    yield _now_and_then(tell, _LINE_EVERY_S)
    tell(total)


def _now_and_then(tell: Update, every_s: float) -> Update:
    last = time.monotonic()

    def update(done: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= every_s:
            last = now
            tell(done)

    return update
