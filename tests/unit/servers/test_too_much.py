"""What costs a server more than its answer is worth: refused early, or off the event loop."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yarl
from aiohttp.test_utils import TestServer

from domains import verdict_server
from domains.privacy_hopqa.scorer.app import ScoringService, build_app
from domains.privacy_hopqa.scorer.classifiers import RulesClassifier
from domains.privacy_hopqa.scorer.protocol import MAX_FACT_CHARS, MAX_QUERY_CHARS, parse_request
from domains.privacy_hopqa.scorer.rules import Fact, score
from pipelinerl.base import tokenizing, web_pages
from pipelinerl.base.tokenizing import encode_within, load_tokenizer
from pipelinerl.engines.openai.protocol import BadRequest
from pipelinerl.engines.serving.served import Served
from pipelinerl.extras import recorder
from pipelinerl.extras.recorder import replies
from pipelinerl.llm import TrainableLLM
from retrieval_server.app import RetrievalService
from retrieval_server.app import build_app as retrieval_app
from retrieval_server.limits import RequestError
from retrieval_server.malformed import log_one_line
from retrieval_server.store import Store
from tests.support.builders import make_task
from tests.support.engine_harness import running_engine
from tests.support.text_model import build_text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_text_model(tmp_path_factory.mktemp("model"))


async def test_a_chat_that_cannot_fit_is_refused_and_health_is_answered_meanwhile(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": [{"role": "user", "content": "a b c " * 20_000}]}
    began, answered = threading.Event(), threading.Event()
    whole = Served.encoded

    def encoded(served: Served, text: str, add_special_tokens: bool) -> list[int]:
        began.set()
        assert answered.wait(100), "the loop was held while a long text was read"
        return whole(served, text, add_special_tokens)

    async with running_engine(model, max_model_len=256) as engine:
        monkeypatch.setattr(Served, "encoded", encoded)
        for bound in (engine.server._served._longest_token, None):  # and where a tokeniser has no bound
            assert not began.is_set()
            engine.server._served.__dict__["_longest_token"] = bound
            asked = asyncio.create_task(engine.post("/v1/chat/completions", body, expect=400))
            await asyncio.to_thread(began.wait, 100)
            assert await engine.client.health()
            answered.set()
            message = (await asked)["error"]["message"]
            assert ("characters have more tokens" in message) == (bound is not None)
            assert "shorten the prompt" in message
            began.clear()


async def test_rollouts_go_on_while_a_recorded_program_s_long_text_is_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, went_on = threading.Event(), threading.Event()
    context, characters = 256, 120_000

    def read(*given: Any) -> list[int]:
        began.set()
        assert went_on.wait(100), "the loop was held while a long text was read"
        return encode_within(*given)

    monkeypatch.setattr(replies, "encode_within", read)
    llm = TrainableLLM(model_name=str(model), base_url="http://127.0.0.1:9", context_size=context)
    text = "a b c " * (characters // 6)
    bodies = {
        "chat/completions": {"messages": [{"role": "user", "content": text}]},
        "completions": {"prompt": text},
    }
    async with recorder.session(llm) as session, aiohttp.ClientSession() as http:
        for route, body in bodies.items():
            began.clear(), went_on.clear()
            asked = asyncio.create_task(http.post(f"{session.base_url}/{route}", json=body))
            assert await asyncio.to_thread(began.wait, 100)
            went_on.set()
            async with await asked as answer:
                message = (await answer.json())["error"]["message"]
                assert (
                    answer.status == 400 and "characters have more tokens than the context of 256" in message
                )
    await recorder.close()


async def test_a_recorded_dialogue_is_continued_beside_the_loop_and_within_the_context(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's context is larger than the rollout's: the bound is the rollout's own."""
    at, encoded = list[threading.Thread](), list[int]()
    render, encode = tokenizing.render_chat, tokenizing.encode_within

    def rendered(*given: Any, **named: Any) -> str:
        at.append(threading.current_thread())
        return render(*given, **named)

    def counted(tokenizer: Any, text: str, *rest: Any) -> list[int]:
        ids = encode(tokenizer, text, *rest)
        encoded.append(len(text))
        return ids

    for module in (tokenizing, replies):
        monkeypatch.setattr(module, "encode_within", counted)
    monkeypatch.setattr(tokenizing, "render_chat", rendered)
    say = {"role": "user", "content": "Say."}
    async with running_engine(model) as engine, aiohttp.ClientSession() as http:
        llm = TrainableLLM(model_name=str(model), base_url=engine.url, context_size=64)
        llm.parameters["max_tokens"] = 4
        async with recorder.session(llm) as session:

            async def ask(messages: list[Any]) -> tuple[int, Any]:
                url = f"{session.base_url}/chat/completions"
                async with http.post(url, json={"messages": messages}) as answer:
                    return answer.status, await answer.json()

            status, first = await ask([say])
            assert status == 200
            reply = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
            encoded.clear()
            status, refused = await ask([say, reply, {"role": "user", "content": "a b c " * 20_000}])
            assert status == 400 and "characters have more tokens than the context" in str(refused)
            assert encoded == [], "a text that cannot fit was tokenised"
            assert (await ask([say, reply, say]))[0] == 200
            before = [*session.calls[0].prompt_token_ids, *session.calls[0].output_token_ids]
            assert session.calls[1].prompt_token_ids[: len(before)].tolist() == before
    assert at and threading.main_thread() not in at
    await recorder.close()


