"""Ranks of a program, forked from a process that has imported what takes seconds for each of them.

That is the tests' own, unless it has used a card, which no fork of it could: `forked_ranks.py JSON` calls
`run_ranks` with these arguments in a process of its own and prints what it returns.
"""

import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pipelinerl.base.child import die_with_parent
from pipelinerl.finetune import loop  # noqa: F401 - what the ranks would import, with torch
from tests.support import builders, policy  # noqa: F401


def rank(said: str, variables: Mapping[str, str], program: str, arguments: list[str]) -> None:
    die_with_parent()
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)  # pytest's is its own file
    os.environ |= variables
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


def run_ranks(
    count: int,
    apart: bool,
    variables: Mapping[str, str],
    deadline_s: float,
    program: str,
    arguments: list[str],
) -> list[tuple[int, str]]:
    """Exit code and stderr of each rank; `apart`: each is on a host of its own."""
    fork, end = multiprocessing.get_context("fork"), time.monotonic() + deadline_s
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        said = [str(Path(folder, str(index))) for index in range(count)]
        try:
            for index, path in enumerate(said):
                numbers = {"RANK": str(index), "LOCAL_RANK": "0" if apart else str(index)}
                words = path, {**variables, **numbers}, program, arguments
                ranks.append(fork.Process(target=rank, args=words))
                ranks[-1].start()
            for one in ranks:
                one.join(max(end - time.monotonic(), 0))
            assert all(one.exitcode is not None for one in ranks), f"ranks still run after {deadline_s} s"
        finally:
            for one in ranks:
                one.kill()
        return [(one.exitcode or 0, Path(path).read_text()) for one, path in zip(ranks, said, strict=True)]


if __name__ == "__main__":
    print(json.dumps(run_ranks(**json.loads(sys.argv[1]))))
