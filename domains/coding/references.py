"""Rows that nothing can solve, or anything: their own reference program is wrong, or an empty one is right.

Called by the loader with `check_references=true`. Each program runs in the sandbox with all of its tests, as
a completion's would, so that also what this judge cannot compare is found before a policy is asked.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from domains.coding.verifier_api import judged
from pipelinerl.base.logs import REMARK
from pipelinerl.extras.sandbox.host import Limits, Sandbox

log = logging.getLogger(__name__)

CPU_S = 10.0
"""Of each process of a test, in seconds of processor time; twice that on the clock."""
EMPTY = "pass"
NAMED = 20
"""Rows that the log names; all are counted."""


@dataclass(frozen=True)
class Reference:
    """The reference program of a row, and the context of its verdict."""

    id: str
    where: str
    program: str
    context: Mapping[str, Any]


def unsolvable(name: str, references: Sequence[Reference], packages: Sequence[str] = ()) -> frozenset[str]:
    """Ids of rows that tell no program from another, which one line of the log counts and names."""
    if not references:
        return frozenset()
    # A loop of its own: loaders are called inside of one, and without one.
    with ThreadPoolExecutor(1) as thread:
        statuses = thread.submit(asyncio.run, _statuses(references, packages)).result()
    pairs = zip(references, statuses, strict=True)
    wrong = [(one, status) for one, status in pairs if status != "passed"]
    if wrong:
        kinds = Counter(status for _, status in wrong).most_common()
        named = ", ".join(f"{one.where} ({status})" for one, status in wrong[:NAMED])
        log.warning(
            "dataset %s: %d of %d rows are left out, wrong for their own reference program or right for an "
            "empty one (%s): %s%s",
            name,
            len(wrong),
            len(references),
            ", ".join(f"{count} {kind}" for kind, count in kinds),
            named,
            ", ..." if len(wrong) > NAMED else "",
            extra=REMARK,
        )
    return frozenset(one.id for one, _ in wrong)


async def _statuses(references: Sequence[Reference], packages: Sequence[str]) -> list[str]:
    """Of each `passed`, or how its first bad test ended; `tests nothing` where an empty program passes."""
    limits = Limits(cpu_s=CPU_S, wall_s=2 * CPU_S)
    async with Sandbox(limits, at_once=len(os.sched_getaffinity(0)), packages=packages) as box:

        async def one(reference: Reference) -> str:
            # The first test nearly always tells them apart.
            for tests in (1, 0):
                if (await judged(box, EMPTY, reference.context, tests)).answer_status != "correct":
                    break
            else:
                return "tests nothing"
            found = await judged(box, reference.program, reference.context)
            return next((status for status in found.statuses if status != "passed"), "passed")

        return list(await asyncio.gather(*map(one, references)))
