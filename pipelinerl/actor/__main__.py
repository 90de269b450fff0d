"""python -m pipelinerl.actor OUTPUT_DIR --job IDX"""

import asyncio
import logging
import os
import sys
import threading
from pathlib import Path

from pipelinerl.actor.pool import WorkerDied
from pipelinerl.actor.retries import reason_of
from pipelinerl.actor.run import run_actor
from pipelinerl.actor.scheduler import RunFailed
from pipelinerl.base import faults
from pipelinerl.base.errors import CommandParser, printable
from pipelinerl.base.heartbeat import start_heartbeat
from pipelinerl.base.logs import setup_logging
from pipelinerl.base.waits import WaitExpired
from pipelinerl.config import ConfigError, load
from pipelinerl.streams import StreamError, set_streams_backend
from pipelinerl.streams.kind import stream_settings

MEANT_FOR_PEOPLE = (RunFailed, WorkerDied, WaitExpired, ConfigError, StreamError, ValueError)


def main() -> int:
    parser = CommandParser(prog="python -m pipelinerl.actor", description="Run rollouts.")
    parser.add_argument("output_dir")
    parser.add_argument("--job", type=int, required=True, help="index of this process in cfg.jobs")
    args = parser.parse_args()
    output_dir = Path(args.output_dir)
    setup_logging(output_dir, "actor")
    try:
        start_heartbeat(output_dir, "actor")
        faults.hit("actor:start")
        cfg = load(output_dir)
        set_streams_backend(**stream_settings(cfg.streams))
        asyncio.run(run_actor(cfg, output_dir, args.job))
    except Exception as error:
        logging.getLogger(__name__).info("the actor ends", exc_info=error)
        # These say what is wrong in their own words; of any other error the type is half of the message.
        text = str(error) if isinstance(error, MEANT_FOR_PEOPLE) else reason_of(error)
        print(printable(f"actor: {text}"), file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    left = [one.name for one in threading.enumerate()[1:] if not one.daemon]
    if left:  # of a loader or a hook; the interpreter would wait for them, perhaps for ever
        logging.getLogger(__name__).warning("threads that the domain left end now: %s", ", ".join(left))
        logging.shutdown()
        os._exit(code)
    sys.exit(code)
