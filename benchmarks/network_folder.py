"""How soon a host sees what another one writes into a folder that both share: with `is_there`, and without.

    python -m benchmarks.network_folder [--write] [--rounds 3] [--folder /shared/try] [--out FILE]

For a network file system on which a run over several hosts shall have its `output_dir`. One host runs it with
`--write`, and then another one without: this one has looked for a name in vain for 2 s, as a process does
that waits, asks for it, and looks until it is there. Seconds from asking to seeing, by the clock of the one
that looks; `Path.exists` believes what the client remembers, `pipelinerl/base/files.py::is_there` makes it
ask. Both have to see the other's first file within 100 s.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._figures import RESULTS, Figure, at_most, command_line, report, write_json
from pipelinerl.base.files import is_there, write_whole

WAYS: dict[str, Callable[[Path], bool]] = {"exists": Path.exists, "is_there": is_there}
LOOK_EVERY_S, IN_VAIN_S, DEADLINE_S = 0.05, 2.0, 100.0
GOAL_S = 1.0


def until_there(path: Path, look: Callable[[Path], bool] = is_there) -> float:
    """Seconds until it is seen; TimeoutError at the deadline."""
    began = time.monotonic()
    while not look(path):
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError(f"{path} is not seen after {DEADLINE_S} s")
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began


def rounds_in(folder: Path, rounds: int) -> list[tuple[str, Path]]:
    """A folder for each look, so that no look teaches the client about the next."""
    return [(way, folder / f"{way}{number}") for number in range(rounds) for way in WAYS]


def answer(folder: Path, rounds: int) -> None:
    """Write what the other host asks for."""
    for _, place in rounds_in(folder, rounds):
        place.mkdir(parents=True)
    write_whole(folder / "ready", "")
    for _, place in rounds_in(folder, rounds):
        until_there(folder / f"ask-{place.name}")
        write_whole(place / "name", "")


def look(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of every look, by its way."""
    until_there(folder / "ready")
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    for way, place in rounds_in(folder, rounds):
        end = time.monotonic() + IN_VAIN_S
        while time.monotonic() < end:
            assert not WAYS[way](place / "name")
            time.sleep(LOOK_EVERY_S)
        write_whole(folder / f"ask-{place.name}", "")
        seen[way].append(round(until_there(place / "name", WAYS[way]), 3))
        print(f"{way}: {seen[way][-1]} s", flush=True)
    return seen


def mount_of(folder: Path) -> str:
    """Type and options of the file system, as the kernel says them."""
    rows = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    under = [row for row in rows if folder.resolve().is_relative_to(row[1])]
    return " ".join(max(under, key=lambda row: len(row[1]))[2:4])


def main() -> int:
    options = command_line(__doc__)
    if options.write:
        answer(options.folder, options.rounds)
        return 0
    seen = look(options.folder, options.rounds)
    figures = [
        Figure("Path.exists: median", statistics.median(seen["exists"]), "s"),
        at_most("is_there: longest", max(seen["is_there"]), "s", GOAL_S),
    ]
    out = options.out or RESULTS / "network_folder.json"
    settings = {"mount": mount_of(options.folder), "rounds": options.rounds}
    missed = report("network_folder", figures, settings, out)
    write_json(out, json.loads(out.read_text()) | {"seconds": seen})
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
