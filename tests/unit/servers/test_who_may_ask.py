"""No server of the project answers a web page, and control routes of engines take the token of their run."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from domains.math import MathEnvironment
from domains.math.service import make_app as math_app
from domains.privacy_hopqa.scorer.app import ScoringService
from domains.privacy_hopqa.scorer.app import build_app as scorer_app
from domains.privacy_hopqa.scorer.classifiers import RulesClassifier
from domains.verdict_server import make_app as verdict_app
from pipelinerl.base import access
from pipelinerl.base.access import CONTROL_TOKEN_VARIABLE, GuardedApp, is_control
from pipelinerl.base.http import CallFailed, call
from pipelinerl.config import ConfigError
from pipelinerl.engines.cpu.__main__ import main as engine_command
from pipelinerl.extras.recorder.site import Site
from pipelinerl.finetune.collect import check_announced
from pipelinerl.launcher.services import control_token_file, write_control_token
from retrieval_server.app import RetrievalService
from retrieval_server.app import build_app as retrieval_app
from retrieval_server.store import Store
from tests.support.builders import make_task
from tests.support.engine_harness import build_model, running_engine

TOKEN = "a-token-of-sixteen-or-more"
OWN: tuple[dict[str, str], ...] = (
    {},
    {"Host": "localhost:{port}"},
    {"Host": "127.0.0.1"},
    {"Host": "[::1]:{port}"},
)
OWN += ({"Host": socket.gethostname()}, {"Origin": "http://127.0.0.1:{port}", "Host": "127.0.0.1:{port}"})
OWN += ({"Sec-Fetch-Site": "none"},)
FOREIGN = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},
    {"Host": "evil.example:{port}"},
    {"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "localhost.evil.example"},
    {"Host": f"{socket.gethostname()}.evil.example"},
    {"Host": "localhost:1@evil.example"},
    {"Host": "[::1].evil.example"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
)


async def starlette_like(scope: Any, receive: Any, send: Any) -> None:
    """Answers every request with 200."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def asgi_app() -> web.Application:
    """vLLM's place: the middleware around an application that refuses nothing."""
    guarded = GuardedApp(starlette_like)

    async def handle(request: web.Request) -> web.Response:
        sent: list[Any] = []
        headers = [(k.lower().encode(), v.encode()) for k, v in request.headers.items()]
        scope = {"type": "http", "method": request.method, "path": request.path, "headers": headers}

        async def send(message: Any) -> None:
            sent.append(message)

        await guarded(scope, None, send)  # type: ignore[arg-type]
        found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return web.Response(status=sent[0]["status"], body=sent[1]["body"], headers=found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


@asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncIterator[int]:
    """The port of a running server."""
    if name == "engine":
        async with running_engine(build_model(folder / "model", tied=True), max_model_len=64) as engine:
            yield int(engine.url.rpartition(":")[2])
        return
    if name == "recorder":
        site = await Site().start()
        yield site._runner.addresses[0][1]
        await site.stop()
        return
    if name == "retrieval":
        (folder / "web.jsonl").write_text(json.dumps({"docid": "1", "url": "u", "text": "cold chain"}) + "\n")
        make_task(folder / "tasks/one")
        app = retrieval_app(RetrievalService(Store.load(folder / "tasks", folder / "web.jsonl")))
    elif name == "scorer":
        app = scorer_app(ScoringService(RulesClassifier()))
    elif name == "math":
        app = math_app(MathEnvironment(workers=1, deadline_s=100.0).pool())
    elif name == "verdict":
        app = verdict_app(lambda: {"answer_status": "correct"})
    else:
        app = asgi_app()
    async with TestServer(app, host="127.0.0.1") as server:
        assert server.port is not None
        yield server.port


async def status(port: int, path: str, headers: dict[str, str], method: str = "GET", body: Any = None) -> int:
    filled = {name: value.format(port=port) for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}", headers=filled, json=body) as answer,
    ):
        if answer.status in (401, 403):
            assert len((await answer.json())["error"]["message"].splitlines()) == 1
        return answer.status


@pytest.mark.parametrize("name", ["engine", "vllm", "recorder", "retrieval", "scorer", "math", "verdict"])
async def test_a_web_page_is_refused_by(name: str, tmp_path: Path) -> None:
    path, own = ("/r/none/v1/models", 404) if name == "recorder" else ("/health", 200)
    async with serving(name, tmp_path) as port:
        for headers in OWN:
            assert await status(port, path, headers) == own, headers
        for headers in FOREIGN:
            assert await status(port, path, headers) == 403, headers
            assert await status(port, path, headers, "POST") == 403, headers


