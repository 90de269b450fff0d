"""Messages between scheduler and workers: records without pickles, each with arrays of its own."""

import asyncio
import pickle
import socket

import numpy as np
import pytest

from pipelinerl.actor.messages import (
    Announced,
    Assignment,
    Cancel,
    Channel,
    Ending,
    FinishedRollout,
    Hello,
    Pulse,
    Stop,
)
from pipelinerl.actor.worker import LEFT_TASKS, News, Worker
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.rollouts import RolloutOrigin
from pipelinerl.streams.errors import UnsupportedValue
from tests.support.toy_domain import text


async def channels() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return await Channel.open(ours), await Channel.open(theirs)


def finished(key: int, **metadata) -> FinishedRollout:
    given = text(weight_versions=[(4, 0, 1)], metadata=metadata)
    samples = samples_of([given], RolloutOrigin("g", key, 4, training=True))
    return FinishedRollout(
        key=key, ending=Ending.DONE, samples=samples, metrics={"reward": 1.0, "steps": [2.0]}
    )


async def test_messages_of_one_turn_arrive_together_and_as_they_were():
    here, there = await channels()
    problem = pickle.dumps({"id": 1, "blob": bytes(1000)})
    assignment = Assignment(7, "g", 2, problem, "http://e", True, None, 3)
    sent = [
        Hello(1),
        assignment,
        Announced(8, 1.5),
        Cancel([1, 2]),
        Pulse(0, [0.5], ["e"], {"sent": 2}),
        Stop(),
    ]
    for message in sent:
        here.send(message)
    assert await there.receive() == sent
    await here.close()
    assert await there.receive() is None
    await there.close()


async def test_a_problem_is_on_its_way_as_it_was_pickled_and_no_message_is_a_pickle():
    problem = pickle.dumps({"id": 1})
    encoded = b"".join(
        map(bytes, Channel(None, None)._encode(Assignment(7, "g", 2, problem, "e", True, 1, 3)))
    )
    assert encoded.count(problem) == 1 and encoded.replace(problem, b"").find(pickle.PROTO + b"\x05") < 0


async def test_samples_arrive_with_arrays_of_their_own():
    here, there = await channels()
    for key in range(2):
        here.send(finished(key))
    one, two = await there.receive()
    assert (one.ending, one.key, two.key, one.metrics) == (Ending.DONE, 0, 1, {"reward": 1.0, "steps": [2.0]})
    expected = finished(0).samples[0]
    for name in ("input_ids", "labels", "old_logprobs"):
        found = getattr(one.samples[0], name)
        assert found.dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(found, getattr(expected, name))
        assert not np.shares_memory(found, getattr(two.samples[0], name))
    assert one.samples[0].to_record().keys() == expected.to_record().keys()
    assert one.model_version == 4
    await asyncio.gather(here.close(), there.close())


@pytest.mark.parametrize(
    ("metadata", "error"), [({"n": 1 << 70}, UnsupportedValue), ({"word": "\ud800"}, UnicodeEncodeError)]
)
async def test_what_no_record_can_hold_is_said_to_the_sender(metadata, error):
    here, there = await channels()
    with pytest.raises(error):
        here.send(finished(0, **metadata))
    here.send(Hello(3))
    assert await there.receive() == [Hello(3)]
    await asyncio.gather(here.close(), there.close())


async def test_a_rollout_that_no_record_can_hold_fails_instead_of_vanishing():
    here, there = await channels()

    class Runner:
        deadline_s = 100.0

        async def run(self, assignment):
            rollout = finished(assignment.key, n=1 << 70)
            rollout.retries, rollout.retried, rollout.latency_s = 1, ["TimeoutError"], 2.5
            return rollout

    worker = Worker(0, here, None, Runner(), News())  # type: ignore[arg-type]
    worker._handle(Assignment(7, "g", 2, b"", "http://e", True, None, 3))
    (answer,) = await there.receive()
    assert (answer.key, answer.ending, answer.samples) == (7, Ending.FAILED, [])
    assert (answer.retries, answer.retried, answer.latency_s) == (1, ["TimeoutError"], 2.5)
    assert answer.reason.startswith("UnsupportedValue: ")
    await asyncio.gather(here.close(), there.close())


async def test_a_rollout_that_catches_its_cancellation_is_given_up_behind_its_deadline(monkeypatch):
    monkeypatch.setattr("pipelinerl.actor.worker.OVERDUE_S", 0.01)
    here, there = await channels()
    free = asyncio.Event()

    class Runner:
        deadline_s = 0.01

        async def run(self, assignment):
            await free.wait()
            return finished(assignment.key)

    worker = Worker(0, here, None, Runner(), News())  # type: ignore[arg-type]
    worker._handle(Assignment(7, "g", 2, b"", "http://e", True, None, 3))
    (answer,) = await there.receive()
    assert (answer.key, answer.ending) == (7, Ending.FAILED)
    assert answer.reason.startswith("rollout passed actor.rollout_deadline_s=0.01 and went on although")
    free.set()
    await asyncio.gather(*worker._tasks.values())
    await asyncio.gather(here.close(), there.close())


async def test_tasks_that_rollouts_leave_behind_are_remarked_once(caplog):
    here, there = await channels()
    worker = Worker(3, here, None, None, News())  # type: ignore[arg-type]

    async def forever():
        await asyncio.Event().wait()

    left = [asyncio.create_task(forever()) for _ in range(LEFT_TASKS - 5)]
    worker._look_for_left_tasks()
    assert not caplog.records
    left += [asyncio.create_task(forever()) for _ in range(5)]
    for _ in range(2):
        worker._look_for_left_tasks()
    (record,) = caplog.records
    assert record.remark and record.getMessage().startswith("rollout worker 3 has ")
    assert f"{LEFT_TASKS} of them " in record.getMessage() and "forever" in record.getMessage()
    for task in left:
        task.cancel()
    await asyncio.gather(*left, here.close(), there.close(), return_exceptions=True)