@pytest.mark.parametrize("name", ["recorder", "engine"])
async def test_half_a_request_is_answered_after_a_deadline(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(web_pages, "BODY_DEADLINE_S", 0.3)
    async with (
        running_engine(model) as engine,
        recorder.session(TrainableLLM(model_name=str(model), base_url=engine.url)) as session,
    ):
        url = yarl.URL(engine.url if name == "engine" else session.base_url)
        path = "/v1/completions" if name == "engine" else f"{url.path}/completions"
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n"
        writer.write(head.encode() + b'{"prompt": ')
        async with asyncio.timeout(60):
            status = await reader.readline()
            headers = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        writer.close()
        assert b" 408 " in status and b"did not arrive within 0.3 s" in body
    await recorder.close()


def test_others_work_while_a_text_is_encoded(model: Path) -> None:
    backend = load_tokenizer(str(model)).backend_tokenizer
    served = Served.__new__(Served)
    served._tokenizer = load_tokenizer(str(model))
    served.__dict__["_settings"] = SimpleNamespace(max_model_len=10**9)
    served.__dict__["_longest_token"] = None
    text, counted, ended = "a b c " * 50_000, [0], threading.Event()

    def count() -> None:
        while not ended.wait(0.001):
            counted[0] += 1

    held = []
    for encode in (backend.encode, lambda one: served.encoded(one, False)):
        ended.clear()
        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        encode(text)
        held.append(counted[0] - before)
        ended.set()
        thread.join()
    assert held[1] > 10 * held[0] + 10, "encode keeps the interpreter; encoded does not"


def test_a_bound_is_never_below_what_fits(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def served() -> Served:
        async with running_engine(model, max_model_len=16) as engine:
            return engine.server._served

    one = asyncio.run(served())
    assert one._longest_token is not None
    vocabulary = one.tokenizer.backend_tokenizer.get_vocab()
    longest = max((token for token in vocabulary if token.isascii() and token.isalpha()), key=len)
    assert len(one.encoded(longest * 16, False)) <= 16 * len(longest)
    with pytest.raises(BadRequest, match="have more tokens than the context of 16"):
        one.encoded("a" * (16 * one._longest_token + 1), False)


FIELDS = (
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 1e-40),
    ("temperature", 1e-300),
    ("temperature", 1e-40),
    ("top_p", 1e-300),
    ("min_p", 1e-300),
    ("presence_penalty", 1e-300),
    ("repetition_penalty", 1e300),
    ("temperature", 1e300),
    ("frequency_penalty", -1e300),
)


async def test_no_number_of_a_request_is_a_failure_of_the_engine(model: Path) -> None:
    async with running_engine(model, max_model_len=64) as engine:
        for name, value in FIELDS:
            sampling = {"max_tokens": 4, "detokenize": False, "logprobs": 0, name: value}
            url = f"{engine.url}/inference/v1/generate"
            async with engine.session.post(
                url, json={"token_ids": [1, 2, 1], "sampling_params": sampling}
            ) as answer:
                assert answer.status in (200, 400), (name, value, await answer.text())
        for name in ("repetition_penalty", "temperature"):
            body = {"token_ids": [1], "sampling_params": {"detokenize": False, name: 1e-300}}
            refused = await engine.post("/inference/v1/generate", body, expect=400)
            assert name in refused["error"]["message"] and "0.01, 100]" in refused["error"]["message"]


def test_rules_take_no_longer_for_pairs_of_long_texts() -> None:
    """A log and facts within every bound: comparing each word with each would be a thousand million steps."""
    words = " ".join(f"w{n}" for n in range(3_000))
    facts = [Fact("what", " ".join(f"v{n}x{k}" for n in range(600))) for k in range(100)]
    assert score("Acme", [words] * 6, facts) == 0.0
    assert score("Acme", [words] * 6, [*facts, Fact("what", "w1 w2")]) == 0.3


def test_a_query_that_nobody_sends_is_refused_before_it_is_scored() -> None:
    fact = {"question": "what", "canonical_answer": "12"}
    example = {"id": "a", "company": "Acme", "web_queries": ["x"], "local_hop_facts": [fact]}

    def refused(**changes: object) -> str:
        with pytest.raises(RequestError) as error:
            parse_request(json.dumps({"examples": [example | changes]}).encode())
        return str(error.value)

    long = "x" * (MAX_QUERY_CHARS + 1)
    assert "web_queries[1] has 16385 characters" in refused(web_queries=["x", long])
    for name in fact:
        changed = fact | {name: "y" * (MAX_FACT_CHARS + 1)}
        assert f"local_hop_facts[0].{name} has 4097 characters" in refused(local_hop_facts=[changed])
    assert "company has 4097" in refused(company="z" * 4097)
    kept = example | {"web_queries": ["x" * MAX_QUERY_CHARS]}
    assert len(parse_request(json.dumps({"examples": [kept]}).encode())) == 1


async def test_a_judge_that_takes_its_time_holds_up_no_other_request() -> None:
    """The judges of `ifeval` and `fn_calling` are plain functions, and take seconds for megabytes of text."""
    release, under_way = threading.Event(), threading.Event()

    def judge(prediction: str, reward_context: dict[str, Any]) -> dict[str, Any]:
        if prediction == "long":
            under_way.set()
            assert release.wait(100)
        return {"answer_status": prediction, "of": reward_context["task"]}

    async with TestServer(verdict_server.make_app(judge)) as server, aiohttp.ClientSession() as session:

        async def ask(prediction: str, **context: str) -> tuple[int, Any]:
            body = {"prediction": prediction, "reward_context": context}
            async with session.post(server.make_url("/verify_answer"), json=body) as answer:
                return answer.status, await answer.json()

        async with asyncio.timeout(50):
            long = asyncio.create_task(ask("long", task="one"))
            await asyncio.to_thread(under_way.wait, 50)
            async with session.get(server.make_url("/health")) as health:
                assert health.status == 200
            assert await ask("short", task="two") == (200, {"answer_status": "short", "of": "two"})
            assert await ask("short") == (400, {"error": {"message": "the body lacks 'task'"}})
            assert not long.done()
            release.set()
            assert await long == (200, {"answer_status": "long", "of": "one"})


async def test_half_a_request_of_a_judge_is_answered_after_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_pages, "BODY_DEADLINE_S", 0.3)
    app = verdict_server.make_app(lambda: {"answer_status": "x"})
    async with TestServer(app) as server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"POST /verify_answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("name", ["retrieval", "scorer", "verdict"])
