"""Engines that start at the same time compile a model once; each engine here is a process or a thread."""

import fcntl
import logging
import multiprocessing
import os
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipelinerl.engines.vllm.compile_once import LOOK, SAVE, compile_once
from tests.support.processes import until


class Model:
    """What vLLM's decorator makes of a model: finding and keeping what was compiled, by a file."""

    def __init__(self, path: Path, backend: str = "inductor", mode: str = "VLLM_COMPILE") -> None:
        compilation = SimpleNamespace(backend=backend, mode=SimpleNamespace(name=mode))
        self.vllm_config = SimpleNamespace(compilation_config=compilation)
        self.path = path

    def save_aot_compiled_function(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(str(os.getpid()))


def decorators(wait_s: float = 60.0) -> Any:
    module: Any = ModuleType("vllm.compilation.decorators")

    def look(model: Model, path: str) -> str | None:
        return Path(path).read_text() if Path(path).exists() else None

    setattr(module, LOOK, look)
    compile_once(module, wait_s)
    return module


def start(module: Any, model: Model, compiled: Any) -> str:
    """What an engine does: look, else compile and keep."""
    found = getattr(module, LOOK)(model, str(model.path))
    if found is None:
        compiled()
        getattr(model, SAVE)()
        return "compiled"
    return "found"


def _engine(path: Path, ready: Any, ends: Any) -> None:
    ready.wait()
    ends.put(start(decorators(), Model(path), lambda: time.sleep(0.3)))


def test_of_engines_that_start_together_one_compiles(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, ends = context.Barrier(3), context.Queue()
    path = tmp_path / "rank_0_0" / "model"
    engines = [context.Process(target=_engine, args=(path, ready, ends)) for _ in range(3)]
    for one in engines:
        one.start()
    assert sorted(ends.get(timeout=60) for _ in engines) == ["compiled", "found", "found"]
    for one in engines:
        one.join(60)


def test_one_that_finds_the_model_waits_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_text("made by an earlier run")
    with (tmp_path / "model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert start(decorators(), Model(path), pytest.fail) == "found"


def test_one_waits_no_longer_than_its_deadline_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model"
    with (tmp_path / "model.lock").open("w") as lock, caplog.at_level(logging.INFO):
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert start(decorators(wait_s=0.0), Model(path), lambda: None) == "compiled"
    assert f"another engine did not compile {path} within 0 s" in caplog.messages


def test_an_engine_that_dies_while_it_compiles_holds_up_nobody(tmp_path: Path) -> None:
    path, context = tmp_path / "model", multiprocessing.get_context("fork")
    died = context.Process(target=start, args=(decorators(), Model(path), lambda: os._exit(1)))
    died.start()
    died.join(60)
    assert died.exitcode == 1 and not path.exists()
    assert start(decorators(wait_s=0.0), Model(path), lambda: None) == "compiled"


def test_a_failed_save_lets_go_of_the_lock_and_a_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = Model(tmp_path / "model")
    model.path.mkdir()  # cannot be written
    with pytest.raises(OSError):
        start(decorators_that_find_nothing(), model, lambda: None)
    assert SAVE not in vars(model)
    model.path.rmdir()
    assert start(decorators(wait_s=0.0), model, lambda: None) == "compiled"


def decorators_that_find_nothing(wait_s: float = 0.0) -> Any:
    module: Any = ModuleType("vllm.compilation.decorators")
    setattr(module, LOOK, lambda model, path: None)
    compile_once(module, wait_s)
    return module


@pytest.mark.parametrize("how", [{"backend": "eager"}, {"mode": "DYNAMO_TRACE_ONCE"}])
def test_where_nothing_that_can_be_loaded_is_kept_there_is_no_lock(
    tmp_path: Path, how: dict[str, str]
) -> None:
    model = Model(tmp_path / "model", **how)
    assert getattr(decorators(), LOOK)(model, str(model.path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_another_engine_made_and_nobody_can_load_is_waited_for_once(tmp_path: Path) -> None:
    module, path = decorators_that_find_nothing(wait_s=60.0), tmp_path / "model"
    together, ends = threading.Barrier(2), list[str]()

    def engine() -> None:
        ends.append(start(module, Model(path), lambda: together.wait(60)))

    with (tmp_path / "model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engines = [threading.Thread(target=engine) for _ in range(2)]
        for one in engines:
            one.start()
        until(lambda: len(waiting_for(tmp_path / "model.lock")) == 2, "two engines that wait")
        path.write_text("what no other engine can load")
    for one in engines:
        one.join(60)
    assert ends == ["compiled", "compiled"], "side by side: neither held up the other"


def waiting_for(lock: Path) -> list[Path]:
    """Descriptors of this process for a lock, without the one of the test."""
    own = [link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.resolve() == lock]
    return own[1:]


def test_ranks_of_one_engine_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """They keep what they compile in folders of their own, and may need each other in between."""
    module, both = decorators(wait_s=0.0), threading.Barrier(2)
    models = [Model(tmp_path / f"rank_{rank}_0" / "model") for rank in (0, 1)]
    ends: list[str] = []
    ranks = [
        threading.Thread(target=lambda m=m: ends.append(start(module, m, lambda: both.wait(60))))  # type: ignore[misc]
        for m in models
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)
    assert ends == ["compiled", "compiled"]


def test_a_vllm_without_that_function_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    compile_once(ModuleType("vllm.compilation.decorators"))
    assert f"no vllm.compilation.decorators.{LOOK}" in caplog.text


def test_the_plug_in_may_be_called_twice(tmp_path: Path) -> None:
    module = decorators()
    once = getattr(module, LOOK)
    compile_once(module)
    assert getattr(module, LOOK) is once
