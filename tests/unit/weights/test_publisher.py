"""The update protocol against engines that fail in each step."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.base.http import PREPARE_ROUTE
from pipelinerl.inference.vllm import pause_routes
from pipelinerl.weights.send.exchange import Exchange
from pipelinerl.weights.send.file import FileTransport
from pipelinerl.weights.send.parity import ParityLimits, check_parity, limits_for, probe_ids
from pipelinerl.weights.send.publisher import PublishDeadlines, Publisher, WeightUpdateError
from tests.support.json_server import serving_json

TENSORS = [("a", torch.ones(2, 3)), ("b", torch.zeros(4))]
DEADLINES = PublishDeadlines(health_s=5, init_s=5, pause_s=1, start_s=1, update_s=1, finish_s=1, resume_s=1)
CYCLE = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]


class FakeEngine:
    """Keeps the protocol's state and can be told to fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.queries: list[str] = []
        self.label = "default"
        self.paused = False
        self.faults: dict[str, list[int]] = {}
        """Path to the statuses of its next answers; 0 closes the connection without one."""
        self.logprob = -1.0
        self.hang = threading.Event()
        self.hang_at = ""
        self.offers: list[str] = []

    def answer(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        if path in (*CYCLE, PREPARE_ROUTE, "/init_weight_transfer_engine"):
            self.calls.append(path)
            self.queries.append(query)
        if path == self.hang_at:
            self.hang.wait(20)
        if self.faults.get(path):
            status = self.faults[path].pop(0)
            if status != 200:
                return status, {"error": {"message": f"fault at {path}"}}
        if path == "/pause":
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/finish_weight_update":
            self.label = body["weight_version"]
        answers: dict[str, Any] = {
            "/is_paused": {"is_paused": self.paused},
            "/weight_info": {"weight_version": self.label},
            "/get_world_size": {"world_size": 1},
            "/init_weight_transfer_engine": {"optional_routes": self.offers} if self.offers else {},
        }
        if path == "/inference/v1/generate":
            ids = body["token_ids"]
            scores = [None, *({str(one): {"logprob": self.logprob}} for one in ids[1:])]
            return 200, {"choices": [], "prompt_logprobs": scores}
        return 200, answers.get(path, {})

    def restart(self) -> None:
        self.label, self.paused, self.calls = "default", False, []


@contextmanager
def serving(engine: FakeEngine) -> Iterator[str]:
    with serving_json(engine.answer) as url:
        try:
            yield url
        finally:
            engine.hang.set()


@pytest.fixture
def engines() -> Iterator[tuple[list[FakeEngine], list[str]]]:
    first, second = FakeEngine(), FakeEngine()
    with serving(first) as one, serving(second) as two:
        yield [first, second], [one, two]


Pair = tuple[list[FakeEngine], list[str]]


def ready(engines: Pair, folder: Path, **options: Any) -> Publisher:
    publisher = Publisher(engines[1], FileTransport(folder), deadlines=DEADLINES, **options)
    publisher.wait_ready(10)
    return publisher


def test_every_engine_goes_through_the_protocol_once(engines: Pair, tmp_path: Path) -> None:
    publisher = ready(engines, tmp_path)
    report = publisher.publish(1, TENSORS)
    for one in engines[0]:
        assert one.calls == ["/init_weight_transfer_engine", *CYCLE]
        assert one.label == "1" and not one.paused
    assert set(report.seconds) == {
        *("stage", "pause", "start", "update", "send", "finish", "resume", "total")
    }
    assert set(report.paused_s) == set(engines[1]) and min(report.paused_s.values()) > 0
    assert report.bytes == next(tmp_path.iterdir()).stat().st_size
    publisher.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kv", "clear"), [("keep", "false"), ("recompute", "true")])
def test_clear_cache_is_always_sent(engines: Pair, tmp_path: Path, kv: Any, clear: str) -> None:
    ready(engines, tmp_path, kv=kv).publish(1, TENSORS)
    first = engines[0][0]
    assert first.queries[first.calls.index("/pause")] == f"mode=keep&clear_cache={clear}"


@pytest.mark.parametrize("step", ["/pause", "/resume"])
def test_pause_and_resume_are_tried_three_times(engines: Pair, tmp_path: Path, step: str) -> None:
    publisher = ready(engines, tmp_path)
    first = engines[0][0]
    first.faults[step] = [500, 500]
    publisher.publish(1, TENSORS)
    assert first.calls.count(step) == 3
    first.faults[step] = [500, 500, 500]
    with pytest.raises(WeightUpdateError, match=rf"failed at {step[1:]} of .*fault at {step}") as error:
        publisher.publish(2, TENSORS)
    assert error.value.broken == []
    assert publisher.version == 1
    if step == "/pause":
        assert not engines[0][1].paused, "the others are resumed"
        assert "/start_weight_update" not in engines[0][1].calls[6:]


@pytest.mark.parametrize("step", CYCLE[1:4])
def test_an_engine_that_fails_in_between_is_broken_and_never_resumed(
    engines: Pair, tmp_path: Path, step: str
) -> None:
    publisher = ready(engines, tmp_path)
    first, second = engines[0]
    first.faults[step] = [500]
    with pytest.raises(WeightUpdateError) as error:
        publisher.publish(1, TENSORS)
    assert error.value.engine == engines[1][0]
    assert error.value.broken == [engines[1][0]]
    assert publisher.version is None, "nothing is announced"
    assert "/resume" not in first.calls and first.paused
    assert second.label == "1" and not second.paused
    # The next update goes on without it …
    report = publisher.publish(2, TENSORS)
    assert list(report.excluded) == [engines[1][0]] and "broken" in report.excluded[engines[1][0]]
    assert first.paused
    # … until a new process stands there.
    first.restart()
    assert publisher.stale_engines() == [engines[1][0]]
    assert publisher.publish(3, TENSORS).excluded == {}
    assert first.calls == ["/init_weight_transfer_engine", *CYCLE]
    assert publisher.stale_engines() == []


def test_a_second_start_is_not_sent(engines: Pair) -> None:
    exchange = Exchange(engines[1][0], DEADLINES, pause_routes(None, clear_cache=False))
    exchange.pause()
    exchange.start()
    assert exchange.error is None
    exchange.start()
    exchange.close()
    assert engines[0][0].calls == ["/pause", "/start_weight_update"]
    assert "start after start" in str(exchange.error)


def test_a_hanging_engine_is_named_at_the_deadline(engines: Pair, tmp_path: Path) -> None:
    publisher = ready(engines, tmp_path)
    engines[0][1].hang_at = "/update_weights"
    with pytest.raises(WeightUpdateError, match=r"update of .*no answer within 1 s") as error:
        publisher.publish(1, TENSORS)
    assert error.value.broken == [engines[1][1]]


def test_a_lost_engine_is_excluded_and_the_others_go_on(engines: Pair, tmp_path: Path) -> None:
    publisher = ready(engines, tmp_path)
    first, second = engines[0]
    first.faults["/pause"] = [0]
    report = publisher.publish(1, TENSORS)
    assert list(report.excluded) == [engines[1][0]]
    assert (first.label, second.label) == ("default", "1")
    first.faults["/health"], second.faults["/health"] = [503], [503]
    with pytest.raises(WeightUpdateError, match="no engine can take part"):
        publisher.publish(2, TENSORS)


def test_only_an_engine_that_offers_it_prepares_and_it_does_so_before_anybody_is_paused(
    engines: Pair, tmp_path: Path
) -> None:
    first, second = engines[0]
    first.offers = [PREPARE_ROUTE]
    publisher = Publisher(engines[1], FileTransport(tmp_path))
    publisher.wait_ready(10)
    report = publisher.publish(1, TENSORS)
    assert first.calls == ["/init_weight_transfer_engine", PREPARE_ROUTE, *CYCLE]
    assert second.calls == ["/init_weight_transfer_engine", *CYCLE]
    assert 0 < report.seconds["prepare"] < report.seconds["total"]
    second.calls.clear()
    first.hang_at = PREPARE_ROUTE
    publishing = threading.Thread(target=publisher.publish, args=(2, TENSORS))
    publishing.start()
    while first.calls[-1] != PREPARE_ROUTE:
        time.sleep(0.001)
    assert not second.calls and not second.paused
    first.hang.set()
    publishing.join()
    assert first.label == second.label == "2"


def test_an_engine_that_refuses_to_prepare_is_judged_by_its_update(
    engines: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = engines[0]
    first.offers = second.offers = [PREPARE_ROUTE]
    publisher = ready(engines, tmp_path)
    first.faults[PREPARE_ROUTE] = [400, 409]
    publisher.publish(1, TENSORS)
    assert (first.label, second.label) == ("1", "1")
    assert f"{engines[1][0]} cannot prepare its update: HTTP 400" in caplog.text
    first.faults["/update_weights"] = [400]
    with pytest.raises(WeightUpdateError, match="failed at update") as error:
        publisher.publish(2, TENSORS)
    assert error.value.broken == [engines[1][0]] and (first.label, second.label) == ("1", "2")


def test_an_engine_lost_while_it_prepares_is_excluded_without_a_pause(engines: Pair, tmp_path: Path) -> None:
    first, second = engines[0]
    first.offers = [PREPARE_ROUTE]
    publisher = ready(engines, tmp_path)
    first.faults[PREPARE_ROUTE] = [0, 0]
    report = publisher.publish(1, TENSORS)
    assert list(report.excluded) == [engines[1][0]] and publisher.broken == set()
    assert (first.label, second.label) == ("default", "1")
    assert "/pause" not in first.calls
    second.faults["/health"] = [503]
    with pytest.raises(WeightUpdateError, match="failed at prepare") as error:
        publisher.publish(2, TENSORS)
    assert error.value.broken == [] and "/pause" not in first.calls


def test_versions_only_grow_and_the_layout_stays(engines: Pair, tmp_path: Path) -> None:
    publisher = ready(engines, tmp_path)
    publisher.publish(3, TENSORS)
    publisher.publish(3, TENSORS)
    with pytest.raises(ValueError, match="version 2 is older than 3"):
        publisher.publish(2, TENSORS)
    with pytest.raises(ValueError, match="changed since the first update: b"):
        publisher.publish(4, [TENSORS[0], ("b", torch.zeros(5))])
    assert not engines[0][0].paused


def test_waiting_for_engines_ends_with_their_names(tmp_path: Path) -> None:
    publisher = Publisher(["http://127.0.0.1:9"], FileTransport(tmp_path), deadlines=DEADLINES)
    with pytest.raises(WeightUpdateError, match=r"wait for engines of http://127.0.0.1:9"):
        publisher.wait_ready(0.2)


def test_parity_beyond_the_limit_breaks_the_engine(engines: Pair, tmp_path: Path) -> None:
    publisher = ready(engines, tmp_path)
    publisher.publish(1, TENSORS)
    ids = probe_ids(100, length=8)

    def score(rows: np.ndarray) -> np.ndarray:
        return np.full((len(rows), rows.shape[1] - 1), -1.0, dtype=np.float32)

    results = check_parity(publisher, ids, score, limits_for("float32"))
    assert [one.max_abs for one in results] == [0.0, 0.0]
    engines[0][1].logprob = -1.01
    with pytest.raises(WeightUpdateError, match=r"parity of .*differ by 0.01") as error:
        check_parity(publisher, ids, score, limits_for("float32"))
    assert error.value.broken == [engines[1][1]] and publisher.broken == {engines[1][1]}
    assert limits_for("bfloat16") == ParityLimits(None, 0.02)
