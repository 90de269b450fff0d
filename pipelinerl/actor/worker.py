"""A worker process: runs rollouts by the hundred on one event loop and reports how each ended.

python -m pipelinerl.actor.worker OUTPUT_DIR --job IDX --worker N --fd FD    (started by the actor)
"""

import asyncio
import gc
import logging
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.actor.loop_lag import LoopLag
from pipelinerl.actor.messages import (
    Announced,
    Assignment,
    Cancel,
    Channel,
    Died,
    Ending,
    FinishedRollout,
    Hello,
    Message,
    Pulse,
    Stop,
)
from pipelinerl.actor.pool import worker_role
from pipelinerl.actor.retries import reason_of
from pipelinerl.actor.runner import RolloutRunner
from pipelinerl.base import faults
from pipelinerl.base.child import die_with_parent
from pipelinerl.base.errors import CommandParser
from pipelinerl.base.heartbeat import start_heartbeat
from pipelinerl.base.logs import REMARK, setup_logging
from pipelinerl.config import Config, load, load_tree
from pipelinerl.config.legacy import as_policies_read
from pipelinerl.config.serving import SamplingParameters
from pipelinerl.domain import resolve_dotted
from pipelinerl.engines.client import Deadlines, EngineClient
from pipelinerl.engines.fleet import Fleet
from pipelinerl.llm import TrainableLLM
from pipelinerl.observe.blocked import HELD, ROLLOUT, write_block

log = logging.getLogger(__name__)

PULSE_S = 1.0
LEFT_TASKS = 1000
"""Tasks of the loop beside the rollouts, and so many for each of them, from which on one is remarked."""
TASKS_OF_A_ROLLOUT = 30
OVERDUE_S = 5.0
"""After its deadline, at which it is cancelled, a rollout that still runs is given up."""
CONNECT_S = 30.0
"""Longest wait for a connection of a policy's request."""
STARTS_PER_TURN = 16
"""Rollouts that start in one turn of the loop, so that a wave of them does not hold up the others."""


@dataclass
class News:
    """What the trainer announced last; the fleet asks for it whenever an engine answers."""

    version: int | None = None
    at: float = 0.0


