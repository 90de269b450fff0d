"""What a process that has ended said last, and whether another start would say it again.

vLLM reports what ended its engine core or a worker as "See root cause above"; the cause itself is an earlier
line of the same start. Read in 0.26 and 0.33: `EngineCoreProc`, `WorkerProc`, `ModelConfig`, `ModelRegistry`.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pipelinerl.base.errors import printable
from pipelinerl.launcher.supervision.spec import ChildSpec

MOST_READ = 256 * 1024
"""Bytes of a log's end."""
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) ?)*(ERROR \S+ \S+ \[[^\]]*\] )?")
"""What vLLM puts before each line: its process and, in its own log, level, time and place."""
_ERROR = re.compile(r"^([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Interrupt|Exit)\b(: |$)")
_ELSEWHERE = re.compile(r"[Ss]ee (root cause|stack trace)|initialization failed|failed to start")
"""An exception that only says that another process had one."""
_OF_ROLE = re.compile(r"[a-z]\w*: ([A-Z]\w*: .*)")
"""The line in which a role tells its error (`base/role.py`)."""
_DETAIL = re.compile(r"^\s+(Value error|Assertion failed), ")
"""The cause inside a validation error of pydantic's, on the second line behind it."""
PERMANENT = re.compile(
    r"^(ModuleNotFoundError|ImportError): "
    r"|ValidationError: \d+ validation errors? for \w+Config"
    r"|Model architectures \[.*\] (are not supported|failed to be inspected)"
    r"|has no vLLM implementation"
    r"|does not recognize this architecture"
    r"|error: (unrecognized arguments|argument \S+: (invalid|expected)|the following arguments are required)"
)
"""Reasons that lie in what is installed, in the model or in the command."""
_MAY_PASS = re.compile(
    r"\[Errno (28|98|99|104|110|111|113)\]|[Aa]ddress already in use|[Cc]onnection|[Tt]imed? ?out"
    r"|Free memory on"
)
"""Another process, the network or the disk may be better at the next start."""


def last_words(spec: ChildSpec, since: tuple[int, int]) -> str:
    """The last line of stderr, or of stdout if there was none; `since` are the sizes of both at the start.

    Where that is no error of its own, an engine of vLLM is quoted with the error that it points to.
    """
    err, out = (list(_lines(path, start)) for path, start in zip((spec.stderr, spec.stdout), since))
    last = next((line for line in reversed(err or out) if line.strip()), "")
    if last.strip() and not last.strip("=-_ "):
        last = _of_ranks(err or out) or last
    if spec.stages and (_ELSEWHERE.search(last) or not _ERROR.match(_PREFIX.sub("", last))):
        last = _last_error(err) or _last_error(out) or last
    return printable(last)


def _lines(path: Path, start: int) -> Iterator[str]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - MOST_READ))
        yield from file.read().decode(errors="replace").splitlines()


def _of_ranks(lines: list[str]) -> str:
    """Of torch's report on ranks, which ends in a rule: the rank that ended first, how, and its error.

    The log has the errors of all ranks here. A rank that was killed said none, and those of others follow
    from its end.
    """
    start = next(
        (at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Root Cause")), len(lines)
    )
    found = (re.match(r"\s+(rank|exitcode)\s+: (.*)", line) for line in lines[start:])
    told = {match[1]: match[2].split(" (local")[0] for match in found if match}
    if len(told) < 2:
        return ""
    ended = f"rank {told['rank']} ended first, exit code {told['exitcode']}".rstrip()
    errors = (match[1] for match in map(_OF_ROLE.match, lines[:start]) if match)
    error = next(errors, "") if told["exitcode"].startswith("1 ") else ""
    return f"{ended}: {error}" if error else ended


def _last_error(lines: list[str]) -> str:
    """The last exception that is a cause itself; empty if there is none."""
    bare = [_PREFIX.sub("", line) for line in lines]
    for index in range(len(bare) - 1, -1, -1):
        if _ERROR.match(bare[index]) and not _ELSEWHERE.search(bare[index]):
            detail = next((line.strip() for line in bare[index + 1 : index + 3] if _DETAIL.match(line)), "")
            return " ".join(filter(None, (bare[index], detail)))
    return ""


def is_permanent(words: str) -> bool:
    """Whether what a process said lies in its installation, its model or its command."""
    return PERMANENT.search(_PREFIX.sub("", words)) is not None


def repeats(words: str, before: str) -> bool:
    """Whether two starts ended with the same words, numbers aside, about nothing that passes by itself."""
    one, other = (re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", text) for text in (words, before))
    return bool(words) and one == other and _MAY_PASS.search(words) is None
