"""Command of the trainer role: `python -m pipelinerl.finetune OUTPUT_DIR --job IDX`."""

import gc

from pipelinerl.base.child import die_with_agent
from pipelinerl.base.guard import guard_rank

die_with_agent()  # before the imports below, which take seconds
guard_rank()
if __name__ == "__main__":
    gc.disable()  # what is imported stays: to look for garbage in it took a fifth of a start
# ruff: noqa: E402
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pipelinerl.base.logs import setup_logging
from pipelinerl.base.role import run_role
from pipelinerl.config import load
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import join_ranks
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.streams import set_streams_backend
from pipelinerl.streams.kind import stream_settings


def main() -> int:
    # One heartbeat for all ranks of a host; the others hold up its first one.
    host = os.environ.get("GROUP_RANK", "0")
    job = "finetune" if host == "0" else f"finetune_{host}"
    return run_role("finetune", __doc__, _run, beats=os.environ.get("LOCAL_RANK", "0") == "0", job=job)


def _run(output_dir: Path) -> None:
    cfg = load(output_dir).model_copy(update={"output_dir": str(output_dir)})
    offload = cfg.sharding is not None and cfg.sharding.offload
    ranks = join_ranks(cfg.hardware.kind == "cpu", offload, cfg.finetune.seq_parallel)
    setup_logging(output_dir, "finetune", f"rank_{ranks.index}" if ranks.count > 1 else "")
    set_streams_backend(**stream_settings(cfg.streams))
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
    gc.freeze()
    gc.enable()
    sys.exit(main())
