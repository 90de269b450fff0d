"""Dying with the parent: run a command that is killed when its parent ends, however the parent ends.

    python child.py --parent PID [--guard FD] -- COMMAND ARGUMENT ...

The kernel sends SIGKILL to this process when the *thread* that started it ends (PR_SET_PDEATHSIG, which
survives exec). The request reaches one generation only: a process that forks workers of its own calls
`die_with_parent()` at the start of each of them, with its own pid, or its workers outlive a kill -9 of it.
What else it starts is left to a guard (guard.py), to which it tells its group before the command runs: its
parent could be killed before it has told it.
Standard library only: the file runs on its own with `python -I -S`, which takes 20 ms.
"""

import contextlib
import ctypes
import os
import signal
import sys

TYPE_CHECKING = False  # the import would double the time of a start
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
CHILD_VARIABLE = "PIPELINERL_CHILD_PID"
"""Pid of the launcher's child that a process comes from."""


def wrapped(argv: "Iterable[str]", guard: int | None = None) -> list[str]:
    """The command that runs `argv` so that it is killed when this process ends; to be started by it.

    `guard` is the descriptor of a guard's input, to be passed on: the command leads a group of its own.
    """
    told = () if guard is None else ("--guard", str(guard))
    return [sys.executable, "-I", "-S", __file__, "--parent", str(os.getpid()), *told, "--", *argv]


def die_with_parent(parent_pid: int | None = None) -> None:
    """Ask for SIGKILL when the parent ends; with `parent_pid`, end at once if it already has.

    `parent_pid` is os.getpid() as the parent saw it before it started this process; without it, a parent
    that died before this call is not noticed. The kernel watches the thread that forked, so workers must be
    started from a thread that lives as long as its process, such as the main thread. OSError outside Linux.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("dying with the parent needs Linux (prctl)")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def die_with_agent() -> None:
    """For a rank that torch's elastic agent started: end when the agent does, which ends with the launcher.

    The agent puts each rank into a session of its own, where killing its group misses it. It is the process
    that this file turned into, so its pid is in the environment: an agent that died before this call is
    noticed. Nothing for a process that no agent started.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        agent = os.environ.get(CHILD_VARIABLE)
        die_with_parent(None if agent is None else int(agent))


def split(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options and command of this file's arguments."""
    behind = argv.index("--") if "--" in argv else len(argv)
    return dict(zip(argv[:behind:2], argv[1:behind:2])), argv[behind + 1 :]


def begin(options: dict[str, str]) -> None:
    """What a child does before its command runs; the descriptor of its guard is closed."""
    die_with_parent(int(options["--parent"]))
    if "--guard" in options:
        # A guard that was killed has a successor, to which the parent tells all groups.
        with open(int(options["--guard"]), "wb", buffering=0) as told, contextlib.suppress(BrokenPipeError):
            told.write(b"+%d\n" % os.getpid())
    os.environ[CHILD_VARIABLE] = str(os.getpid())  # which stays the same through exec


def main(argv: list[str]) -> int:
    options, command = split(argv)
    if not command or "--parent" not in options or not options.keys() <= {"--parent", "--guard"}:
        print("usage: child.py --parent PID [--guard FD] -- COMMAND ARGUMENT ...", file=sys.stderr)
        return 2
    begin(options)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
