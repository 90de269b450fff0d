"""Outputs that are held in the engine's process arrive as vLLM says them one by one, in fewer parts."""

import logging
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.engines.vllm import outputs_once
from pipelinerl.engines.vllm.outputs_once import HELD_S, hand_over_once, misfit
from tests.support.fake_core import ABORT, STOP, Front, OutputKind, Sampled, Token, request, vllm

RELEASES = pytest.mark.parametrize("release", ["0.26", "0.33"])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an engine of a release and its front end, with the plug-in in place."""

    def start(release: str, *names: str, once: bool = True) -> tuple[Any, Any]:
        modules = vllm(release)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        if once:
            hand_over_once()
            hand_over_once()
        core = modules["vllm.v1.engine.core"].EngineCoreProc()
        front = modules["vllm.v1.engine.async_llm"].AsyncLLM(core, {name: [name] for name in names})
        return core, front

    return start


def token(number: int) -> Token:
    return Token(100 + number, float(np.float32(-0.1 * number - 0.01)), number % 5 + 1)


def steps(core: Any, name: str, count: int, first: int = 0, now: float = 0.0) -> list[Token]:
    """One token a step, none of which ends the request."""
    sampled = [token(first + number) for number in range(count)]
    for one in sampled:
        core.step({name: Sampled([one])}, now)
    return sampled


@RELEASES
def test_all_tokens_arrive_with_their_log_probabilities_in_a_few_parts(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    sampled = steps(core, "a", 511)
    core.step({"a": Sampled([token(511)], ends=True)}, 0.0)
    front.take()
    assert front.ended["a"].tokens == [*sampled, token(511)] and front.ended["a"].ended == STOP
    assert front.ended["a"].labels == [None if release == "0.26" else "1"] * 512
    assert front.ended["a"].parts == front.messages == 10  # 1, 1, 2, 4, ... 256, which is the end


@RELEASES
def test_the_first_token_does_not_wait(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    steps(core, "a", 1)
    front.take()
    assert front.request_states["a"].tokens == [token(0)]
    assert front.request_states["a"].events == ["QUEUED"]


@RELEASES
@pytest.mark.parametrize(
    "asked",
    [
        {"output_kind": OutputKind.DELTA},
        {"output_kind": OutputKind.CUMULATIVE},
        {"stop": ["\n"]},
        {"num_logprobs": 3},
        {"resumable": True},
    ],
    ids=str,
)
def test_what_is_read_token_by_token_is_handed_over_so(
    release: str, asked: dict[str, Any], started: Any
) -> None:
    core, front = started(release, "a", "b")
    core.add_request(request("a", **asked))
    core.add_request(request("b"))
    for number in range(40):
        core.step({"a": Sampled([token(number)]), "b": Sampled([token(number)])}, 0.0)
    front.take()
    assert front.request_states["a"].tokens == [token(number) for number in range(40)]
    assert front.request_states["a"].parts == 40
    assert front.request_states["b"].tokens == [token(number) for number in range(32)]


@RELEASES
def test_without_log_probabilities_ids_alone_are_handed_over(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a", num_logprobs=None))
    sampled = steps(core, "a", 9)
    core.step({"a": Sampled([token(9)], ends=True)}, 0.0)
    front.take()
    assert [one.id for one in front.ended["a"].tokens] == [one.id for one in [*sampled, token(9)]]


@RELEASES
def test_held_tokens_are_handed_over_in_time(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    sampled = steps(core, "a", 70)
    front.take()
    assert len(front.request_states["a"].tokens) == 64
    sampled += steps(core, "a", 1, 70, HELD_S - 0.1)
    front.take()
    assert len(front.request_states["a"].tokens) == 64
    sampled += steps(core, "a", 1, 71, HELD_S)
    front.take()
    assert front.request_states["a"].tokens == sampled


@RELEASES
def test_an_output_that_says_more_brings_all_that_was_held(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    sampled = steps(core, "a", 70)
    core.step({"a": Sampled([token(70)], events=["PREEMPTED"])}, 0.0)
    front.take()
    assert front.request_states["a"].tokens == [*sampled, token(70)]
    assert front.request_states["a"].events == ["QUEUED", "PREEMPTED"]


@RELEASES
def test_a_message_without_outputs_is_sent_for_what_else_it_says(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    steps(core, "a", 4)
    front.take()
    before = front.messages
    core.step({"a": Sampled([token(4)])}, 0.0)
    core.step({"a": Sampled([token(5)])}, 0.0, stats="stats")
    front.take()
    assert front.messages == before + 1 and front.stats == ["stats"]
    assert len(front.request_states["a"].tokens) == 4


def test_tokens_keep_the_label_of_their_weights(started: Any) -> None:
    core, front = started("0.33", "a", "b")
    core.add_request(request("a"))
    core.add_request(request("b"))
    labels = []
    for number in range(100):
        core.label = str(1 + number // 30)
        labels.append(core.label)
        core.step({name: Sampled([token(number)], ends=number == 99) for name in "ab"}, 0.0)
    front.take()
    for name in "ab":
        assert front.ended[name].tokens == [token(number) for number in range(100)]
        assert front.ended[name].labels == labels


@RELEASES
def test_a_pause_that_aborts_hands_over_all_that_was_sampled(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    sampled = steps(core, "a", 100)
    front.take()
    assert len(front.request_states["a"].tokens) < 100
    core._send_abort_outputs(core.scheduler.finish_requests(None, "aborted"))
    front.take()
    assert front.ended["a"].tokens == sampled and front.ended["a"].ended == ABORT
    assert front.ended["a"].labels == [None if release == "0.26" else "1"] * 100


@RELEASES
@pytest.mark.parametrize("internal", [False, True])
async def test_an_abort_from_outside_hands_over_all_that_was_sampled(
    release: str, internal: bool, started: Any
) -> None:
    core, front = started(release, "a", "b")
    core.add_request(request("a"))
    core.add_request(request("b"))
    sampled = steps(core, "a", 100)
    steps(core, "b", 100)
    front.take()
    await front.abort(["a"], internal)
    assert front.ended["a"].tokens == sampled and front.ended["a"].ended == ABORT
    assert "b" in front.request_states and list(core.scheduler.requests) == ["b"]


@RELEASES
async def test_an_abort_of_a_request_that_the_engine_lacks_ends_it_at_a_deadline(
    release: str, started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, front = started(release, "a")
    monkeypatch.setattr(outputs_once, "END_S", 0.05)
    with caplog.at_level(logging.WARNING):
        await front.abort("a")
    assert front.ended["a"].ended == ABORT
    assert "1 aborted requests end without their last tokens after 0.05 s" in caplog.text


@RELEASES
async def test_nothing_is_kept_of_a_request_whose_caller_went_away(release: str, started: Any) -> None:
    core, front = started(release, "a")
    core.add_request(request("a"))
    steps(core, "a", 7)
    await front.abort("a", internal=True)
    core.add_request(request("a"))  # another of the same name
    front.request_states["a"] = type(front.ended["a"])()
    core.step({"a": Sampled([token(50)], ends=True)}, 0.0)
    front.messages = 0
    while not core.output_queue.empty():
        _, message = core.process_output_sockets()
        last = message.outputs[0].new_token_ids
    assert last == [token(50).id]


HAPPENS = st.sampled_from(["step", "step", "label", "late", "end"])
DRAWN = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), HAPPENS), max_size=120)


@RELEASES
@settings(max_examples=60, deadline=None)
@given(drawn=DRAWN)
def test_whatever_happens_arrives_what_was_sampled(release: str, drawn: list[Any]) -> None:
    """Steps of several tokens, some for a part of the requests; updates; waits; ends."""
    with pytest.MonkeyPatch.context() as patch:
        modules = vllm(release)
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        hand_over_once()
        core, names = modules["vllm.v1.engine.core"].EngineCoreProc(), "abc"
        front = Front(core, {name: [name] for name in names})
        for number, name in enumerate(names):
            core.add_request(request(name, client=number % 2))
        truth: dict[str, list[Token]] = defaultdict(list)
        labels: dict[str, list[str | None]] = defaultdict(list)
        now, made = 0.0, 0
        for whose, count, what in drawn:
            core.label = str(int(core.label) + (what == "label"))
            now += HELD_S if what == "late" else 0.01
            sampled = {}
            for number, name in enumerate(names):
                if name in core.scheduler.requests and (number != whose or what == "end"):
                    tokens = [token(made := made + 1) for _ in range(1 + (number + count) % 3)]
                    sampled[name] = Sampled(tokens, ends=what == "end" and number == whose)
                    truth[name] += tokens
                    labels[name] += [None if release == "0.26" else core.label] * len(tokens)
            core.step(sampled, now)
        core._send_abort_outputs(core.scheduler.finish_requests(None, "aborted"))
        front.take()
        assert {name: front.ended[name].tokens for name in names} == {name: truth[name] for name in names}
        assert all(front.ended[name].labels == labels[name] for name in names)


@pytest.mark.parametrize(
    ("module", "owner", "change", "why"),
    [
        ("vllm.v1.engine.core", "EngineCore", ("add_request", None), "EngineCore has no add_request"),
        (
            *("vllm.v1.engine.core", "EngineCore"),
            ("abort_requests", lambda self, names: None),
            "EngineCore.abort_requests takes self, names",
        ),
        (
            *("vllm.v1.engine.core", "EngineCoreProc"),
            ("process_output_sockets", lambda self: self.results),
            "EngineCoreProc sends what is in another queue than output_queue",
        ),
        ("vllm.v1.engine.async_llm", "AsyncLLM", ("abort", None), "AsyncLLM has no abort"),
    ],
)
def test_a_vllm_with_other_interfaces_is_left_as_it_is(
    module: str,
    owner: str,
    change: tuple[str, Any],
    why: str,
    started: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, _ = started("0.33", "a", once=False)
    monkeypatch.setattr(getattr(sys.modules[module], owner), *change)
    with caplog.at_level(logging.WARNING):
        hand_over_once()
    assert [line.getMessage() for line in caplog.records] == [
        f"outputs are handed over token by token: {why}"
    ]
    assert type(core).__dict__.get("add_request") is None and misfit() == why
