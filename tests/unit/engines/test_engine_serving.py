"""Queueing, limits, refusals, aborts and counters of the engine."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from pipelinerl.engines.client import EngineClient, EngineUnavailable, SamplingParams
from pipelinerl.engines.cpu.__main__ import main
from pipelinerl.engines.cpu.scheduler import Scheduler
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.serving.backend import default_model_len
from pipelinerl.engines.serving.sequence import Request, Sequence
from pipelinerl.engines.serving.thread import EngineEnded
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import StagedUpdate
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.engine_harness import reference, running_engine, until
from tests.support.processes import bound
from tests.support.tiny_model import hub_snapshot

pytestmark = pytest.mark.usefixtures("forked")


def test_the_default_length_is_one_that_the_model_has(tmp_path: Path) -> None:
    for config, length in (
        ('{"max_position_embeddings": 256}', 256),
        ('{"n_positions": 256}', 256),
        ("{}", 1024),
        ("[]", 1024),
        ("torn", 1024),
    ):
        (tmp_path / "config.json").write_text(config)
        assert default_model_len(tmp_path) == length


def sequence(prompt_length: int) -> Sequence:
    request = Request("r", list(range(prompt_length)), SamplingFields(), max_tokens=10, eos_ids=frozenset())
    return request.sequences[0]


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    scheduler = Scheduler(max_num_seqs=2, max_prefill_tokens=10)
    first, second, third = sequence(12), sequence(5), sequence(3)
    scheduler.waiting.extend((first, second, third))
    plan = scheduler.plan()
    assert [(one.sequence, one.start, one.end) for one in plan.prefills] == [(first, 0, 10)]
    first.computed = 10
    plan = scheduler.plan()
    assert [(one.sequence, one.start, one.end) for one in plan.prefills] == [(first, 10, 12), (second, 0, 5)]
    assert third.slot < 0, "both slots are taken"


def test_a_finished_slot_is_refilled_before_the_next_step() -> None:
    scheduler = Scheduler(max_num_seqs=1, max_prefill_tokens=10)
    first, second = sequence(2), sequence(2)
    scheduler.waiting.extend((first, second))
    scheduler.plan()
    scheduler.remove(first)
    assert [one.sequence for one in scheduler.plan().prefills] == [second]


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    scheduler = Scheduler(max_num_seqs=2, max_prefill_tokens=4)
    short, long = sequence(1), sequence(100)
    scheduler.waiting.extend((short, long))
    plan = scheduler.plan()
    assert [one.sequence for one in plan.decodes] == [short]
    assert [(one.start, one.end) for one in plan.prefills] == [(0, 4)]


async def test_a_short_request_sent_late_ends_before_a_long_one(tied_model: Path) -> None:
    async with running_engine(tied_model) as engine:
        order: list[str] = []

        async def run(name: str, tokens: int) -> None:
            await engine.client.generate([1, 2, 3], SamplingParams(max_tokens=tokens, ignore_eos=True))
            order.append(name)

        long = asyncio.ensure_future(run("long", 500))
        await until(lambda: engine.server.engine.metrics.generation_tokens >= 10)
        await run("short", 5)
        await long
    assert order == ["short", "long"]


async def test_a_full_queue_answers_503_and_does_not_block(tied_model: Path) -> None:
    async with running_engine(tied_model, max_num_seqs=2, max_waiting=3) as engine:
        await engine.post("/pause?mode=keep&clear_cache=false")
        sampling = SamplingParams(max_tokens=2, ignore_eos=True)
        calls = [asyncio.ensure_future(engine.client.generate([1], sampling)) for _ in range(5)]
        await until(lambda: engine.server.engine.metrics.waiting >= 5)
        with pytest.raises(EngineUnavailable, match="503") as refused:
            await engine.client.generate([1], sampling)
        assert refused.value.reason == "busy"
        assert await engine.client.health()
        await engine.post("/resume")
        assert all(len(one.token_ids) == 2 for one in await asyncio.gather(*calls))
        assert len((await engine.client.generate([1], sampling)).token_ids) == 2


async def test_abort_by_id_and_counters(tied_model: Path) -> None:
    async with running_engine(tied_model) as engine:
        body = {
            "token_ids": [1],
            "request_id": "a",
            "sampling_params": {"max_tokens": 500, "ignore_eos": True},
        }
        call = asyncio.ensure_future(engine.post("/inference/v1/generate", body))
        await until(lambda: engine.server.engine.metrics.generation_tokens >= 3)
        refused = await engine.post("/inference/v1/generate", body, expect=400)
        assert refused["error"]["message"].startswith("request_id 'a'")
        metrics = await engine.client.metrics()
        assert metrics["vllm:num_requests_running"] == 1
        assert 0 < metrics["vllm:kv_cache_usage_perc"] < 1
        assert (await engine.post("/abort_requests", {"request_ids": ["a", "unknown"]}))["aborted"] == 1
        assert (await call)["choices"][0]["finish_reason"] == "abort"
        assert metrics["pipelinerl:requests_received_total"] == 2
        assert (await engine.post("/reset_prefix_cache?reset_running_requests=false"))["success"] is True


async def test_a_model_that_gives_no_numbers_is_a_server_error(tied_model: Path) -> None:
    async with running_engine(tied_model) as engine:
        engine.backend.model.module.model.norm.weight.data.fill_(float("nan"))
        with pytest.raises(EngineUnavailable, match="log-probability nan"):
            await engine.client.generate([1], SamplingParams(max_tokens=1))


async def test_a_dead_engine_thread_fails_its_requests_and_ends_the_server(
    tied_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_engine(tied_model) as engine:

        def fail(*_: object) -> None:
            raise RuntimeError("no more memory")

        monkeypatch.setattr(engine.backend.model, "logits", fail)
        with pytest.raises(EngineUnavailable, match="engine failed: RuntimeError: no more memory"):
            await engine.client.generate([1], SamplingParams(max_tokens=1))
        await asyncio.wait_for(engine.server.failed.wait(), 100)
        assert not await engine.client.health()
        with pytest.raises(EngineUnavailable, match="503"):
            await engine.client.generate([1], SamplingParams(max_tokens=1))


async def test_commands_after_the_end_are_refused_at_once_and_given_up_ones_harm_nobody(
    tied_model: Path,
) -> None:
    async with running_engine(tied_model) as one:
        engine = one.server.engine
        held = threading.Event()
        blocking = engine.between_steps(lambda: held.wait(100) and None)
        given_up = engine.abort([])
        assert given_up.cancel()
        held.set()
        assert blocking.result(100) is None
        answer = await one.client.generate([1], SamplingParams(max_tokens=3, ignore_eos=True))
        assert len(answer.token_ids) == 3
        engine.stop()
        with pytest.raises(EngineEnded, match="the engine has ended"):
            engine.resume().result(100)
        await one.post("/resume", expect=503)


def test_the_command_says_in_one_line_why_it_cannot_serve(
    tied_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)

    def said(status: int, folder: Path, port: int = 0) -> str:
        assert main(["--model", str(folder), "--port", str(port)]) == status
        (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("engine:")]
        return line

    nothing, unreadable = tmp_path / "nothing", tmp_path / "model"
    missing = f"engine: --model {nothing} has no config.json; give a folder in Hugging Face format"
    assert said(2, nothing) == missing
    shutil.copytree(tied_model, unreadable)
    (unreadable / "tokenizer.json").write_text("{}")
    assert "tokenizer.json cannot be read" in said(2, unreadable)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = said(1, tied_model, port)
    assert f"cannot listen on 127.0.0.1:{port}" in line and "in use" in line


def test_a_hub_s_name_serves_the_model_in_the_local_cache(
    tied_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    snapshot = hub_snapshot(monkeypatch, tmp_path, "somebody/tied")
    shutil.copytree(tied_model, snapshot, dirs_exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # the model is read before the port is
        port = taken.getsockname()[1]
        assert main(["--model", "somebody/tied", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert main(["--model", "somebody/other", "--port", "0"]) == 1
    assert "engine: cannot load somebody/other: " in capsys.readouterr().err


def engine_process(model: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipelinerl.engines.cpu", "--model", str(model), "--port", "0"]
    return subprocess.Popen(bound(*command, "--max-model-len", "4096"), stdout=subprocess.PIPE, text=True)


class StoppingTransport(FileTransport):
    """Stops the engine's process while the weights are sent."""

    def __init__(self, root: Path, pid: int) -> None:
        super().__init__(root)
        self._pid = pid

    def send(self, staged: StagedUpdate, deadline_s: float) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        super().send(staged, deadline_s)


