"""python -m pipelinerl.actor OUTPUT_DIR --job IDX"""

import argparse
import asyncio
import sys
from pathlib import Path

from pipelinerl.actor.retries import reason_of
from pipelinerl.actor.run import run_actor
from pipelinerl.config import load
from pipelinerl.observe.logs import setup_logging


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelinerl.actor", description="Run rollouts.")
    parser.add_argument("output_dir")
    parser.add_argument("--job", type=int, required=True, help="index of this process in cfg.jobs")
    args = parser.parse_args()
    output_dir = Path(args.output_dir)
    setup_logging(output_dir, "actor")
    try:
        asyncio.run(run_actor(load(output_dir), output_dir, args.job))
    except Exception as error:
        print(f"actor: {reason_of(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
