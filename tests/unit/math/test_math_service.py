"""The verification server: what it answers, what it refuses, and how rollouts use it."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from omegaconf import OmegaConf

from domains.math import MathEnvironment, generate_math_rollout, verify_answer_rpc
from domains.math.service import make_app
from domains.verdict_server import MAX_BODY_BYTES, ROUTE
from pipelinerl.config.compose import compose
from pipelinerl.rollouts import RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.tiny_model import build_tokenizer, save_model

QUICK = {"workers": 1, "deadline_s": 100.0}


@pytest.fixture
async def server() -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(make_app(MathEnvironment(**QUICK).pool()))) as client:  # type: ignore[arg-type]
        yield client


BAD_BODIES = [
    (b"", "the body: Invalid JSON"),
    (b"{", "the body: Invalid JSON"),
    (b"[" * 50_000, "the body: Invalid JSON: recursion limit"),
    (b"\xff", "the body: Invalid JSON"),
    (b"[1]", "the body: Input should be an object, found '[1]'"),
    (b"null", "the body: Input should be an object, found 'None'"),
    ({}, "prediction: Field required"),
    ({"prediction": "a"}, "gold: Field required"),
    ({"prediction": 5, "gold": "1"}, "prediction: Input should be a valid string, found '5'"),
    ({"prediction": "a", "gold": ["1"]}, "gold: Input should be a valid string, found"),
    (
        {"prediction": "a", "gold": "1", "strict": "yes"},
        "strict: Input should be a valid boolean",
    ),
    ({"prediction": "a", "gold": "1", "max_prediction_length": 0}, "should be greater than 0, found '0'"),
    ({"prediction": "a", "gold": "1", "max_prediction_length": True}, "a valid integer, found 'True'"),
    ({"prediction": "a", "gold": "1", "golden": 1}, "golden: Extra inputs are not permitted, found '1'"),
    ({"prediction": r"\boxed{1}", "gold": "1" * 30_000}, "the gold answer has 30000 characters"),
]


async def test_the_server_judges_and_refuses_in_one_line(server: TestClient[Any, Any]) -> None:
    assert (await server.get("/health")).status == 200
    body = {"prediction": r"\boxed{0.5}", "gold": "1/2"}
    assert await (await server.post(ROUTE, json=body)).json() == {"answer_status": "correct"}
    for bad, message in BAD_BODIES:
        data = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
        answer = await server.post(ROUTE, data=data)
        said = (await answer.json())["error"]["message"]
        assert answer.status == 400 and message in said and "\n" not in said
    large = await server.post(ROUTE, data=b" " * (MAX_BODY_BYTES + 1))
    assert large.status == 413 and str(MAX_BODY_BYTES) in (await large.json())["error"]["message"]
    assert (await (await server.get("/health")).json())["counts"]["correct"] == 1


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (400, '{"error": {"message": "gold: missing"}}', ValueError, "HTTP 400: .*gold: missing"),
        (200, "[]", ValueError, r"'\[\]' is no answer status"),
        (200, '{"answer_status": "right"}', ValueError, "is no answer status"),
        (200, "", ValueError, "'' is no answer status"),
        (503, "busy", aiohttp.ClientResponseError, "503"),
    ],
)
async def test_a_client_tells_a_refusal_from_a_server_in_trouble(
    status: int, body: str, error: type[Exception], message: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_post(ROUTE, answer)
    async with TestServer(app) as lying, aiohttp.ClientSession() as session:
        with pytest.raises(error, match=message):
            await verify_answer_rpc(session, lying.host, lying.port or 0, "a", "1")


def config(rewards: str = "pure_success", **changes: Any) -> Any:
    overrides = ["+domain=math", f"rewards={rewards}", "environment.workers=1", "environment.deadline_s=100"]
    tree = compose([*overrides, "hardware=cpu"]).tree
    return OmegaConf.merge(tree, changes)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Any]:
    """One rollout whose engine writes the given text."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["\\boxed{", "}"])
    tokenizer.save_pretrained(str(save_model(tmp_path)))

    async def rollout(cfg: Any, said: str, gold: str, finish: str = "stop") -> RolloutResult:
        ids = tokenizer.encode(said, add_special_tokens=False)
        with FakeEngine(lambda prompt: ids) as engine:
            if finish == "length":
                engine.misbehave.append(engine.reply(ids, "length"))
            problem = {"task": "what is six times seven", "answer": gold, "dataset": "d"}
            fields = {"parameters": {"max_tokens": 20}, "context_size": 4096}
            return await rolled_out(generate_math_rollout, cfg, problem, engine, tmp_path, **fields)

    return rollout


async def test_a_rollout_is_judged_with_and_without_a_server(
    ask: Callable[..., Any], server: TestClient[Any, Any]
) -> None:
    cfg = config("success_and_format")
    alone = await ask(cfg, r"it is \boxed{42}", "42")
    assert alone.metrics is not None and alone.metrics.success and alone.training_texts[0].reward == 1.0
    job = {
        "kind": "environment",
        "idx": 0,
        "hostname": server.host,
        "port": server.port,
        "environment_key": "math",
    }
    served = OmegaConf.merge(cfg, {"jobs": [job]})
    cases = [
        (r"it is \boxed{42}", "stop", 1.0, "correct"),
        (r"it is \boxed{42}", "length", 0.5, "correct"),
        (r"it is \boxed{41}", "stop", 0.0, "wrong"),
        ("forty two", "stop", -1.0, "no_answer"),
        (r"it is \boxed{}", "stop", -1.0, "unparsable"),
    ]
    for said, finish, reward, status in cases:
        result = await ask(served, said, "84/2", finish)
        (text,) = result.training_texts
        assert text.reward == reward and text.prompt_text.startswith("<s>")
        assert (result.metrics.success, result.metrics.no_answer) == (
            status == "correct",
            status == "no_answer",
        )
        assert result.metrics.no_error == (status != "unparsable") and result.dataset_name == "d"


async def test_length_costs_what_the_configuration_says(ask: Callable[..., Any]) -> None:
    cfg = config(rewards="pure_success")
    cfg.rewards.buffer_tokens, cfg.actor.discount_factor = 10, 0.5
    result = await ask(cfg, r"\boxed{42}aaaaaaaaaaa", "42")
    (text,) = result.training_texts
    assert text.output_tokens == 15
    assert result.metrics.penalty == -0.5 and text.reward == pytest.approx(0.5**15 - 0.5)