class Worker:
    """Connects a runner to the scheduler."""

    def __init__(
        self,
        index: int,
        channel: Channel,
        fleet: Fleet,
        runner: RolloutRunner,
        news: News,
        frozen: bool = False,
        note: Callable[[dict[str, Any]], None] = lambda block: None,
        held: Path | None = None,
    ):
        """`frozen`: engines keep the weights of the first announced version.

        `note` is told of blocks, and `held` gets the stacks of a held interpreter, as in LoopLag.
        """
        self._index, self._channel, self._fleet, self._runner = index, channel, fleet, runner
        self._news, self._frozen = news, frozen
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lag = LoopLag(note, held)
        self._said_left = False

    async def serve(self) -> None:
        """Until the scheduler says stop or is gone."""
        self._lag.start()
        # What was loaded so far lives as long as the process; a collection need not look at it again.
        gc.collect()
        gc.freeze()
        pulse = asyncio.create_task(self._pulse(), name="pulse")
        self._channel.send(Hello(self._index))
        # None: the scheduler is gone, and with it everybody who could want an answer.
        while (messages := await self._channel.receive()) is not None:
            if any(isinstance(message, Stop) for message in messages):
                break
            for count, message in enumerate(messages, start=1):
                self._handle(message)
                # After an update hundreds of rollouts may start at once; others get their turn in between.
                if count % STARTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        pulse.cancel()
        self._lag.stop()
        # Rollouts end before the totals are sent, so that the last pulse counts the requests they gave up.
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._send_pulse()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Assignment):
            name = f"{ROLLOUT}{message.group_id}/{message.rollout_index}"
            self._tasks[message.key] = asyncio.create_task(self._run(message), name=name)
        elif isinstance(message, Announced):
            self._news.version, self._news.at = message.version, message.at
            if self._frozen and self._runner.frozen_version is None:
                # Nobody sends these engines weights: they keep those of the first version for good.
                self._runner.frozen_version = message.version
        elif isinstance(message, Cancel):
            for key in message.keys:
                if key in self._tasks:  # not if it has ended meanwhile; its last message is ignored there
                    self._tasks[key].cancel()

    def _give_up(self, assignment: Assignment) -> None:
        """Answer for a rollout that catches its cancellation; what it returns later is nobody's."""
        reason = (
            f"rollout passed actor.rollout_deadline_s={self._runner.deadline_s:g} and went on although it "
            "was cancelled; let asyncio.CancelledError through"
        )
        self._channel.send(FinishedRollout(key=assignment.key, ending=Ending.FAILED, reason=reason))

    async def _run(self, assignment: Assignment) -> None:
        overdue_s = self._runner.deadline_s + OVERDUE_S
        overdue = asyncio.get_running_loop().call_later(overdue_s, self._give_up, assignment)
        try:
            rollout = await self._runner.run(assignment)
            try:
                self._channel.send(rollout)
            except Exception as error:
                # Text or metadata that no record can hold, whatever the encoder says of it, costs this
                # rollout and not the run, as it would if the stream's writer met it.
                failed = FinishedRollout(
                    key=assignment.key,
                    ending=Ending.FAILED,
                    reason=reason_of(error),
                    latency_s=rollout.latency_s,
                    retries=rollout.retries,
                    retried=rollout.retried,
                )
                self._channel.send(failed)
        finally:
            overdue.cancel()
            del self._tasks[assignment.key]

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            self._send_pulse()
            self._look_for_left_tasks()

    def _look_for_left_tasks(self) -> None:
        """Remark, once, tasks that rollouts leave behind: they slow down all others, and nobody sees them."""
        tasks = asyncio.all_tasks() if not self._said_left else set()
        if len(tasks) < LEFT_TASKS + TASKS_OF_A_ROLLOUT * len(self._tasks):
            return
        self._said_left = True
        names = Counter(getattr(task.get_coro(), "__qualname__", "unknown") for task in tasks)
        name, count = names.most_common(1)[0]
        log.warning(
            "rollout worker %d has %d tasks beside %d rollouts, %d of them %s: rollouts leave tasks behind; "
            "end them with their rollout (asyncio.TaskGroup, or cancel in finally)",
            *(self._index, len(tasks), len(self._tasks), count, name),
            extra=REMARK,
        )

    def _send_pulse(self) -> None:
        rotation, requests = self._fleet.in_rotation, self._fleet.counts.as_dict()
        self._channel.send(Pulse(self._index, self._lag.take(), rotation, requests))


def sampling_parameters(parameters: SamplingParameters) -> dict[str, Any]:
    """`max_tokens`, `temperature`, and what differs from plain sampling."""
    always = {"max_tokens": parameters.max_tokens, "temperature": parameters.temperature}
    # Defaults are left out: an engine that does not know a parameter need not be asked for its default.
    return always | parameters.model_dump(exclude_defaults=True)


def make_llm(cfg: Config, test: bool, context_size: int) -> TrainableLLM:
    """The policy with the sampling of training or of evaluation."""
    section = cfg.test_llm if test else cfg.llm
    llm = TrainableLLM(
        model_name=cfg.model_path,
        tokenizer_name=cfg.model_path,
        parameters=sampling_parameters(section.parameters),
        context_size=context_size,
        collect_logprobs=True,
        chat_template_kwargs=dict(section.chat_template_kwargs),
    )
    llm.load_tokenizer()
    return llm


async def context_size(engines: list[str], session: aiohttp.ClientSession, deadlines: Deadlines) -> int:
    """The shortest context among the engines, in tokens."""
    sizes = []
    for engine in engines:
        client = EngineClient(engine, session, deadlines=deadlines)
        await client.load_model_info()
        if client.max_model_len is not None:
            sizes.append(client.max_model_len)
    if not sizes:
        raise ValueError(f"no engine says its max_model_len at /v1/models; asked {', '.join(engines)}")
    return min(sizes)


