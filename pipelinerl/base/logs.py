"""Logging: one file per process below the role's folder; warnings also on stderr, remarks for the launcher.

A remark is a record that whoever started the run should read, although it goes on: what it learns nothing
from, what was changed of the model. The launcher prints it (`observe/remarks.py`).
"""

import logging
import sys
import warnings
from pathlib import Path

import msgspec

from pipelinerl.base.errors import printable
from pipelinerl.base.line_file import LineFile
from pipelinerl.base.masking import without_secrets

REMARK = {"remark": True}
"""`extra` of a record that the launcher prints."""
REMARKS = "remarks.jsonl"
"""File of a role's remarks, one JSON string a line."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Format(logging.Formatter):
    """Messages and stacks as a terminal may show them, without the run's secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _LogFile(logging.FileHandler):
    """A log that cannot be written (a full disk) is said once on stderr; the work goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="a", encoding="utf-8")
        self._said = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._said:
            self._said = True
            print(f"{self.baseFilename} cannot be written: {error}", file=sys.stderr)


class _Remarks(logging.Handler):
    """Appends remarks to a file; whoever cannot write it has said so in the log."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "remark", False):
            return
        try:
            with LineFile(self._path) as file:
                file.append(msgspec.json.encode(without_secrets(record.getMessage())))
        except OSError:
            self.handleError(record)


def log_path(output_dir: Path, role: str, process: str = "") -> Path:
    """`<output_dir>/<role>/<role>.log`, or `<process>.log` for a worker of the role."""
    return Path(output_dir) / role / f"{process or Path(role).name}.log"


def setup_logging(output_dir: Path, role: str, process: str = "") -> Path:
    """Send this process's log to its own file (appending), warnings and errors also to stderr.

    `process` names a worker (`worker_3`). Calling it again replaces what the first call set up, so that a
    forked worker does not write into its parent's file.
    """
    path = log_path(output_dir, role, process)
    path.parent.mkdir(parents=True, exist_ok=True)
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [_LogFile(path), console, _Remarks(path.with_name(REMARKS))]
    for handler in handlers:
        handler.setFormatter(_Format(_FORMAT))
    # `force` drops what an earlier call or the parent process has set up.
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    # One line per request or per file would bury everything else.
    for noisy in ("aiohttp.access", "asyncio", "urllib3", "matplotlib", "wandb"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # From 3.12 on Python remarks each odd escape in a program or call that a policy wrote and a judge parses.
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")
    return path
