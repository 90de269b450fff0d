"""What happens in the process of one program, once nothing is open and nothing is allowed any more.

`run` executes it as `python FILE` would. `call` and `serve` define its functions and answer with their
values; `judge` runs the tests of a dataset against a `serve` in another process. Nothing here decides what
is right, apart from `judge`, in which no line of the program runs.
"""

import atexit
import builtins
import contextlib
import functools
import importlib
import json
import linecache
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, BinaryIO

from pipelinerl.extras.sandbox.values import Kept, Remote, decode, encode

CHANNEL = 3
"""The only descriptor besides the three standard ones, and only of the modes with values."""
NAME = "<program>"
RECURSION = 50_000
MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)
"""Known by name, and what they export, to programs of `preamble`; as judges of programming contests do."""


_GIVEN: dict[str, Any] = {}
"""What this program was given of that."""


def preamble() -> dict[str, Any]:
    """The names that a program may use without importing them; none hides a built-in."""
    names: dict[str, Any] = {}
    for module in map(importlib.import_module, MODULES):
        exported = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        names |= {name: getattr(module, name) for name in exported if not hasattr(builtins, name)}
    return names | {name: importlib.import_module(name) for name in MODULES}


def main(request: dict[str, Any], names: dict[str, Any]) -> None:
    """Do what the request says, and end the process. `names` are those of `preamble`, made beforehand."""
    module = types.ModuleType("__main__")
    if request.get("preamble"):
        _GIVEN.update(names)
        module.__dict__.update(names)
        sys.setrecursionlimit(RECURSION)
    mode = _MODES[request["mode"]]
    sys.argv = [NAME]
    try:
        mode(module, request)
        code: Any = 0
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        # The frame of this file is not the program's.
        _report(error)
        code = 1
    _end(code)


def _report(error: BaseException) -> None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != NAME:
        frames = frames.tb_next
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    with contextlib.suppress(BaseException):
        traceback.print_exception(type(error), error, frames)


def _end(code: Any) -> None:
    """As the interpreter ends: threads, exit functions, buffers; without its last steps, which may hang."""
    if code is not None and not isinstance(code, int):
        with contextlib.suppress(BaseException):
            print(code, file=sys.stderr)
        code = 1
    for last in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)):
        with contextlib.suppress(BaseException):
            if last is not None:
                last()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def _execute(module: types.ModuleType, source: str) -> None:
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)


def _run(module: types.ModuleType, request: dict[str, Any]) -> None:
    sys.modules["__main__"] = module
    _execute(module, request["code"])


def _defined(module: types.ModuleType, request: dict[str, Any]) -> None:
    """Functions and classes of the program; its own main part, if it has one, does not run."""
    module.__name__ = "program"
    sys.modules["program"] = module
    _execute(module, request["code"])


def _function(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """A method of LeetCode's class `Solution`, else a function of the module."""
    solution = module.__dict__.get("Solution")
    owner = solution() if isinstance(solution, type) and hasattr(solution, name) else module
    function: Callable[..., Any] = getattr(owner, name)
    if function is _GIVEN.get(name):  # such as add, which operator has
        raise NameError(f"name {name!r} is not defined by the program")
    return function


def _answer(module: types.ModuleType, kept: Kept, call: dict[str, Any]) -> dict[str, Any]:
    try:
        if "of" in call:
            asked = _attribute(kept.object(call["of"]), kept, call)
        else:
            asked = _function(module, call["name"])
        if "args" not in call:
            return {"method": True} if callable(asked) else {"value": encode(asked, kept)}
        arguments = decode(call["args"], kept.object)
        named = decode(call.get("kwargs") or {"dict": []}, kept.object)
        return {"value": encode(asked(*arguments, **named), kept)}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)[:200]}


def _attribute(owner: Any, kept: Kept, call: dict[str, Any]) -> Any:
    """An attribute of a kept object, set first if the tests said so."""
    if "set" in call:
        setattr(owner, call["name"], decode(call["set"], kept.object))
    return getattr(owner, call["name"])


