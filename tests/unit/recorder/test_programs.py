"""Programs in processes of their own: what they print, how they fail, and that none is left."""

import ast
import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from omegaconf import OmegaConf

from pipelinerl.base.waits import WaitExpired
from pipelinerl.engines.client import EngineUnavailable
from pipelinerl.extras import recorder
from pipelinerl.extras.recorder import ProgramFailed
from pipelinerl.llm import TrainableLLM
from tests.support.engine_harness import until
from tests.support.fake_engine import FakeEngine, said
from tests.support.processes import alive
from tests.support.tiny_model import save_model

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/recorded"
ASKS = """
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/completions"
request = urllib.request.Request(url, b'{"prompt": "hi"}', {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=200))["choices"][0]["text"], input())
"""
STARTS_ANOTHER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "MARK"])
LEAVES
open("MARK", "w").close()
time.sleep(600)
"""
LEAVES = """
sleeps = "[sys.executable, '-c', 'import time; time.sleep(600)', 'MARK']"
orphan = f"import subprocess, sys; subprocess.Popen({sleeps})"
quiet = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.run([sys.executable, "-c", orphan], **quiet)
"""
STARTS_ANOTHER = STARTS_ANOTHER.replace("LEAVES", LEAVES)

WORKER = """
import asyncio, sys
from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
async def play():
    llm = TrainableLLM(model_name={model!r}, base_url="http://127.0.0.1:9", context_size=512, max_retries=0)
    async with recorder.session(llm) as session:
        await session.run([sys.executable, "-c", {program!r}], deadline_s=600)
