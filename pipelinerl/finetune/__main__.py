"""Command of the trainer role: `python -m pipelinerl.finetune OUTPUT_DIR --job IDX`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pipelinerl.base import faults
from pipelinerl.base.heartbeat import start_heartbeat
from pipelinerl.base.logs import setup_logging
from pipelinerl.config import load
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import join_ranks
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.streams import set_streams_backend

log = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelinerl.finetune", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="folder of the run")
    parser.add_argument("--job", type=int, default=None, help="index of this process in the run's jobs")
    arguments = parser.parse_args()
    try:
        if os.environ.get("RANK", "0") == "0":  # one beat for all ranks; the others hold up rank 0
            start_heartbeat(arguments.output_dir, "finetune")
        faults.hit("finetune:start")
        _run(arguments.output_dir)
    except Exception as error:
        log.exception("the trainer ends with an error")
        print(f"finetune: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _run(output_dir: Path) -> None:
    cfg = load(output_dir).model_copy(update={"output_dir": str(output_dir)})
    ranks = join_ranks(cpu=cfg.hardware.kind == "cpu")
    setup_logging(output_dir, "finetune", f"rank_{ranks.index}" if ranks.count > 1 else "")
    set_streams_backend(**cfg.streams.settings)
    if ranks.count != cfg.derived.trainer_ranks:  # steps and streams were cut for that number
        raise ValueError(
            f"{ranks.count} ranks, but this run was placed for {cfg.derived.trainer_ranks}; use its start.sh"
        )
    metrics: AbstractContextManager[MetricsWriter | None] = nullcontext()
    if ranks.is_main:
        metrics = MetricsWriter(output_dir, "finetune")
    with metrics as writer:
        Trainer(cfg, ranks, writer).run()
    ranks.close()


if __name__ == "__main__":
    sys.exit(main())
