"""Command of the preprocess role: `python -m pipelinerl.preprocess OUTPUT_DIR --job IDX`."""

import sys
from pathlib import Path

from pipelinerl.base.logs import setup_logging
from pipelinerl.base.role import run_role
from pipelinerl.config import load
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.preprocess.loop import run
from pipelinerl.streams import set_streams_backend
from pipelinerl.streams.kind import stream_settings


def _run(output_dir: Path) -> None:
    cfg = load(output_dir)
    setup_logging(output_dir, "preprocess")
    set_streams_backend(**stream_settings(cfg.streams))
    with MetricsWriter(output_dir, "preprocess") as writer:
        run(cfg, output_dir, writer)


if __name__ == "__main__":
    sys.exit(run_role("preprocess", __doc__, _run))