def _kept(module: types.ModuleType, names: list[str]) -> Kept:
    """For objects of those classes that the program has."""
    return Kept(*(kind for name in names if isinstance(kind := module.__dict__.get(name), type)))


def _call(module: types.ModuleType, request: dict[str, Any]) -> None:
    """One call; an exception is the program's end, as in `run`."""
    _defined(module, request)
    call = request["call"]
    value = encode(_function(module, call["name"])(*decode(call["args"])))
    with os.fdopen(CHANNEL, "wb") as channel:
        channel.write(json.dumps({"value": value}).encode())


def _serve(module: types.ModuleType, request: dict[str, Any]) -> None:
    """Calls until the other side hangs up."""
    _defined(module, request)
    kept = _kept(module, request.get("classes", []))
    with os.fdopen(CHANNEL, "rb", closefd=False) as calls, os.fdopen(CHANNEL, "wb") as answers:
        for line in calls:
            answers.write(json.dumps(_answer(module, kept, json.loads(line))).encode() + b"\n")
            answers.flush()


class _Channel:
    """Calls to the program's process."""

    def __init__(self, calls: BinaryIO, answers: BinaryIO) -> None:
        self._calls, self._answers = calls, answers

    def ask(self, call: dict[str, Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value of a call."""
        return self.said(call | {"args": encode(list(arguments)), "kwargs": encode(named)})

    def said(self, call: dict[str, Any]) -> Any:
        """What the program answers, as a value or an exception."""
        self._calls.write(json.dumps(call).encode() + b"\n")
        self._calls.flush()
        answer = json.loads(self._answers.readline() or b'{"error": "EOFError", "message": "it ended"}')
        if "error" in answer:
            kind = getattr(builtins, str(answer["error"]), RuntimeError)
            # Not SystemExit, which would end the tests as if all had passed, nor StopIteration, which would
            # end `all(map(...))` so; a generator makes this of it, too.
            if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind is StopIteration:
                kind = RuntimeError
            raise kind(str(answer.get("message")))
        if "method" in answer:
            return functools.partial(self._method, call)
        return decode(answer["value"], lambda number: _Object(number, self))

    def _method(self, call: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        return self.ask(call, arguments, named)


class _Proxy:
    """A function or a class of the program, as its tests see it."""

    def __init__(self, name: str, channel: _Channel) -> None:
        self._name, self._channel = name, channel

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._channel.ask({"name": self._name}, arguments, named)


class _Object(Remote):
    """An object of a program's class, whose attributes and methods are asked of the program."""

    __slots__ = ("_remote_channel",)
    _remote_channel: _Channel

    def __init__(self, number: int, channel: _Channel) -> None:
        super().__init__(number)
        object.__setattr__(self, "_remote_channel", channel)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._remote_channel.said({"of": self._remote_number, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._remote_channel.said({"of": self._remote_number, "name": name, "set": encode(value)})


def _judge(module: types.ModuleType, request: dict[str, Any]) -> None:
    """The tests, with proxies under the names of the program's functions; the process ends with 0 or 1."""
    with os.fdopen(CHANNEL, "rb", closefd=False) as answers, os.fdopen(CHANNEL, "wb") as calls:
        channel = _Channel(calls, answers)
        for name, function in request["functions"].items():
            module.__dict__[name] = _Proxy(function, channel)
        sys.modules["__main__"] = module  # where `unittest.main()` looks for its tests
        results = _unittest_results() if "unittest" in request["code"] else []
        try:
            _execute(module, request["code"])
        finally:
            if not all(result.wasSuccessful() for result in results):
                raise SystemExit(1)


def _unittest_results() -> list[Any]:
    """All results of unittest from now on: a runner, and `main(exit=False)`, only print what failed."""
    import unittest

    results, made = [], unittest.TestResult.__init__

    def make(result: Any, *arguments: Any, **named: Any) -> None:
        made(result, *arguments, **named)
        results.append(result)

    unittest.TestResult.__init__ = make  # type: ignore[method-assign, assignment]
    return results


_MODES: dict[str, Callable[[types.ModuleType, dict[str, Any]], None]] = {
    "run": _run,
    "call": _call,
    "serve": _serve,
    "judge": _judge,
}
