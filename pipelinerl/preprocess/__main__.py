"""Command of the preprocess role: `python -m pipelinerl.preprocess OUTPUT_DIR --job IDX`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from pipelinerl.base import faults
from pipelinerl.base.heartbeat import start_heartbeat
from pipelinerl.base.logs import setup_logging
from pipelinerl.config import load
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.preprocess.loop import run
from pipelinerl.streams import set_streams_backend

log = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelinerl.preprocess", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="folder of the run")
    parser.add_argument("--job", type=int, default=None, help="index of this process in the run's jobs")
    arguments = parser.parse_args()
    try:
        start_heartbeat(arguments.output_dir, "preprocess")
        faults.hit("preprocess:start")
        _run(arguments.output_dir)
    except Exception as error:
        log.exception("preprocess ends with an error")
        print(f"preprocess: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _run(output_dir: Path) -> None:
    cfg = load(output_dir)
    setup_logging(output_dir, "preprocess")
    set_streams_backend(**cfg.streams.settings)
    with MetricsWriter(output_dir, "preprocess") as writer:
        run(cfg, output_dir, writer)


if __name__ == "__main__":
    sys.exit(main())
