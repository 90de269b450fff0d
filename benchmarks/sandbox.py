"""Programs a second that the sandbox answers, each a process of its own, in each way that the machine offers.

    python -m benchmarks.sandbox [--calls 300] [--rounds 5]

Four kinds take turns: one that prints, one that reads standard input, a function with a value, and tests
of a data set, which take two processes. The rate is that of `--calls` programs, eight at a time; the time of
one alone is a median. The first program of a template, which starts it, is measured by itself.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks._figures import Figure, at_least, command_line, report
from pipelinerl.extras.sandbox.host import MODES, Sandbox, SandboxUnavailable

AT_ONCE = 8
GOAL = 50.0
Kind = Callable[[Sandbox], Awaitable[object]]

KINDS: dict[str, Kind] = {
    "printing": lambda box: box.run("print(sum(range(1000)))"),
    "reading": lambda box: box.run("print(sum(map(int, input().split())))", "1 2 3\n", preamble=True),
    "function": lambda box: box.call("def f(a, b): return a + b", "f", [1, 2], preamble=True),
    "tests": lambda box: box.check("def f(a, b): return a + b", ["f"], "assert f(1, 2) == 3"),
}


async def measure(mode: str, calls: int, rounds: int) -> dict[str, list[float]]:
    """Rates of each round by kind, and under `start` and `alone` seconds."""
    found: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "start", "alone")}
    async with Sandbox(at_once=AT_ONCE, modes=(mode,)) as box:
        for _ in range(rounds):
            for name, kind in KINDS.items():
                begin = time.perf_counter()
                await asyncio.gather(*(kind(box) for _ in range(calls)))
                found[name].append(calls / (time.perf_counter() - begin))
            for _ in range(20):
                begin = time.perf_counter()
                await KINDS["printing"](box)
                found["alone"].append(time.perf_counter() - begin)
    for _ in range(rounds):
        begin = time.perf_counter()
        async with Sandbox(modes=(mode,)) as box:
            await KINDS["printing"](box)
            found["start"].append(time.perf_counter() - begin)
    return found


def main() -> int:
    options = command_line(__doc__)
    figures: list[Figure] = []
    for mode in MODES:
        try:
            found = asyncio.run(measure(mode, options.calls, options.rounds))
        except SandboxUnavailable as error:
            print(error)
            continue
        for kind in KINDS:
            goal = GOAL if kind == "printing" else None
            figures += [
                at_least(f"{mode}, {kind}, worst round", min(found[kind]), "programs/s", goal),
                Figure(f"{mode}, {kind}, median round", statistics.median(found[kind]), "programs/s"),
            ]
        figures += [
            Figure(f"{mode}, one program alone, median", 1e3 * statistics.median(found["alone"]), "ms"),
            Figure(f"{mode}, template and first program", 1e3 * statistics.median(found["start"]), "ms"),
        ]
    return report("sandbox", figures, vars(options))


if __name__ == "__main__":
    sys.exit(main())