asyncio.run(play())
"""


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    with FakeEngine(said("yes")) as running:
        yield running


@pytest.fixture
def fake_llm(fake: FakeEngine, tmp_path: Path) -> TrainableLLM:
    return TrainableLLM(
        model_name=str(save_model(tmp_path)), base_url=fake.url, context_size=512, max_retries=0
    )


def running(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if mark in " ".join(words) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


async def test_a_program_of_the_standard_library_is_a_rollout(fake_llm: TrainableLLM) -> None:
    async with recorder.session(fake_llm) as session:
        printed = await session.run([sys.executable, "-c", ASKS], deadline_s=200, stdin="sir\n")
        (text,) = session.texts()
    assert printed == "yes sir\n" and text.output_text == "yes<e>"


async def test_a_program_that_fails_is_named_with_its_last_line(fake_llm: TrainableLLM) -> None:
    async with recorder.session(fake_llm) as session:
        with pytest.raises(ProgramFailed, match=r"ended with status 1: ValueError: no luck$"):
            await session.run([sys.executable, "-c", "raise ValueError('no luck')"], deadline_s=200)
        with pytest.raises(ProgramFailed, match="status 127: /no/such cannot be started"):
            await session.run(["/no/such"], deadline_s=200)


async def test_a_program_that_an_engine_failed_fails_by_the_engine(
    fake: FakeEngine, fake_llm: TrainableLLM
) -> None:
    fake.always = 500
    async with recorder.session(fake_llm) as session:
        with pytest.raises(EngineUnavailable, match="told to say 500"):
            await session.run([sys.executable, "-c", ASKS], deadline_s=200)
        assert session.calls == []


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_program_and_what_it_started_end_at_the_deadline_and_with_the_rollout(
    fake_llm: TrainableLLM, tmp_path: Path, given_up: bool
) -> None:
    mark = str(tmp_path / f"mark-{os.getpid()}")
    program = [sys.executable, "-c", STARTS_ANOTHER.replace("MARK", mark)]

    async def play(deadline_s: float) -> None:
        async with recorder.session(fake_llm) as session:
            await session.run(program, deadline_s=deadline_s)

    task = asyncio.create_task(play(120 if given_up else 1.0))
    if given_up:
        await until(Path(mark).exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(ProgramFailed, match="waited 1 s for the program"):
            await task
    await until(lambda: not running(mark))


async def test_what_a_program_left_running_in_another_session_ends_with_the_program(
    fake_llm: TrainableLLM, tmp_path: Path
) -> None:
    mark = str(tmp_path / f"mark-{os.getpid()}")
    program = ("import subprocess, sys" + LEAVES + "print('done')").replace("MARK", mark)
    async with recorder.session(fake_llm) as session:
        assert await session.run([sys.executable, "-c", program], deadline_s=200) == "done\n"
        assert not running(mark)


@pytest.mark.parametrize("session", ["", ", start_new_session=True"])
async def test_what_holds_the_output_of_a_program_that_has_ended_ends_too(
    fake_llm: TrainableLLM, tmp_path: Path, session: str
) -> None:
    mark = str(tmp_path / f"mark-{os.getpid()}")
    sleeps = f"[sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}]"
    program = f"import subprocess, sys; subprocess.Popen({sleeps}{session}); print('done')"
    async with recorder.session(fake_llm) as recorded:
        assert await recorded.run([sys.executable, "-c", program], deadline_s=200) == "done\n"
        assert not running(mark)


async def test_what_a_program_left_running_may_end_its_output(fake_llm: TrainableLLM) -> None:
    later = "import time; time.sleep(0.2); print('later')"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {later!r}])"
    async with recorder.session(fake_llm) as recorded:
        assert await recorded.run([sys.executable, "-c", program], deadline_s=200) == "later\n"


async def test_what_a_program_started_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    """By kill -9, so that the worker itself does nothing any more."""
    mark = str(tmp_path / f"mark-{os.getpid()}")
    program, model = STARTS_ANOTHER.replace("MARK", mark), str(save_model(tmp_path))
    worker = subprocess.Popen([sys.executable, "-c", WORKER.format(program=program, model=model)])  # noqa: ASYNC220
    await until(Path(mark).exists)
    left = psutil.Process(worker.pid).children(recursive=True)
    assert len(left) == 3, "the program, what it started, and the guard of both"
    assert len(running(mark)) == 4, "worker, program, what that started, and what went to another session"
    worker.kill()
    worker.wait()
    await until(lambda: not any(alive(one.pid) for one in left) and not running(mark))


SAYS_MORE_THAN_TIME_ALLOWS = """
import json, os, sys, time, urllib.request
def ask(text):
    body = json.dumps({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}]})
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    request = urllib.request.Request(url, body.encode(), {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
    said = json.load(urllib.request.urlopen(request, timeout=200))["content"][0]["text"]
    print(text, said, flush=True)
for text in ("one", "two"):
    ask(text)
open("MARK", "w").close()
ask("three")
"""


def deadline_is_over_when(condition: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> float:
    """A deadline for `run` that passes when the condition holds, and not by the clock."""
    module = importlib.import_module("pipelinerl.extras.recorder.session")  # beside a function of that name
    real, marked_s = module.wait_for, 77.0

    async def until_then(wait: Any, name: str, deadline_s: float) -> Any:
        if deadline_s != marked_s:
            return await real(wait, name, deadline_s)
        running = asyncio.ensure_future(wait)
        await until(condition)
        running.cancel()
        raise WaitExpired(name, deadline_s)

    monkeypatch.setattr(module, "wait_for", until_then)
    return marked_s


@pytest.mark.parametrize("at_deadline", ["fail", "keep"])
async def test_what_was_said_before_the_deadline_is_kept_where_it_is_asked_for(
    fake: FakeEngine, fake_llm: TrainableLLM, tmp_path: Path, at_deadline: Any, monkeypatch: Any
) -> None:
    mark = tmp_path / "mark"
    program = [sys.executable, "-c", SAYS_MORE_THAN_TIME_ALLOWS.replace("MARK", str(mark))]

    async def never(_: Any) -> Any:
        await asyncio.Event().wait()

    fake.misbehave.extend([fake.reply(fake.answer([])), fake.reply(fake.answer([])), never])
    async with recorder.session(fake_llm) as session:
        over = deadline_is_over_when(lambda: mark.exists() and len(session._running) == 1, monkeypatch)
        if at_deadline == "fail":
            with pytest.raises(ProgramFailed, match="waited 77 s for the program"):
                await session.run(program, deadline_s=over)
            assert not session.expired
            return
        printed = await session.run(program, deadline_s=over, at_deadline="keep")
        texts = session.texts()
        assert printed == "one yes\ntwo yes\n" and session.expired
        assert [text.output_text for text in texts] == ["yes<e>"] * 2
        assert [text.metadata["expired"] for text in texts] == [True, True]
        async with aiohttp.ClientSession() as http:
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            async with http.post(session.base_url + "/chat/completions", json=body) as answer:
                assert answer.status == 404, "later calls are refused"


@pytest.mark.parametrize("at_deadline", ["fail", "keep"])
async def test_a_game_of_the_example_that_had_no_time_is_empty_or_failed(
    fake_llm: TrainableLLM, at_deadline: str
) -> None:
    spec = importlib.util.spec_from_file_location("recorded_guessing", EXAMPLE / "recorded_guessing.py")
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    cfg = OmegaConf.create({"recorded": {"deadline_s": 1e-3, "at_deadline": at_deadline}})
    if at_deadline == "fail":
        with pytest.raises(ProgramFailed, match=r"waited 0\.001 s"):
            await example.play(cfg, fake_llm, {"answer": 7}, None)
        return
    result = await example.play(cfg, fake_llm, {"answer": 7}, None)
    assert result.training_texts == [] and result.metrics.no_answer and not result.metrics.success


async def test_an_engine_that_fails_at_the_deadline_is_no_rollout(
    fake: FakeEngine, fake_llm: TrainableLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.always = 500
    goes_on = f"import time\ntry:\n    exec({ASKS!r})\nexcept Exception:\n    time.sleep(600)"
    async with recorder.session(fake_llm) as session:
        over = deadline_is_over_when(lambda: session.failure is not None, monkeypatch)
        with pytest.raises(EngineUnavailable, match="told to say 500"):
            await session.run([sys.executable, "-c", goes_on], deadline_s=over, at_deadline="keep")


async def test_a_program_that_ends_well_without_an_answer_is_no_rollout(
    fake: FakeEngine, fake_llm: TrainableLLM
) -> None:
    fake.always = 500
    gives_up = f"try:\n    exec({ASKS!r})\nexcept Exception:\n    print('no idea')"
    async with recorder.session(fake_llm) as session:
        with pytest.raises(EngineUnavailable, match="told to say 500"):
            await session.run([sys.executable, "-c", gives_up], deadline_s=200)


async def test_a_program_gets_no_keys_but_those_that_are_named(
    fake_llm: TrainableLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = (
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "SOME_NAME",
        "PYTHON_API_TOKEN",
        "SSL_CERT_PASSWORD",
        "XDG_SECRET_HOME",
    )
    for name in keys:
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("OPENAI_API_KEY", "of the user")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    shown = "import os; print(dict(os.environ))"
    async with recorder.session(fake_llm) as session:
        printed = await session.run([sys.executable, "-c", shown], deadline_s=200, env={"HF_TOKEN": "mine"})
    found = ast.literal_eval(printed)
    assert "of the user" not in found.values() and found["HF_TOKEN"] == "mine"
    assert found["PATH"] == os.environ["PATH"] and found["LC_ALL"] == "C.UTF-8"
