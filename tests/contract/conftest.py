"""One fixture, `engine`, for every engine there is.

A CPU build of vLLM takes part when `VLLM_PYTHON=/path/to/python` names the interpreter of its environment;
`VLLM_API_SERVERS=2` gives it two HTTP processes. With `VLLM_RECORD=1` what it is asked and answers is written
to `tests/fixtures`, to be replayed without it.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import aiohttp
import pytest
import torch

from tests.support.contract import models, tape
from tests.support.contract.engines import (
    BACKENDS,
    COLUMNS,
    EMBEDDED,
    RECORDED,
    TAPES,
    Engine,
    Facts,
    file_transport,
    missing,
    nccl_transport,
)
from tests.support.contract.live_vllm import Installation, serving
from tests.support.engine_harness import served

MARKS = {
    "cpu": [pytest.mark.slow],
    "cpu-ahead": [pytest.mark.slow],
    "cpu-once": [pytest.mark.slow],
    "gpu-file": [pytest.mark.gpu],
    "gpu-nccl": [pytest.mark.gpu],
    "gpu-nccl-ahead": [pytest.mark.gpu],
    "gpu-file-once": [pytest.mark.gpu],
}
PASSED = pytest.StashKey[bool]()
torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes on the test whether it passed, for what is to be recorded."""
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


class Live:
    """Engines that take long to start, one for each kind of model; one that a test spoiled is replaced."""

    def __init__(self, folders: Callable[[bool], Path], scratch: Callable[[], Path]) -> None:
        self.recorded: dict[str, list[tape.Exchange]] = {}
        self._folders, self._scratch = folders, scratch
        self._running: dict[tuple[str, bool], tuple[ExitStack, str]] = {}

    @staticmethod
    def installation(column: str) -> Installation:
        kind, *transport = column.removesuffix("-once").split("-")
        once = column.endswith("-once")
        if kind == "cpu":
            servers = int(os.environ.get("VLLM_API_SERVERS", "1"))
            backend = "_".join(["file", *transport])
            return Installation(os.environ["VLLM_PYTHON"], backend, api_servers=servers, once=once)
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return Installation(sys.executable, "_".join(transport), (card,), once=once)

    def url(self, column: str, tied: bool) -> str:
        if (column, tied) not in self._running:
            stack = ExitStack()
            served = serving(self.installation(column), self._folders(tied), self._scratch())
            self._running[column, tied] = stack, stack.enter_context(served)
        return self._running[column, tied][1]

    def end(self, column: str, tied: bool) -> None:
        self._running.pop((column, tied))[0].close()

    def close(self) -> None:
        for key in list(self._running):
            self.end(*key)
        if self.recorded:
            version = self.installation("cpu").version
            path = TAPES / f"vllm_{'_'.join(version.split('.')[:2])}.jsonl.gz"
            tests = (tape.load(path)[1] if path.exists() else {}) | self.recorded
            how = "VLLM_RECORD=1 pytest tests/contract, with VLLM_PYTHON naming a CPU build"
            tape.save(path, {"vllm": version, "how": how}, tests)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    saved: dict[bool, Path] = {}

    def folder(tied: bool) -> Path:
        if tied not in saved:
            saved[tied] = models.save(tmp_path_factory.mktemp("model"), tied)
        return saved[tied]

    return folder


@pytest.fixture(scope="session")
def live(model_folder: Callable[[bool], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    pool = Live(model_folder, lambda: tmp_path_factory.mktemp("vllm") / "engine")
    yield pool
    pool.close()


@pytest.fixture
def kind() -> str:
    """The model; a test that needs both parametrises it."""
    return "tied"


@pytest.fixture(params=[pytest.param(one, marks=MARKS.get(one, [])) for one in COLUMNS])
async def engine(
    request: pytest.FixtureRequest,
    kind: str,
    model_folder: Callable[[bool], Path],
    live: Live,
    tmp_path: Path,
) -> AsyncIterator[Engine]:
    column, tied = request.param, kind == "tied"
    if reason := missing(column):
        pytest.skip(reason)
    parts = {name: value for name, value in request.node.callspec.params.items() if name != "engine"}
    test = f"{request.path.name}::{request.node.originalname}{sorted(parts.items()) or ''}"
    facts, transport = EMBEDDED, file_transport(tmp_path, column.endswith("ahead"))
    recorder: tape.Recorder | None = None
    async with AsyncExitStack() as stack:
        if column in BACKENDS:
            url = (await stack.enter_async_context(served(BACKENDS[column](model_folder(tied))))).url
        elif column in RECORDED:
            header, tests = tape.load(RECORDED[column])
            facts = Facts.of_vllm(header["vllm"])
            url = await stack.enter_async_context(tape.listening(tape.Player(tests.get(test, []))))
        else:
            facts = Facts.of_vllm(live.installation(column).version)
            url = live.url(column, tied)
            if column.startswith("gpu-nccl"):
                transport = nccl_transport(column.endswith("ahead"))
            if column == "cpu" and os.environ.get("VLLM_RECORD"):
                recorder = tape.Recorder(url, test)
                url = await stack.enter_async_context(tape.listening(recorder))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        made = Engine(url, facts, tied, model_folder(tied), session, transport)
        yield made
    if made.spoiled and column not in (*BACKENDS, *RECORDED):
        live.end(column, tied)
    if recorder is not None and request.node.stash[PASSED]:
        live.recorded[test] = recorder.exchanges
