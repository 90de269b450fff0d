"""What all tests share: imports, compositions and rehearsals cost once; two workers begin with other work."""

import gc
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None, object, object]:
    """Workers of xdist are forks of its controller, which imports once what takes 5 s, or 16 afresh."""
    if not session.config.pluginmanager.has_plugin("dsession"):
        return (yield)
    from tests.support.forked import ForkedWorker, import_tests

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else a look for cards spoils them for forks
        import_tests(session.config)
        patch.setattr(subprocess, "Popen", ForkedWorker)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What was imported stays: to look at it again in every full collection took a tenth of the time."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """A worker that ends looks for no garbage: over all that its tests have left, that took it seconds."""
    if hasattr(config, "workerinput"):
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of two workers the first begins with whole runs, of many processes each, the second with unit tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "tests/pipeline" not in item.path.as_posix())


@pytest.fixture(scope="session", autouse=True)
def _compositions_are_remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """omegaconf's own functions, for the test that compares."""
    from domains.privacy_hopqa import domain as privacy_hopqa
    from pipelinerl.launcher import start
    from pipelinerl.launcher.checks import dotted, imports
    from tests.support.compositions import quick
    from tests.support.rehearsals import (
        defined_once,
        generated_once,
        imports_of_bundled_domains,
        looks_at_bundled_domains,
    )

    with pytest.MonkeyPatch.context() as patch:
        slow = quick(patch.setattr)
        patch.setattr(start, "look", looks_at_bundled_domains(start.look))
        patch.setattr(dotted, "_definition", defined_once(dotted._definition))
        patch.setattr(imports, "check", imports_of_bundled_domains(imports.check))
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.getbasetemp() / "sb3"))  # else a folder of /tmp each
        worlds = generated_once(privacy_hopqa.generate, tmp_path_factory.getbasetemp() / "worlds")
        patch.setattr(privacy_hopqa, "generate", worlds)
        patch.setattr(start, "START_DEADLINE_S", 300.0)  # a start that did not see its problems goes on
        yield slow


@pytest.fixture(autouse=True)
def _streams_are_files_again() -> Iterator[None]:
    """A test that chose redis, itself or through a command, chose it for its process."""
    yield
    backends = sys.modules.get("pipelinerl.streams.backends")
    if backends is not None and backends._current.__class__.__name__ != "FilesBackend":
        backends.set_streams_backend("files")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python processes are forks of this one, also those that the code under test starts."""
    from tests.support.forked import Forked

    monkeypatch.setattr(subprocess, "Popen", Forked)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not drawn, which is most of their time; their files hold nothing."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.transforms import Bbox

    def save(_: Figure, path: Path, **__: Any) -> None:
        path.touch()

    monkeypatch.setattr(Figure, "savefig", save)
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
    monkeypatch.setattr(Figure, "get_tightbbox", lambda _: Bbox.unit())
