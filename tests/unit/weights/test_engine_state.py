"""What is made of the little that engines say about themselves."""

import pytest

from pipelinerl.base.http import CallFailed
from pipelinerl.weights.engine_state import Counters, EngineState
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


@pytest.mark.parametrize(
    ("vllm", "version"), [("0.26.0", None), ("0.27.0", "default"), ("0.33.0", "default")]
)
def test_an_engine_is_asked_for_what_it_knows(vllm: str, version: str | None) -> None:
    engine = FakeVllm(vllm, Meeting())
    with serving(engine) as url:
        state = EngineState(url, 5)
        state.look()
        assert (state.problem, state.weight_version) == ("", version)
        assert (state.now.started, state.now.generated) == (engine.started_at, 1.0)
        assert (state.member().version, state.member().ranks) == (vllm, 1)
        assert state.is_paused() is False
        engine.dead = True
        state.look()
        assert "EngineDeadError" in state.problem
        assert state.is_paused() is True, "one that does not answer is not trusted to be new"
        with pytest.raises(CallFailed):
            state.member()