async def serve(output_dir: str, job: int, index: int, fd: int) -> None:
    """The life of a worker; what ends it early is told to the scheduler."""
    channel = await Channel.open(socket.socket(fileno=fd))
    try:
        await _serve(load(output_dir), as_policies_read(load_tree(output_dir, job)), index, channel)
    except Exception as error:
        # The reason goes ahead of the closing channel; without it the scheduler had only an exit code.
        channel.send(Died(index, reason_of(error)))
        raise
    finally:
        await channel.close()


def policies_session(deadline_s: float) -> aiohttp.ClientSession:
    """What policies make requests with; call it on a running loop.

    It has no limits of its own: how many run at once is decided by the scheduler's slots, and how long one
    may take by its rollout's deadline. aiohttp ends a request after 5 minutes, and slow judges take longer.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_S),
    )


async def _serve(cfg: Config, tree: DictConfig, index: int, channel: Channel) -> None:
    engines = [entry.url.rstrip("/") for entry in cfg.jobs_of("actor_llm")]
    # What a module draws when it is imported is the same here as where the loader imported it.
    random.seed(cfg.seed)
    policy = resolve_dotted(str(cfg.actor.rollout_policy), "actor.rollout_policy")
    random.seed()  # rollouts of several workers draw different numbers
    news, frozen = News(), not cfg.updates_engines
    deadlines = Deadlines(
        connect_s=cfg.engine.connect_deadline_s,
        generate_s=cfg.engine.generate_deadline_s,
        stall_s=cfg.engine.stall_deadline_s,
    )
    async with (
        policies_session(cfg.actor.rollout_deadline_s) as session,
        Fleet(
            engines,
            session,
            deadlines,
            announced_version=lambda: None if frozen else news.version,
            announced_at=lambda: news.at,
        ) as fleet,
    ):
        # Only a running engine knows its context, and without one no prompt could be cut to fit.
        await fleet.wait_ready(cfg.engine.start_deadline_s)
        size = await context_size(fleet.in_rotation, session, deadlines)
        train_llm, test_llm = make_llm(cfg, False, size), make_llm(cfg, True, size)
        # A plain function occupies a thread for as long as its rollout runs, so there is one for each slot.
        threads = cfg.actor.llm_max_rollouts * len(engines)
        llms, by_domain = (train_llm, test_llm), bool(cfg.teacher.by_domain)
        runner = RolloutRunner(policy, tree, *llms, fleet, session, cfg.actor, threads, by_domain)
        try:
            output_dir, role = Path(str(cfg.output_dir)), worker_role(index)
            note, held = partial(write_block, output_dir, role), output_dir / role / HELD
            await Worker(index, channel, fleet, runner, news, frozen, note, held).serve()
        finally:
            # Rollouts have ended; whoever still asks for one is not waited for. It is a domain's to import:
            # that takes a second.
            if recorder := sys.modules.get("pipelinerl.extras.recorder"):
                await recorder.close()


def main() -> int:
    parser = CommandParser(description=__doc__)
    parser.add_argument("output_dir")
    parser.add_argument("--job", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True, help="end of the socket pair to the scheduler")
    parser.add_argument("--parent", type=int, required=True, help="process id of the scheduler")
    args = parser.parse_args()
    # First of all: the scheduler may be killed while the imports of a domain still run.
    die_with_parent(args.parent)
    setup_logging(Path(args.output_dir), "actor", f"worker_{args.worker}")
    try:
        start_heartbeat(Path(args.output_dir), worker_role(args.worker))
        faults.hit("worker:start")
        asyncio.run(serve(args.output_dir, args.job, args.worker, args.fd))
    except Exception as error:
        print(f"actor worker {args.worker}: {reason_of(error)}", file=sys.stderr, flush=True)
        return 1
    finally:
        logging.shutdown()
    return 0


if __name__ == "__main__":
    code = main()
    # Threads of plain rollouts may still run; nothing waits for them.
    sys.stdout.flush()
    os._exit(code)