async def test_a_stopped_process_is_named_at_the_deadline_and_one_that_goes_on_ends_at_sigterm(
    tied_model: Path, tmp_path: Path
) -> None:
    process = engine_process(tied_model)
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert "serving model on http://127.0.0.1:" in line
        url = next(word for word in line.split() if word.startswith("http"))
        sampling = SamplingParams(max_tokens=4000, ignore_eos=True)
        async with aiohttp.ClientSession() as session:
            client = EngineClient(url, session)
            began = time.monotonic()
            await client.generate([1], SamplingParams(max_tokens=1))
            deadline_s = 2 + 10 * (time.monotonic() - began)  # the first token comes before it
            call = asyncio.ensure_future(client.generate([1], sampling, deadline_s=deadline_s))
            while (await client.metrics())["vllm:generation_tokens_total"] < 2:
                assert not call.done()
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(EngineUnavailable, match="timeout") as stopped:
                await call
            assert stopped.value.engine == url
            process.send_signal(signal.SIGCONT)
        deadlines = PublishDeadlines(pause_s=200, start_s=200, update_s=1, finish_s=1, resume_s=1)
        publisher = Publisher([url], StoppingTransport(tmp_path, process.pid), deadlines=deadlines)
        await asyncio.to_thread(publisher.wait_ready, 200.0)
        with pytest.raises(WeightUpdateError, match=rf"of {url}: .*no answer within 1\.?\d* s"):
            await asyncio.to_thread(publisher.publish, 1, list(reference(tied_model).named_parameters()))
        assert publisher.version is None
        publisher.close()
        await until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 200) == 0
    finally:
        process.kill()
        process.wait()
