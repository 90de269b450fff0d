"""`python -m MODULE` and `python -c CODE` as forks of the tests' own process, which has their imports.

A start takes 30 ms of the processor instead of a second, or four with torch. That a module starts in an
interpreter of its own, the tests of whole runs see, and others that do not use this.
"""

import atexit
import gc
import inspect
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from _pytest.outcomes import Skipped
from _pytest.pathlib import import_path, module_name_from_path

from pipelinerl.base.child import begin, split

OWN = ("pipelinerl", "domains", "retrieval_server", "tests", "vllm")
AFRESH = (
    f"import sys\nfor name in [*sys.modules]:\n if name.partition('.')[0] in {OWN}: del sys.modules[name]\n"
)
"""Begins `CODE` that imports the project as a new interpreter would, though not what the project imports."""
BARE = subprocess.Popen
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Forked(subprocess.Popen[Any]):
    """A `Popen` that forks for `python -m MODULE ...` and `python -c CODE ...`, also inside of `wrapped`.

    Any other command is started as always. What the fork itself starts by `subprocess.Popen`, at any depth,
    is started likewise.
    """

    spreads = True

    def _execute_child(self, *arguments: Any) -> None:
        given = _EXECUTE.bind(self, *arguments).arguments
        words = [str(word) for word in given["args"]]
        options = dict[str, str]()
        if "--parent" in words[:5]:
            options, words = split(words[4:])
        if words[:2] not in ([sys.executable, "-m"], [sys.executable, "-c"]):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            _run(words[1:], options, given, self.spreads)
        self._child_created = True
        for child, own in (("p2cread", "p2cwrite"), ("c2pwrite", "c2pread"), ("errwrite", "errread")):
            if -1 not in (given[child], given[own]):
                os.close(given[child])
        if (devnull := getattr(self, "_devnull", None)) is not None:
            os.close(devnull)


class ForkedWorker(Forked):
    """A worker of xdist, which it starts by `python -u -c CODE`: what that starts are processes as always."""

    spreads = False

    def __init__(self, args: Sequence[str], **how: Any) -> None:
        super().__init__([word for word in args if word != "-u"], **how)


def import_tests(config: pytest.Config) -> None:
    """Imports a session's tests, as its collection finds them later; it also imports what refuses here."""
    ignored = [config.invocation_params.dir / path for path in config.getoption("ignore") or ()]
    for given in config.args:
        top = config.invocation_params.dir / given.partition("::")[0]
        for path in [top] if top.is_file() else sorted([*top.rglob("conftest.py"), *top.rglob("test_*.py")]):
            if any(path.is_relative_to(one) for one in ignored):
                continue
            try:
                import_path(path, mode="importlib", root=config.rootpath, consider_namespace_packages=False)
            except (Exception, Skipped):
                sys.modules.pop(module_name_from_path(path, config.rootpath), None)


def _run(words: list[str], options: dict[str, str], given: Mapping[str, Any], spreads: bool) -> NoReturn:
    status = 1
    try:
        _leave_the_tests_behind(given)
        if options:
            begin(options)
        subprocess.Popen = Forked if spreads else BARE  # type: ignore[misc]
        if spreads:
            warnings.simplefilter("ignore")
        else:  # the session that it was forked from has set its own
            sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
        option, program, *arguments = words
        sys.argv, sys.path[:] = [option, *arguments], [os.getcwd(), *sys.path]
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(program, vars(module))
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end.code if isinstance(end.code, str) else "", end="", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _leave_the_tests_behind(given: Mapping[str, Any]) -> None:
    """Streams, signals, environment and exits of a process that was just started.

    The numbers of other files stay taken, by nothing: objects of the tests may still close them.
    """
    gc.freeze()
    atexit._clear()
    ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    kept = [own if end == -1 else os.dup(end) for own, end in enumerate(ends)]
    for number, end in enumerate(kept):
        os.dup2(end, number)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in given["pass_fds"] and Path(f"/proc/self/fd/{number}").exists():
            os.dup2(nothing, number)
    for number in given["pass_fds"]:
        os.set_inheritable(number, True)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
    signal.set_wakeup_fd(-1)
    for one in signal.valid_signals():
        if callable(signal.getsignal(one)):
            signal.signal(one, signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL)
    logging.root.handlers.clear()
    if given["env"] is not None:
        os.environ.clear()
        os.environ |= given["env"]
    if given["cwd"] is not None:
        os.chdir(given["cwd"])
    if given["start_new_session"]:
        os.setsid()
