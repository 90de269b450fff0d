"""Rollouts that block their worker's event loop: written by the worker, said by the launcher.

While a loop is blocked its worker can send nothing; a thread of it writes a file. While a call holds the
interpreter no thread runs either; then C code writes the stacks of all threads (`actor/loop_lag.py`).
"""

import logging
import re
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pipelinerl.base.files import write_whole

log = logging.getLogger(__name__)

NAME = "blocked.json"
HELD = "held.txt"
"""Stacks of a worker whose interpreter is held now; empty otherwise."""
SAID_EVERY_S = 60.0
"""Of one worker, however often it is blocked meanwhile."""
HELD_AFTER_S = 12.0
REMEDY = "await, or make the rollout a plain function"
HELD_REMEDY = "run such a call in a process of its own, with a deadline"
ROLLOUT = "rollout "
"""How the frame of a rollout's policy is called (`actor/runner.py`), before the rollout's name."""
_FRAMES = 3
_WAITING = re.compile(r"/(threading|selectors|queue|asyncio/\w+|concurrent/futures/\w+|actor/loop_lag)\.py$")
"""Files in which a thread waits; it is not the one that holds the interpreter."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_OURS = str(Path(__file__).parents[1])


def of_rollouts(file: str) -> bool:
    """Whether a frame's file is code of a domain: no library's and none of `pipelinerl/`."""
    if "/site-packages/" in file or "/dist-packages/" in file or file.startswith("<"):
        return False
    return not file.startswith(tuple(f"{folder}/" for folder in (*_LIBRARIES, _OURS)))


def where_of(frames: Sequence[tuple[str, int | str | None, str]]) -> str:
    """File, line and name of the innermost frames, and of a domain's first one if it lies further out.

    A call of a library may be a dozen frames deep, and only its caller can change anything.
    """
    shown = list(frames[:_FRAMES])
    called = next((one for one in frames if of_rollouts(one[0])), None)
    said = [f"{file}:{line} {name}" for file, line, name in shown]
    if called is not None and called not in shown:
        said += ["...", f"{called[0]}:{called[1]} {called[2]}"]
    return " < ".join(said)


def held_block(stacks: str, written: float) -> dict[str, Any] | None:
    """The block that `faulthandler` wrote at `written` (seconds since 1970), or None without a stack.

    Of several threads that may hold the interpreter, the one that runs a rollout is named.
    """
    threads = [_FRAME.findall(part) for part in stacks.split("\n\n")]
    busy = [frames for frames in threads if frames and not _WAITING.search(frames[0][0])]
    busy = busy or [frames for frames in threads if frames]
    if not busy:
        return None
    frames = min(busy, key=lambda frames: _rollout(frames) is None)
    since = written - HELD_AFTER_S
    return {"who": _rollout(frames) or "a rollout", "where": where_of(frames), "since": since}


def held_now(folder: Path) -> dict[str, Any] | None:
    """The block of the worker with this folder whose interpreter is held at this moment."""
    try:
        written = (folder / HELD).stat().st_mtime
        return held_block((folder / HELD).read_text(errors="replace"), written)
    except OSError:
        return None


def _rollout(frames: list[tuple[str, str, str]]) -> str | None:
    return next((name for _, _, name in frames if name.startswith(ROLLOUT)), None)


def write_block(output_dir: Path, role: str, block: dict[str, Any]) -> None:
    """Keep a worker's latest block: `who`, `where`, `since` and, once over, `until` (seconds since 1970)."""
    try:
        write_whole(output_dir / role / NAME, msgspec.json.encode(block) + b"\n")
    except OSError as error:  # the log has it; what matters on this disk will say so by itself
        log.warning("%s cannot be written: %s", output_dir / role / NAME, error)


class BlockWatch:
    """Lines about blocked workers, first as they are noticed and then once a minute while it goes on."""

    def __init__(self, output_dir: Path, now: float | None = None) -> None:
        """What was blocked before `now`, in seconds since 1970, was so in an earlier start."""
        self._output_dir, self._began = output_dir, time.time() if now is None else now
        self._said: dict[str, tuple[float, float]] = {}
        """By worker: when it was said last, and the beginning of that block."""

    def lines(self, now: float | None = None) -> Iterator[str]:
        """What is to be said at this moment."""
        now = time.time() if now is None else now
        for folder in sorted(self._output_dir.glob("actor/worker_*")):
            held = held_now(folder)
            try:
                block = held or msgspec.json.decode((folder / NAME).read_bytes())
                since, until = float(block["since"]), block.get("until")
                line = self._line(folder.name, since, until, now)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # a file that is no block; the worker's log has what it was
            if line is None:
                continue
            if held:
                remedy = f"no thread of it runs; {HELD_REMEDY}; all stacks are in {folder / HELD}"
            else:
                remedy = REMEDY
            yield f"{line} by {block['who']} at {block['where']}; {remedy}"

    def _line(self, worker: str, since: float, until: float | None, now: float) -> str | None:
        said_at, said_of = self._said.get(worker, (0.0, 0.0))
        told = since == said_of and until is not None
        if since < self._began or told or now - said_at < SAID_EVERY_S:
            return None
        self._said[worker] = (now, since)
        state = "is" if until is None else "was"
        return f"rollout {worker.replace('_', ' ')} {state} blocked for {(until or now) - since:.0f} s"
