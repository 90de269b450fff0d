"""Ranks of a program, forked from one process so that they import once what takes seconds of each.

`forked_ranks.py COUNT apart|together PROGRAM ARGUMENT ...` prints the exit code and stderr of each, as JSON.
`apart`: each rank is on a host of its own.
"""

import gc

gc.disable()  # while what stays is imported
# ruff: noqa: E402
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path

from pipelinerl.finetune import loop  # noqa: F401 - what the ranks would import, with torch
from tests.support import builders, policy  # noqa: F401


def rank(index: int, said: str) -> None:
    apart, program, *arguments = sys.argv[2:]
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    os.environ |= {"RANK": str(index), "LOCAL_RANK": "0" if apart == "apart" else str(index)}
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, str(index)) for index in range(int(sys.argv[1]))]
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=rank, args=(index, str(path))) for index, path in enumerate(said)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        print(json.dumps([(one.exitcode, path.read_text()) for one, path in zip(ranks, said, strict=True)]))
