"""Tests in workers that are forked after one collection: `pytest -p tests.support.forks --forks 3`.

A collection imports torch, transformers and 450 files of tests; each of several workers that start by
themselves would do it again. Files are handed out one by one, those of whole runs first. A worker that dies
fails the test that it was at, and a new one goes on.
"""

import atexit
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
from _pytest.terminal import TerminalReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--forks`."""
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forked workers")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests where `--forks` asks for workers, else leaves them to pytest."""
    count: int = session.config.getoption("forks")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    assert threading.active_count() == 1, f"a fork has none of these: {threading.enumerate()}"
    Forks(session).run(count)
    return True


@dataclass(eq=False)
class Worker:
    """What the session knows of a worker."""

    pid: int
    ended: int
    """A descriptor that is readable when the process has ended."""
    line: Connection
    given: deque[int] = field(default_factory=deque)
    """Indices of tests that it has not begun."""
    current: int | None = None


class Forks:
    """The workers of a session, and what is left to do."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._config = session, session.config
        order = sorted(
            range(len(session.items)), key=lambda one: "tests/pipeline" not in str(session.items[one].path)
        )
        self._left = deque(deque(same) for _, same in groupby(order, lambda one: session.items[one].path))
        self._workers: list[Worker] = []
        self._started = 0
        self._folder: Any = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, count: int) -> None:
        """Returns when all tests have been reported. Raises what pytest's own loop raises."""
        try:
            for _ in range(count):
                self._start()
            while self._workers:
                wait([one for worker in self._workers for one in (worker.line, worker.ended)])
                for worker in [*self._workers]:
                    self._hear(worker)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for worker in self._workers:
                os.kill(worker.pid, signal.SIGTERM)
                os.waitpid(worker.pid, 0)

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._started += 1
        if (pid := os.fork()) == 0:
            ours.close()
            _work(self._session, theirs, self._folder / f"worker{self._started}")
        theirs.close()
        self._workers.append(Worker(pid, os.pidfd_open(pid), ours))

    def _hear(self, worker: Worker) -> None:
        ended = bool(wait([worker.ended], timeout=0))  # before its last messages are read
        for kind, said in _messages(worker):
            if kind == "more":
                chunk = self._left.popleft() if self._left else deque[int]()
                worker.given += chunk
                worker.line.send([*chunk])
            elif kind == "begins":
                worker.current = worker.given.popleft()
            elif kind == "report":
                hook = self._config.hook
                report = hook.pytest_report_from_serializable(config=self._config, data=said)
                hook.pytest_runtest_logreport(report=report)
            elif kind == "warning":
                self._config.hook.pytest_warning_recorded.call_historic(kwargs=said)
            elif kind == "done":
                self._finished(worker)
        if not ended:
            return
        self._workers.remove(worker)
        os.close(worker.ended)
        _, status = os.waitpid(worker.pid, 0)
        if status or worker.current is not None or worker.given:
            self._died(worker, os.waitstatus_to_exitcode(status))

    def _finished(self, worker: Worker) -> None:
        assert worker.current is not None
        item, worker.current = self._session.items[worker.current], None
        self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _died(self, worker: Worker, code: int) -> None:
        """Fails the test that a worker was at, and leaves its others to a new one."""
        if worker.current is None:
            raise self._session.Failed(f"a worker ended with {code} between tests")
        item = self._session.items[worker.current]
        said = f"the worker ended with {code} in this test"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        self._finished(worker)
        if worker.given:
            self._left.appendleft(worker.given)
        self._start()


def _messages(worker: Worker) -> Iterator[tuple[str, Any]]:
    """What it has said so far; a worker that died may have broken off in the middle."""
    try:
        while worker.line.poll():
            yield worker.line.recv()
    except (EOFError, OSError):
        return


class _Silent(TerminalReporter):
    """Plugins ask for a terminal; only the session's own writes to it."""

    def pytest_runtest_logstart(self, **_: Any) -> None: ...
    def pytest_runtest_logreport(self, **_: Any) -> None: ...
    def pytest_runtest_logfinish(self, **_: Any) -> None: ...
    def pytest_warning_recorded(self, **_: Any) -> None: ...


class _Tells:
    """The worker's plugin that sends to the session what is reported."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config, self._line = config, line
        self.told = True
        """Until it begins: a plugin that registers hears of all warnings before, which the session knows."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._line.send(("report", data))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if self.told:
            return
        said = {"when": when, "nodeid": nodeid, "location": location}
        warning_message.source = None  # may be anything
        self._line.send(("warning", said | {"warning_message": warning_message}))


def _work(session: pytest.Session, line: Connection, folder: Any) -> NoReturn:
    """A worker's whole life: what it prints and its folder of temporary files are its own."""
    code = 1
    try:
        folder.mkdir(mode=0o700)
        config: Any = session.config
        config._tmp_path_factory._basetemp = folder
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are the session's, and so are the places in them
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.unregister(name="terminalreporter")
        with open(os.devnull, "w") as nowhere:
            config.pluginmanager.register(_Silent(config, nowhere), "terminalreporter")
            config.pluginmanager.register(tells := _Tells(config, line))
            tells.told = False
            for index, following in _given(line):
                line.send(("begins", index))
                after = None if following is None else session.items[following]
                config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=after)
                line.send(("done", index))
        code = 0
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # the session ends
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _given(line: Connection) -> Iterator[tuple[int, int | None]]:
    """Each test with the one after it, which decides what is torn down between them."""

    def more() -> list[int]:
        line.send(("more", None))
        return list(line.recv())

    chunk = more()
    while chunk:
        further = list[int]()
        for place, index in enumerate(chunk):
            if place == len(chunk) - 1:
                further = more()
            yield index, next(iter(chunk[place + 1 :] or further), None)
        chunk = further