CONTROL: tuple[tuple[str, Any], ...] = (
    ("/pause?mode=keep&clear_cache=false", None),
    ("/resume", None),
    ("/abort_requests", {"request_ids": []}),
    ("/reset_prefix_cache", None),
    ("/init_weight_transfer_engine", {"init_info": {}}),
    ("/start_weight_update", None),
    ("/update_weights", {"update_info": {"path": "x", "version": "1"}}),
    ("/finish_weight_update", {"weight_version": "99999999"}),
    ("/update_weight_version", {"weight_version": "99999999"}),
    ("/weight_checker", None),
    ("/shutdown_weight_transfer_engine", None),
)
OF_VLLM: tuple[str, ...] = (
    "/sleep?level=0&mode=keep",
    "/wake_up",
    "/collective_rpc",
    "/reset_mm_cache",
    "/scale_elastic_ep",
)
OF_VLLM += ("/start_profile", "/start_draft_weight_update", "/v1/load_lora_adapter", "/anything_new")


@pytest.mark.parametrize("name", ["engine", "vllm"])
async def test_a_control_route_takes_the_token(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTROL_TOKEN_VARIABLE, str(token_file(tmp_path)))
    routes = [*CONTROL, *((path, None) for path in (OF_VLLM if name == "vllm" else ()))]
    async with serving(name, tmp_path) as port:
        for path, body in routes:
            for shown in ({}, {"Authorization": "Bearer another-token-of-16"}, {"Authorization": TOKEN}):
                assert await status(port, path, shown, "POST", body) == 401, path
        if name == "engine":
            assert (
                await asyncio.to_thread(call, "GET", f"http://127.0.0.1:{port}", "/weight_info", 9.0)
            ) == (b'{"weight_version":"default","state":"serving"}')
        generate = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}
        for path in ("/inference/v1/generate", "/v1/completions"):
            assert await status(port, path, {}, "POST", generate) != 401, "what only computes stays open"
        for path, body in routes:
            assert await status(port, path, {"Authorization": f"Bearer {TOKEN}"}, "POST", body) != 401, path
        await asyncio.to_thread(call, "POST", f"http://127.0.0.1:{port}", "/resume", 9.0)  # the trainer's way


async def test_a_caller_without_the_variable_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTROL_TOKEN_VARIABLE, str(token_file(tmp_path)))
    async with serving("engine", tmp_path) as port:
        monkeypatch.delenv(CONTROL_TOKEN_VARIABLE)
        with pytest.raises(CallFailed, match=r"401: .*needs the token of the engine's run"):
            await asyncio.to_thread(call, "POST", f"http://127.0.0.1:{port}", "/pause", 9.0)


def test_every_control_route_of_an_embedded_engine_is_known_as_one(tmp_path: Path) -> None:
    async def posts() -> set[str]:
        async with running_engine(build_model(tmp_path, tied=True), max_model_len=64) as engine:
            resources = engine.server.app.router.routes()
            return {str(one.resource.canonical) for one in resources if one.method == "POST" and one.resource}

    found = asyncio.run(posts())
    assert {path for path in found if not is_control("POST", path)} == {
        "/inference/v1/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
    }
    assert {path.partition("?")[0] for path, _ in CONTROL} < found


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    access._token_of.cache_clear()
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_the_launcher_makes_a_token_once_and_takes_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_control_token(tmp_path)
    file = control_token_file(tmp_path)
    made = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600 and len(made) >= 32
    write_control_token(tmp_path)
    assert file.read_text() == made, "engines that are run by hand go on with it"
    file.chmod(0o644)
    access._token_of.cache_clear()
    with pytest.raises(ConfigError, match="other users can read it; run chmod 600"):
        write_control_token(tmp_path)
    for text, mode, problem in (("short", 0o600, "holds no token"), (TOKEN, 0o640, "chmod 600")):
        monkeypatch.setenv(CONTROL_TOKEN_VARIABLE, str(token_file(tmp_path, text, mode)))
        with pytest.raises(ConfigError, match=problem):
            write_control_token(tmp_path)
    monkeypatch.setenv(CONTROL_TOKEN_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="cannot be read"):
        write_control_token(tmp_path)
    assert not (tmp_path / "absent").exists()


def test_an_engine_without_a_token_stays_on_the_loopback_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(CONTROL_TOKEN_VARIABLE, raising=False)
    assert engine_command(["--model", str(tmp_path), "--host", "0.0.0.0"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("engine: ")]
    assert "--host 0.0.0.0: other machines would reach the control routes" in said


def test_a_version_that_was_never_announced_is_refused() -> None:
    versions = np.array([[512, 512, 99_999_999, 1024, -1]])
    batch: Any = SimpleNamespace(token_versions=versions)

    def labels(*positions: int) -> Any:
        return SimpleNamespace(positions=np.array(positions, dtype=np.int64))

    check_announced(batch, labels(0, 1, 3, 4), 1024)
    check_announced(batch, labels(), 0)
    with pytest.raises(ValueError, match=r"weight version 99999999, which was never announced .*is 1024"):
        check_announced(batch, labels(0, 2), 1024)
    with pytest.raises(ValueError, match="weight version 1024"):
        check_announced(batch, labels(3), 512)
