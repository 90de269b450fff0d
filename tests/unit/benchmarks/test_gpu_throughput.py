"""What is made of waves, of the CPU time behind them, and of processes that do not answer."""

import json
import os
import signal
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks._processes import Child
from benchmarks.gpu import cards, engine, usage
from benchmarks.gpu.cards import SEVERAL_RANKS, check_cards
from benchmarks.gpu.clients import merged, wave
from benchmarks.gpu.engine import parsed
from benchmarks.gpu.served import model_config
from benchmarks.gpu.throughput import limit_figures, throughput_figures
from benchmarks.gpu.updates import ratio_spread
from benchmarks.gpu.usage import roles


def test_a_wave_lasts_from_the_first_request_to_the_last_answer_of_all_processes() -> None:
    one = {"tokens": 10, "begun": 5.0, "ended": 8.0, "cpu_s": 1.0, "errors": []}
    other = {"tokens": 5, "begun": 4.0, "ended": 7.0, "cpu_s": 0.5, "errors": ["lost"]}
    assert merged([one, other]) == {"tokens": 15, "seconds": 4.0, "cpu_s": [1.0, 0.5], "errors": ["lost"]}


@pytest.mark.parametrize(
    ("command", "server", "expected"),
    [
        ("python -m vllm.entrypoints.cli.main serve x", "VLLM::APIServer_3", ["parent", "APIServer_3"]),
        ("python -m vllm.entrypoints.cli.main serve x", "python -c spawn_main", ["APIServer", "others"]),
        ("python -c import json", "python -c spawn_main", ["LLM", "others"]),
    ],
)
def test_processes_of_an_engine_are_named(command: str, server: str, expected: list[str]) -> None:
    found = roles({7: command, 8: server, 9: "VLLM::EngineCore"}, 7)
    assert found == dict(zip((7, 8, 9), [*expected, "EngineCore"], strict=True))


def test_cpu_time_is_counted_by_role_and_the_busiest_process_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {("APIServer_0", 1): 1.0, ("EngineCore", 3): 5.0}
    after = {("APIServer_0", 1): 5.0, ("APIServer_1", 2): 2.0, ("EngineCore", 3): 10.0}
    readings, clock = iter((before, after)), iter((0.0, 5.0))
    monkeypatch.setattr(usage, "cpu_seconds", lambda group: next(readings))
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert usage.Meter(1).read(tokens=1_000_000) == {
        "APIServer": {"processes": 2, "us_per_token": 6.0, "busiest": 0.8},
        "EngineCore": {"processes": 1, "us_per_token": 5.0, "busiest": 1.0},
    }


def test_this_process_has_used_a_processor() -> None:
    assert max(usage.cpu_seconds(os.getpid()).values()) > 0


class Told:
    """A client that notes its lines and says what it is asked for."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def expect(self, mark: str, deadline_s: float) -> str:
        return json.dumps({"tokens": 1, "begun": 0.0, "ended": 1.0, "cpu_s": 0.5, "errors": []})


def test_a_wave_is_shared_out_and_every_client_has_prompts_of_its_own() -> None:
    told: list[Any] = [Told(), Told(), Told()]
    wave(told, 5, 4)
    asked = [json.loads(one.lines[-2]) for one in told]
    assert [one["requests"] for one in asked] == [2, 2, 1] and {one["output"] for one in asked} == {4}
    assert len({one["seed"] for one in asked}) == 3


def row(requests: int, rate: float) -> dict[str, Any]:
    usage = {"APIServer": {"processes": 4, "us_per_token": 40.0, "busiest": 0.7}}
    return {"requests": requests, "tok_s": rate, "usage": usage, "errors": [], "failed": 0}


def test_waves_stand_beside_those_of_the_offline_engine() -> None:
    served = {"waves": [row(256, 19.0), row(512, 21.0)], "steady": row(256, 18.0)}
    found = {one.name: one for one in throughput_figures(served, [row(256, 20.0)])}
    assert found["client / offline, 256"].met is True
    assert "client / offline, 512" not in found  # the offline engine was not asked for it
    assert found["client, 256 always in flight"].goal is None
    assert found["  client, 256 requests: APIServer x 4, CPU per token"].value == 40.0
    assert not any("offline" in one.name for one in throughput_figures(served, []))


def test_rates_stand_beside_the_limit_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.7B: 3.44 GB of weights, 114,688 bytes of keys and values a token, 767.5 tokens of context."""
    monkeypatch.setattr(cards, "copy_bandwidth", lambda device: 4.0e12)
    config = model_config("1.7B")
    kwargs = cards.engine_kwargs(on_cards("0", "1"), config)
    limits = cards.card_limits(config, kwargs, [256, 512], "H200")
    step_s = (3.4409e9 + 512 * 767.5 * 114_688) / 4.0e12
    assert limits["tok_s"][512] == pytest.approx(512 / step_s, rel=1e-3)
    served = {"waves": [row(512, 256 / step_s)], "steady": row(256, 18.0)}
    found = {one.name: one for one in limit_figures(limits, {"client": served, "outputs once": None})}
    assert found["client, 512 at once: of the card's limit"].value == pytest.approx(0.5, rel=1e-3)
    assert len(found) == 3 and not list(limit_figures(None, {"client": served}))


