"""Defects known from upstream that no other room's tests catch; see `docs/guarantees.md` for all of them."""

import asyncio
import gc
import json
import ssl
import subprocess
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from transformers import PreTrainedModel

from domains.privacy_hopqa.agent.errors import TransportFailure
from domains.privacy_hopqa.agent.transport import JsonClient, Retries
from pipelinerl.async_llm import llm_async_generate
from pipelinerl.engines.answers import Generation
from pipelinerl.finetune.broadcast import Announce, Broadcaster
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.launcher.supervision.liveness import is_healthy
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.run_state.announcements import WeightUpdateSuccess, parse_message, trainer_stream
from pipelinerl.streams import SingleStreamSpec, files, read_stream, write_to_streams
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.refusals import Failure
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support import tiny_model
from tests.support.builders import trainer_config, write_steps
from tests.support.fake_vllm import FakeEmbedded, Refused, serving
from tests.unit.weights.test_publisher import DEADLINES


@pytest.fixture
def policy() -> PreTrainedModel:
    torch.set_num_threads(1)
    return tiny_model.causal_lm(32, hidden=32, positions=64, spread=0.1, eos=1)


class Engines(Broadcaster):
    """Take every version but those of `refused`."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        if version in self.refused:
            raise WeightUpdateError([Failure("http://engine", "update", "HTTP 500: no")])
        return super().publish(version, announce)


def test_a_failed_update_is_not_announced_and_ends_the_trainer_by_name(
    tmp_path: Path, policy: PreTrainedModel
) -> None:
    write_steps(tmp_path, 4, 6)
    with pytest.raises(WeightUpdateError, match="failed at update of http://engine"):
        Trainer(trainer_config(tmp_path, policy), Ranks(), None, Engines(12)).run()
    with read_stream(trainer_stream(tmp_path)) as stream:
        said = [parse_message(record) for record in stream.read_available()]
    assert [one.version for one in said if isinstance(one, WeightUpdateSuccess)] == [0, 6]


def every_second_record(
    folder: Path, policy: PreTrainedModel, engines: Engines, steps: int = 4
) -> list[dict[str, Any]]:
    """Of so many steps with `log_each_n_steps=2`."""
    write_steps(folder, steps, 6)
    chosen = trainer_config(folder, policy, log_each_n_steps=2, max_train_steps=steps)
    with MetricsWriter(folder, "finetune") as writer:
        Trainer(chosen, Ranks(), writer, engines).run()
    return [json.loads(line) for line in (folder / "finetune/metrics.jsonl").read_text().splitlines()]


def test_logging_every_second_step_gives_every_second_record_and_a_full_summary(
    tmp_path: Path, policy: PreTrainedModel
) -> None:
    rows = every_second_record(tmp_path, policy, Engines())
    assert [row["stats/completed_steps"] for row in rows] == [2, 4]
    summary = json.loads((tmp_path / "finetune/rl_summary.json").read_text())
    assert summary["completed_steps"] == 4 and "rl/ess" in summary
    with read_stream(trainer_stream(tmp_path)) as stream:
        times = [record["timestamp"] for record in stream.read_available()]
    assert times == sorted(times) and times[-1] > times[0]


def test_the_last_step_has_a_record_whatever_its_number(tmp_path: Path, policy: PreTrainedModel) -> None:
    """Or the report would count fewer steps and samples than were trained."""
    rows = every_second_record(tmp_path, policy, Engines(), steps=3)
    assert [row["stats/completed_steps"] for row in rows] == [2, 3]


class ComparedOnce(Engines):
    """Compares engine and trainer after the update before the first step."""

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        found = super().publish(version, announce)
        return found | ({} if version else {"weights/parity_limit": 0.03})


def test_the_limit_of_a_comparison_between_two_records_is_in_the_next_one(
    tmp_path: Path, policy: PreTrainedModel
) -> None:
    rows = every_second_record(tmp_path, policy, ComparedOnce())
    assert [row["mismatch/limit"] for row in rows] == [0.03, 0.03]


class SlowStart(FakeEmbedded):
    """Not healthy for its first answers, as while it loads its model."""

    loading = 5

    def answer(self, path: str, query: str, body: Any) -> Any:
        if path == "/health" and self.loading:
            self.loading -= 1
            raise Refused(503, "loading")
        return super().answer(path, query, body)


def test_an_engine_that_starts_slowly_is_waited_for_until_the_configured_deadline(tmp_path: Path) -> None:
    engine = SlowStart()
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path), deadlines=DEADLINES)
        publisher.wait_ready(60)
        assert engine.loading == 0
        engine.loading = 10**9
        with pytest.raises(WeightUpdateError, match=r"wait for engines of .*0\.3 s passed"):
            publisher.wait_ready(0.3)


def test_a_reader_without_news_sleeps_instead_of_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SingleStreamSpec(tmp_path, "actor")
    looks = [0]
    real = files.list_segments

    def counted(*arguments: Any) -> Any:
        looks[0] += 1
        return real(*arguments)

    with write_to_streams(spec) as writer, read_stream(spec) as reader:
        writer.write([{"number": 0}])
        assert len(reader.read_available()) == 1
        monkeypatch.setattr(files, "list_segments", counted)
        for _ in range(3):
            reader.wait(0.2)
            assert reader.next_record() is None
        assert looks[0] <= 3
        looks[0] = 0
        waker = threading.Timer(0.5, lambda: writer.write([{"number": 1}]))
        waker.start()
        assert next(reader.read(deadline_s=60)) == [{"number": 1}]
        waker.join()
        assert looks[0] <= 5, "two before it slept, one or two when it was woken"


class Instant:
    """A fleet whose answers are long, so that keeping them would be seen."""

    async def generate(self, token_ids: Any, *_: Any, **__: Any) -> Generation:
        ids = np.full(64, 5, np.int32)
        return Generation(
            prompt_ids=np.asarray(token_ids, np.int32),
            token_ids=ids,
            logprobs=np.zeros(64, np.float32),
            versions=[(0, 0, 64)],
            exact_versions=True,
            finish_reason="stop",
        )


async def test_thousands_of_calls_leave_nothing_in_memory() -> None:
    tokenizer = tiny_model.build_tokenizer()
    llm = TrainableLLM(tokenizer=tokenizer, parameters={"max_tokens": 64}, collect_logprobs=True)
    bound = llm.bind(Instant(), "http://e", None, None)  # type: ignore[arg-type]
    prompt = Prompt.from_user_message("x" * 50)
    session: Any = None

    async def calls(count: int) -> None:
        for _ in range(count):
            await llm_async_generate(bound, prompt, session)

    await calls(100)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await calls(1000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One call's ids and log-probabilities alone are 0.7 kB; 1,000 of them would be 0.7 MB.
    assert after - before < 150_000, f"{after - before} bytes were kept by 1,000 calls"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate that nobody has signed."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    return key, cert


async def test_a_server_with_a_self_signed_certificate_gets_no_token(certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate[1], certificate[0])
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app, scheme="https", host="localhost")
    await server.start_server(ssl=context)
    async with server, aiohttp.ClientSession() as session:
        token = {"Authorization": "Bearer secret"}
        client = JsonClient(str(server.make_url("")), session, 5, Retries(()), token)
        with pytest.raises(TransportFailure, match="certificate verify failed"):
            await client.post("/browsecomp/search", {"query": "x"})
        assert not await asyncio.to_thread(is_healthy, str(server.make_url("/health")))
    assert seen == []
