"""What is made of the little that engines say about themselves."""

from __future__ import annotations

import pytest

from pipelinerl.base.http import CallFailed
from pipelinerl.weights.send import looking
from pipelinerl.weights.send.looking import Counters
from tests.support.fake_vllm import FakeVllm, Meeting, serving


@pytest.mark.parametrize(
    ("earlier", "rate"),
    [
        (Counters(10.0, 1.0, 100.0), 50.0),
        (Counters(10.0, 1.0, 500.0), 0.0),  # another process counts from the beginning
        (Counters(10.0, 1.0, None), 0.0),
        (Counters(14.0, 1.0, 100.0), 0.0),
        (None, 0.0),
    ],
)
def test_the_rate_between_two_readings(earlier: Counters | None, rate: float) -> None:
    assert Counters(14.0, 1.0, 300.0).rate_since(earlier) == rate


@pytest.mark.parametrize(
    ("earlier", "now", "another"),
    [
        (Counters(0.0, 5.0, 9.0), Counters(1.0, 5.0, 9.0), False),
        (Counters(0.0, 5.0, 9.0), Counters(1.0, 6.0, 99.0), True),
        (Counters(0.0, None, 9.0), Counters(1.0, None, 9.0), False),
        (Counters(0.0, None, 9.0), Counters(1.0, None, 8.0), True),
        (Counters(0.0, 5.0, 9.0), Counters(1.0), False),  # it did not answer
        (Counters(0.0), Counters(1.0, 5.0, 9.0), False),
    ],
)
def test_a_process_is_another_one_by_its_start_or_by_its_counters(
    earlier: Counters, now: Counters, another: bool
) -> None:
    assert now.is_another_process(earlier) is another


@pytest.mark.parametrize(("version", "label"), [("0.26.0", None), ("0.32.0", "default")])
def test_an_engine_is_asked_for_what_it_knows(version: str, label: str | None) -> None:
    engine = FakeVllm(version, Meeting())
    with serving(engine) as url:
        assert looking.health_problem(url, 5) == ""
        assert looking.label(url, 5) == label
        assert looking.counters(url, 5).started == engine.started_at
        assert looking.counters(url, 5).generated == 1.0
        assert (looking.member(url, 5).version, looking.member(url, 5).ranks) == (version, 1)
        assert looking.is_paused(url, 5) is False
        engine.dead = True
        assert "EngineDeadError" in looking.health_problem(url, 5)
        assert looking.is_paused(url, 5) is True, "one that does not answer is not trusted to be new"
        with pytest.raises(CallFailed):
            looking.member(url, 5)
