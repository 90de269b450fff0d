"""The update protocol against engines that fail in each step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.base.threads import in_thread
from pipelinerl.engines.wire import PREPARE_ROUTE, PermanentUpdateError
from pipelinerl.weights.engine_state import EngineState
from pipelinerl.weights.engine_update import EngineUpdate, PublishDeadlines
from pipelinerl.weights.parity import ParityLimits, check_parity, probe_ids
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.fake_vllm import FakeEmbedded, serving
from tests.support.processes import until

TENSORS = [("a", torch.ones(2, 3)), ("b", torch.zeros(4))]
DEADLINES = PublishDeadlines(
    health_s=60, init_s=60, pause_s=60, start_s=60, update_s=60, finish_s=60, resume_s=60
)
EXACT = ParityLimits(1e-4, None)
CYCLE = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]


@dataclass
class Pair:
    """Two engines, of which tests disturb the first."""

    first: FakeEmbedded
    second: FakeEmbedded
    urls: list[str]
    folder: Path

    def ready(self, **options: Any) -> Publisher:
        publisher = Publisher(self.urls, FileTransport(self.folder), deadlines=DEADLINES, **options)
        publisher.wait_ready(100)
        return publisher


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    first, second = FakeEmbedded(), FakeEmbedded()
    with serving(first) as one, serving(second) as two:
        yield Pair(first, second, [one, two], tmp_path)


def broken(publisher: Publisher) -> set[str]:
    return {url for url, one in publisher.engines.items() if one.broken}


def score(rows: np.ndarray) -> np.ndarray:
    return np.full((len(rows), rows.shape[1] - 1), -1.0, dtype=np.float32)


def test_what_needs_no_engine_is_prepared_before_the_first_one_answers(pair: Pair) -> None:
    """vLLM's import in the trainer took 4 s of every start, behind the engines' own."""
    pair.first.faults["/health"] = [500, 500]
    prepared: list[list[int]] = []

    class Prepared(FileTransport):
        def prepare(self) -> None:
            prepared.append(list(pair.first.faults["/health"]))

    Publisher(pair.urls, Prepared(pair.folder), deadlines=DEADLINES).wait_ready(100)
    assert prepared == [[500, 500]]


def test_every_engine_goes_through_the_protocol_once(pair: Pair) -> None:
    publisher = pair.ready()
    report = publisher.publish(1, TENSORS)
    for one in (pair.first, pair.second):
        assert one.calls == ["/init_weight_transfer_engine", *CYCLE]
        assert one.label == "1" and not one.paused
    assert set(report.seconds) == {
        *("stage", "pause", "start", "update", "send", "finish", "resume", "total")
    }
    assert set(report.paused_s) == set(pair.urls) and min(report.paused_s.values()) > 0
    assert report.bytes == next(pair.folder.iterdir()).stat().st_size
    publisher.close()
    assert not list(pair.folder.iterdir())


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_a_cache_that_may_hold_other_weights_under_a_version_is_cleared(pair: Pair, kv: Any) -> None:
    publisher, first, second = pair.ready(kv=kv), pair.first, pair.second
    always = kv == "recompute"

    def cleared(version: int) -> list[bool]:
        publisher.publish(version, TENSORS)
        queries = {f"mode=keep&clear_cache={'true' if clears else 'false'}": clears for clears in (0, 1)}
        return [bool(queries[one.pause_query]) for one in (first, second)]

    assert cleared(1) == [True, True], "what an engine has served before is not known"
    assert cleared(2) == cleared(2) == [always, always]
    second.faults["/health"] = [500]
    assert list(publisher.publish(3, TENSORS).excluded) == [pair.urls[1]]
    assert cleared(4) == [always, True], "it was asked for version 3 and has not had it"
    assert cleared(5) == [always, always]
    second.restart()
    assert cleared(5) == [always, True], "it was asked for version 5 with the weights it was started with"
    first.faults["/update_weights"] = [500]
    with pytest.raises(WeightUpdateError):
        publisher.publish(6, TENSORS)
    first.restart()
    assert cleared(6) == [True, True], "one is new, the other one had a version that was never announced"
    assert cleared(7) == [always, always]


def test_an_engine_that_missed_a_version_is_stale_also_if_it_does_not_say_which_it_has(pair: Pair) -> None:
    publisher, first = pair.ready(), pair.first
    first.lacks = "/weight_info"
    publisher.publish(1, TENSORS)
    assert publisher.stale_engines() == []
    first.faults["/pause"] = [0]
    assert list(publisher.publish(2, TENSORS).excluded) == [pair.urls[0]]
    assert publisher.stale_engines() == [pair.urls[0]]
    publisher.publish(2, TENSORS)
    assert publisher.stale_engines() == []


@pytest.mark.parametrize("step", ["/pause", "/resume"])
def test_pause_and_resume_are_tried_three_times(pair: Pair, step: str) -> None:
    publisher = pair.ready()
    first = pair.first
    first.faults[step] = [500, 500]
    publisher.publish(1, TENSORS)
    assert first.calls.count(step) == 3
    first.faults[step] = [500, 500, 500]
    with pytest.raises(WeightUpdateError, match=rf"failed at {step[1:]} of .*fault at {step}") as error:
        publisher.publish(2, TENSORS)
    assert error.value.broken == []
    assert publisher.version == 1
    if step == "/pause":
        assert not pair.second.paused, "the others are resumed"
        assert "/start_weight_update" not in pair.second.calls[6:]


@pytest.mark.parametrize("step", CYCLE[1:4])
def test_an_engine_that_fails_in_between_is_broken_and_never_resumed(pair: Pair, step: str) -> None:
    publisher = pair.ready()
    first, second = pair.first, pair.second
    first.faults[step] = [500]
    with pytest.raises(WeightUpdateError) as error:
        publisher.publish(1, TENSORS)
    assert error.value.engine == pair.urls[0]
    assert error.value.broken == [pair.urls[0]]
    assert publisher.version is None, "nothing is announced"
    assert "/resume" not in first.calls and first.paused
    assert second.label == "1" and not second.paused
    # The next update goes on without it …
    report = publisher.publish(2, TENSORS)
    assert list(report.excluded) == [pair.urls[0]] and "broken" in report.excluded[pair.urls[0]]
    assert first.paused
    # … until a new process stands there.
    first.restart()
    assert publisher.stale_engines() == [pair.urls[0]]
    assert publisher.publish(3, TENSORS).excluded == {}
    assert first.calls == ["/init_weight_transfer_engine", *CYCLE]
    assert publisher.stale_engines() == []


def test_each_engine_is_named_once_with_its_problem(pair: Pair) -> None:
    publisher = pair.ready()
    for one in (pair.first, pair.second):
        one.refuses["/update_weights"] = str(PermanentUpdateError("15 GiB are needed"))
    with pytest.raises(WeightUpdateError) as error:
        publisher.publish(1, TENSORS)
    one, two = pair.urls
    assert str(error.value) == f"weight update failed at update of {one} and {two}: 15 GiB are needed"
    for each in (pair.first, pair.second):
        each.restart()
    pair.second.refuses["/update_weights"] = str(PermanentUpdateError("no such name"))
    with pytest.raises(WeightUpdateError) as error:
        publisher.publish(1, TENSORS)
    assert str(error.value) == (
        f"weight update failed at update of {one}: 15 GiB are needed; at update of {two}: no such name"
    )


def test_a_second_start_is_not_sent(pair: Pair) -> None:
    update = EngineUpdate(EngineState(pair.urls[0], 5), DEADLINES)
    update.pause()
    update.start()
    assert update.error is None
    update.start()
    update.close()
    assert pair.first.calls == ["/pause", "/start_weight_update"]
    assert "start after start" in str(update.error)


def test_a_lost_engine_is_excluded_and_the_others_go_on(pair: Pair) -> None:
    publisher = pair.ready()
    first, second = pair.first, pair.second
    first.faults["/pause"] = [0]
    report = publisher.publish(1, TENSORS)
    assert list(report.excluded) == [pair.urls[0]]
    assert (first.label, second.label) == ("default", "1")


def test_only_an_engine_that_offers_it_prepares_and_it_does_so_before_anybody_is_paused(pair: Pair) -> None:
    first, second = pair.first, pair.second
    first.offers = [PREPARE_ROUTE]
    publisher = Publisher(pair.urls, FileTransport(pair.folder))
    publisher.wait_ready(100)
    report = publisher.publish(1, TENSORS)
    assert first.calls == ["/init_weight_transfer_engine", PREPARE_ROUTE, *CYCLE]
    assert second.calls == ["/init_weight_transfer_engine", *CYCLE]
    assert 0 < report.seconds["prepare"] < report.seconds["total"]
    second.calls.clear()
    first.hangs.add(PREPARE_ROUTE)
    publishing = in_thread(publisher.publish, 2, TENSORS)
    until(lambda: first.calls[-1] == PREPARE_ROUTE, "the call to prepare")
    assert not second.calls and not second.paused
    first.released.set()
    publishing.result(100)
    assert first.label == second.label == "2"


def test_an_engine_that_refuses_to_prepare_is_judged_by_its_update(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair.first, pair.second
    first.offers = second.offers = [PREPARE_ROUTE]
    publisher = pair.ready()
    first.faults[PREPARE_ROUTE] = [400, 409]
    publisher.publish(1, TENSORS)
    assert (first.label, second.label) == ("1", "1")
    assert f"{pair.urls[0]} cannot prepare its update: HTTP 400" in caplog.text
    first.faults["/update_weights"] = [400]
    with pytest.raises(WeightUpdateError, match="failed at update") as error:
        publisher.publish(2, TENSORS)
    assert error.value.broken == [pair.urls[0]] and (first.label, second.label) == ("1", "2")


def test_an_engine_lost_while_it_prepares_is_excluded_without_a_pause(pair: Pair) -> None:
    first, second = pair.first, pair.second
    first.offers = [PREPARE_ROUTE]
    publisher = pair.ready()
    first.faults[PREPARE_ROUTE] = [0, 0]
    report = publisher.publish(1, TENSORS)
    assert list(report.excluded) == [pair.urls[0]] and broken(publisher) == set()
    assert (first.label, second.label) == ("default", "1")
    assert "/pause" not in first.calls
    second.faults["/health"] = [503]
    with pytest.raises(WeightUpdateError, match="failed at prepare") as error:
        publisher.publish(2, TENSORS)
    assert error.value.broken == [] and "/pause" not in first.calls


def test_versions_only_grow_and_the_layout_stays(pair: Pair) -> None:
    publisher = pair.ready()
    publisher.publish(3, TENSORS)
    publisher.publish(3, TENSORS)
    with pytest.raises(ValueError, match="version 2 is older than 3"):
        publisher.publish(2, TENSORS)
    with pytest.raises(ValueError, match="changed since the first update: b"):
        publisher.publish(4, [TENSORS[0], ("b", torch.zeros(5))])
    assert not pair.first.paused


def test_an_engine_that_was_given_up_is_asked_nothing_more_and_counts_as_left_out(pair: Pair) -> None:
    gone = "http://127.0.0.1:9"
    lost = [[f"{gone}/"], [], [pair.urls[0]], [pair.urls[1]]]
    pair.urls.append(gone)  # its host was lost before it was ready
    publisher = pair.ready(lost=lambda: lost.pop(0))
    assert publisher.publish(1, TENSORS).excluded == {gone: "given up by the launcher"}
    pair.first.calls.clear()
    left_out = publisher.publish(2, TENSORS).excluded
    assert list(left_out) == [gone, pair.urls[0]] and pair.first.calls == []
    assert list(publisher.publish(3, TENSORS).excluded) == [gone, pair.urls[0]]
    assert pair.second.label == "3", "the last engine is never left out"


def test_waiting_for_engines_ends_with_their_names(tmp_path: Path) -> None:
    publisher = Publisher(["http://127.0.0.1:9"], FileTransport(tmp_path), deadlines=DEADLINES)
    with pytest.raises(WeightUpdateError, match=r"wait for engines of http://127.0.0.1:9"):
        publisher.wait_ready(0.2)


def test_parity_beyond_the_limit_breaks_the_engine(pair: Pair) -> None:
    publisher = pair.ready()
    publisher.publish(1, TENSORS)
    ids = probe_ids(100, length=8)
    results = check_parity(publisher, ids, score, EXACT)
    assert [one.max_abs for one in results] == [0.0, 0.0]
    pair.second.logprob = -1.01
    with pytest.raises(WeightUpdateError, match=r"parity of .*differ by 0.01") as error:
        check_parity(publisher, ids, score, EXACT)
    assert error.value.broken == [pair.urls[1]] and broken(publisher) == {pair.urls[1]}