async def test_a_client_that_hangs_up_in_its_body_leaves_nothing_in_the_log(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "retrieval":
        (tmp_path / "web.jsonl").write_text(json.dumps({"docid": "1", "url": "u", "text": "cold"}) + "\n")
        make_task(tmp_path / "tasks/one")
        app = retrieval_app(RetrievalService(Store.load(tmp_path / "tasks", tmp_path / "web.jsonl")))
        path = "/browsecomp/search"
    elif name == "verdict":
        app, path = verdict_server.make_app(lambda query: {"answer_status": query}), "/verify_answer"
    else:
        app, path = build_app(ScoringService(RulesClassifier())), "/score"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
    async with TestServer(app) as server:
        for cut in (b"", b'{"query": "half'):
            for reset in (False, True):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(head.encode() + cut)
                await writer.drain()
                await asyncio.sleep(0.2)
                if reset:
                    writer.transport.abort()
                writer.close()
                await asyncio.sleep(0.2)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


FLOOD = """
import asyncio, logging, resource, sys
from aiohttp import web
from retrieval_server.malformed import log_one_line
logging.basicConfig(level=logging.INFO)
async def main():
    log_one_line()
    runner = web.AppRunner(web.Application()); await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024); await site.start()
    print(runner.addresses[0][1], flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_want_of_file_handles_is_one_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", FLOOD], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    ends = time.monotonic() + 100
    while time.monotonic() < ends and not (tmp_path / "log").stat().st_size:
        time.sleep(0.1)
    time.sleep(3)  # asyncio tries again each second
    server.kill()
    server.wait()
    for one in held:
        one.close()
    (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if line]
    assert "out of file handles (Too many open files): connections wait; raise ulimit -n" in line


def test_other_errors_of_asyncio_are_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    log_one_line()
    try:
        raise OSError(13, "Permission denied")
    except OSError as error:
        logging.getLogger("asyncio").error("an accident", exc_info=error)
    assert "an accident" in caplog.text