def test_keys_and_values_in_eight_bits_halve_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "copy_bandwidth", lambda device: 4.0e12)
    config = model_config("1.7B")
    kwargs = cards.engine_kwargs(on_cards("0", "1", kv="fp8"), config)
    assert kwargs["kv-cache-dtype"] == "fp8"
    step_s = (3.4409e9 + 512 * 767.5 * 57_344) / 4.0e12
    limits = cards.card_limits(config, kwargs, [512], "H200")
    assert limits["tok_s"][512] == pytest.approx(512 / step_s, rel=1e-3)


def test_the_spread_of_ratios_is_that_of_known_ones() -> None:
    """Ratios of 1/2 and 3/2 in equal number: mean 1, mean square 5/4."""
    found = ratio_spread(np.log(np.repeat([0.5, 1.5], 50)))
    assert found["effective sample size"][0] == pytest.approx(1 / 1.25)
    assert found["mean |log ratio|"][0] == pytest.approx((np.log(2) + np.log(1.5)) / 2)
    assert (found["ratio, 1 % are below"][0], found["ratio, 99 % are below"][0]) == pytest.approx((0.5, 1.5))


H200 = 139 * 2**30


def on_cards(*gpus: str, **changes: object) -> Namespace:
    """Options of the engine's rows."""
    given = {
        "cpu": False,
        "kv": "auto",
        "gpus": list(gpus),
        "rows": ["throughput", "update"],
        "in_flight": [512, 256],
    }
    return Namespace(**{**given, "backend": "nccl_ahead", **changes})


def test_engines_get_what_their_requests_need() -> None:
    """512 requests of 1,040 tokens."""
    config = model_config("1.7B")
    size = cards.engine_kwargs(on_cards("0", "1"), config)["kv-cache-memory-bytes"]
    assert 512 * 1040 <= size / (28 * 8 * 128 * 2 * 2) < 1.05 * 512 * 1040
    assert "kv-cache-memory-bytes" not in cards.engine_kwargs(on_cards("", "", cpu=True), config)


def test_what_does_not_fit_on_a_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and offline engine have a card each, or one that holds both."""
    monkeypatch.setenv(cards.SEVERAL_RANKS, "1")
    config = model_config("1.7B")
    cards.check_cards(on_cards("0", "0"), config, H200)
    cards.check_cards(on_cards("0", "1", in_flight=[768]), config, H200)
    with pytest.raises(SystemExit, match=r"card 0 need 176 GiB, at most 118 .*--in-flight"):
        cards.check_cards(on_cards("0", "0", in_flight=[768]), config, H200)


def test_nccl_connects_two_processes_on_a_card_only_where_it_was_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = model_config("1.7B")
    monkeypatch.delenv(cards.SEVERAL_RANKS, raising=False)
    assert cards.nccl_cards() == 2
    with pytest.raises(SystemExit, match=f"{cards.SEVERAL_RANKS}=1"):
        cards.check_cards(on_cards("0", "0"), config, H200)
    cards.check_cards(on_cards("0", "0", backend="file_ahead"), config, H200)
    cards.check_cards(on_cards("0", "0", rows=["throughput"]), config, H200)
    monkeypatch.setenv(cards.SEVERAL_RANKS, "1")
    assert cards.nccl_cards() == 1


@pytest.mark.parametrize(("given", "found"), [("", 4), ("--api-servers 2", 2), ("--cpu", 1)])
def test_a_server_has_the_front_ends_of_a_run(
    monkeypatch: pytest.MonkeyPatch, given: str, found: int
) -> None:
    """32 cores for two cards."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    assert engine.parsed(given.split()).api_servers == found


def test_a_child_answers_by_a_mark_and_its_silence_ends_at_the_deadline() -> None:
    program = "import sys, time; print('noise'); print('SAID yes', flush=True); time.sleep(600)"
    child = Child("the child", [sys.executable, "-c", program])
    try:
        assert child.expect("SAID ", 60.0) == "yes"
        with pytest.raises(RuntimeError, match=r"the child did not say MORE .*within 0.2 s"):
            child.expect("MORE ", 0.2)
    finally:
        child.close()
    assert child.process.returncode == -signal.SIGKILL
    child.close()


def test_engine_and_offline_engine_fit_on_one_card_and_nccl_within_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = parsed(["--gpus", "0", "0", "--in-flight", "256", "512"])
    monkeypatch.setenv(SEVERAL_RANKS, "1")
    check_cards(options, model_config("1.7B"), 139 * 2**30)
    with pytest.raises(SystemExit, match="the KV caches on card 0 need"):
        check_cards(options, model_config("1.7B"), 24 * 2**30)
    monkeypatch.delenv(SEVERAL_RANKS)
    with pytest.raises(SystemExit, match=f"set {SEVERAL_RANKS}=1"):
        check_cards(options, model_config("1.7B"), 139 * 2**30)
