"""What the commands of preprocess and trainer share: arguments, a heartbeat, and one line for an error."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from pipelinerl.base import faults
from pipelinerl.base.errors import CommandParser, printable
from pipelinerl.base.heartbeat import start_heartbeat

log = logging.getLogger(__name__)


def run_role(
    name: str,
    description: str | None,
    run: Callable[[Path], None],
    beats: bool = True,
    job: str | None = None,
) -> int:
    """Run `pipelinerl.<name>` in the folder that the command line names; the exit code of the process.

    The heartbeat is that of `job`, by default named like the role.

    An error is logged with its traceback, and told in one line on stderr, which the launcher shows.
    """
    parser = CommandParser(prog=f"python -m pipelinerl.{name}", description=description)
    parser.add_argument("output_dir", type=Path, help="folder of the run")
    parser.add_argument("--job", type=int, default=None, help="index of this process in the run's jobs")
    output_dir = parser.parse_args().output_dir
    try:
        if beats:
            start_heartbeat(output_dir, job or name)
        faults.hit(f"{name}:start")
        run(output_dir)
    except Exception as error:
        log.exception("%s ends with an error", name)
        print(f"{name}: {type(error).__name__}: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 1
    return 0
