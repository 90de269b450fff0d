"""Rollouts per second of the actor's control plane against an engine that answers at once.

    python -m benchmarks.actor [--seconds 5] [--in-flight 512]

`control plane`: scheduler, lag budget, books, messages and worker, with single-turn rollouts that return a
ready text without asking anybody. `instant engine`: the same rollouts ask an engine over HTTP that answers
each request with 8 tokens at once; most of it is the HTTP client. `half a second`: an answer takes 0.25 to
0.75 s, as in a run, so that the event loop is busy but not full. A core is one second of CPU time of
scheduler and worker together; the engine's is not counted. `polling`: the same rollouts in an actor whose
loops look for news every 10 ms (`benchmarks/_polling_actor.py`).
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import numpy as np
from omegaconf import DictConfig, OmegaConf

from benchmarks._figures import ROOT, Figure, at_least, at_most, report
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.config import Config, Job, save, typed
from pipelinerl.launcher.placement import derive
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText
from pipelinerl.run_state.announcements import TrainerAnnouncements, forget_announcements
from pipelinerl.run_state.resume_point import ResumePoint

TOKENS = 8
ATTEMPTS = 8
CONTEXT = 4096


def load_problems(names: list[str]) -> list[dict[str, Any]]:
    return [{"id": index, "dataset": name} for name in names for index in range(1000)]


def _result(text: TrainingText) -> RolloutResult:
    metrics = BaseMetrics(reward=1.0, success=True, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics, latency=0.0)


async def ready_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One text of 64 tokens, without an engine."""
    await asyncio.sleep(0)
    ids = np.arange(64, dtype=np.int32)
    labels = np.where(ids < 64 - TOKENS, -100, ids)
    text = TrainingText(text="prompt and answer", n_predicted=6, input_ids=ids, labels=labels, finished=True)
    text.logprobs = np.full(TOKENS, -0.5, np.float32)
    text.weight_versions = [(0, 0, TOKENS)]
    return _result(text)


async def http_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One call to the engine."""
    call = await llm_async_generate(llm, Prompt.from_user_message("say something"), session)
    return _result(make_training_text(llm, call))


class InstantEngine(asyncio.Protocol):
    """Just enough HTTP to be an engine; answers every generate request with the same tokens."""

    delay_s = 0.0
    ROUTES: ClassVar[dict[bytes, bytes]] = {
        b"/health": b"",
        b"/v1/models": b'{"data": [{"id": "m", "max_model_len": %d}]}' % CONTEXT,
        b"/weight_info": b'{"weight_version": "1000000"}',
        b"/metrics": b"vllm:num_requests_running 0\n",
        b"/inference/v1/generate": json.dumps(
            {
                "choices": [
                    {
                        "index": 0,
                        "token_ids": list(range(6, 6 + TOKENS)),
                        "finish_reason": "stop",
                        "logprobs": {
                            "content": [{"logprob": -0.5, "token_id": 6 + i} for i in range(TOKENS)]
                        },
                        "weight_versions": [{"version": "0", "start": 0, "end": TOKENS}],
                    }
                ]
            }
        ).encode(),
    }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = 0
            for line in head.split(b"\r\n")[1:]:
                if line.lower().startswith(b"content-length:"):
                    length = int(line[15:])
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length :]
            body = self.ROUTES[head.split(b" ", 2)[1]]
            reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            delay_s = self.delay_s * random.uniform(0.5, 1.5) if head.startswith(b"POST") else 0.0
            asyncio.get_running_loop().call_later(delay_s, self.transport.write, reply + body)  # type: ignore[attr-defined]


async def serve_instant_engine(delay_s: float) -> None:
    InstantEngine.delay_s = delay_s
    server = await asyncio.get_running_loop().create_server(InstantEngine, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def instant_engine(delay_s: float) -> Iterator[str]:
    """Its URL, while it runs in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.actor", "--serve", str(delay_s)]
    engine = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert engine.stdout is not None
        yield f"http://127.0.0.1:{int(engine.stdout.readline())}"
    finally:
        engine.kill()
        engine.wait()


def write_model(folder: Path) -> None:
    """A tokeniser without weights; the actor needs no more."""
    from pipelinerl.bootstrap.tokenizer import train_tokenizer

    train_tokenizer(["say something"] * 10, 300).save_pretrained(str(folder))


def write_config(output_dir: Path, model: Path, policy: str, url: str, in_flight: int) -> None:
    jobs = [
        Job(kind="actor_llm", idx=0, url=url, name="actor_vllm_0").model_dump(),
        Job(kind="actor", idx=1, name="actor").model_dump(),
    ]
    tree = OmegaConf.create(Config(output_dir=str(output_dir)).model_dump(mode="json", by_alias=True))
    changes = {
        "model_path": str(model),
        "eval_every_n_versions": 0,
        "eval_at_end": False,
        "dataset_loader": "benchmarks.actor.load_problems",
        "train_dataset_names": ["bench"],
        "attempts": ATTEMPTS,
        "actor": {"rollout_policy": f"benchmarks.actor.{policy}", "llm_max_rollouts": in_flight},
        "llm": {"parameters": {"max_tokens": TOKENS}},
        "wandb": {"use_wandb": False},
        "jobs": jobs,
    }
    merged = OmegaConf.merge(tree, changes)
    assert isinstance(merged, DictConfig)
    merged.derived = derive(typed(merged), []).model_dump()
    save(merged, output_dir)


def reports(output_dir: Path) -> list[dict[str, float]]:
    """The actor's records so far, one for each announced version."""
    path = output_dir / "actor" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_reports(
    output_dir: Path, count: int, process: "subprocess.Popen[bytes]"
) -> list[dict[str, float]]:
    deadline = time.monotonic() + 120
    while len(found := reports(output_dir)) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the actor did not report (exit code {process.poll()})")
        time.sleep(0.02)
    return found


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """The process, which does not outlive the block: waiting for it would otherwise hide the error."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def measure(policy: str, url: str, model: Path, in_flight: int, seconds: float) -> dict[str, float]:
    """Announce two versions `seconds` apart; the actor's reports at both tell what it did between them."""
    with tempfile.TemporaryDirectory() as folder:
        output_dir = Path(folder)
        write_config(output_dir, model, policy, url, in_flight)
        forget_announcements(output_dir)
        ResumePoint(version=0, step=0).write(output_dir)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", "pipelinerl.actor", str(output_dir), "--job", "1"]
        with TrainerAnnouncements(output_dir) as trainer, ended(subprocess.Popen(argv, env=env)) as process:
            trainer.weight_update_success(0)
            stream, deadline = output_dir / "streams" / "actor", time.monotonic() + 120
            while not any(path.stat().st_size for path in stream.rglob("*") if path.is_file()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the actor did not begin (exit code {process.poll()})")
                time.sleep(0.05)
            time.sleep(2.0)
            trainer.weight_update_success(1)
            (first,) = wait_for_reports(output_dir, 1, process)
            cpu_started = cpu_of_family(process.pid)
            time.sleep(seconds)
            trainer.weight_update_success(2)
            second = wait_for_reports(output_dir, 2, process)[1]
            cpu = cpu_of_family(process.pid) - cpu_started
            trainer.training_done()
            if process.wait(60) != 0:
                raise RuntimeError(f"the actor ended with {process.returncode}")
    elapsed = second["actor/time_since_start"] - first["actor/time_since_start"]
    rollouts = second["actor/published_samples"] - first["actor/published_samples"]
    return {
        "rollouts": rollouts,
        "rollouts_per_s": rollouts / elapsed,
        "rollouts_per_cpu_s": rollouts / cpu,
        "cores_used": cpu / elapsed,
        "loop_lag_p99_ms": 1000 * second["actor/loop_lag_p99_s"],
    }


def cpu_of_family(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    import psutil

    root = psutil.Process(pid)
    return sum(sum(p.cpu_times()[:2]) for p in [root, *root.children(recursive=True)])


def measure_polling(policy: str, url: str, model: Path, in_flight: int, seconds: float) -> dict[str, float]:
    """The same rollouts in the naive actor."""
    options = ["--policy", policy, "--url", url, "--model", str(model)]
    options += ["--in-flight", str(in_flight), "--seconds", str(seconds)]
    argv = [sys.executable, "-m", "benchmarks._polling_actor", *options]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


def figures_of(rows: dict[str, dict[str, float]]) -> list[Figure]:
    """Rollouts per second and core, and lag of the event loop, beside those of the naive actor."""
    found = []
    for name, row in rows.items():
        per_core, lag = row["rollouts_per_cpu_s"], row["loop_lag_p99_ms"]
        goals = name in ("control plane", "instant engine")
        found.append(
            at_least(f"{name}: rollouts per CPU second", per_core, "1/s", 2000)
            if goals
            else Figure(f"{name}: rollouts per CPU second", per_core, "1/s")
        )
        found.append(Figure(f"{name}: rollouts per second", row["rollouts_per_s"], "1/s"))
        found.append(
            Figure(f"{name}: loop lag, p99", lag, "ms")
            if name.startswith("polling")
            else at_most(f"{name}: loop lag, p99", lag, "ms", 50)
        )
    for name in ("control plane", "instant engine"):
        ratio = rows[name]["rollouts_per_s"] / rows[f"polling, {name}"]["rollouts_per_s"]
        found.append(Figure(f"ratio of rollouts per second, {name}", ratio, "x"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--in-flight", type=int, default=512)
    parser.add_argument("--serve", type=float, metavar="DELAY_S", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve_instant_engine(args.serve))
        return
    cases = {
        "control plane": ("ready_rollout", 0.0),
        "instant engine": ("http_rollout", 0.0),
        "half a second": ("http_rollout", 0.5),
    }
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_model(model)
        for name, (policy, delay_s) in cases.items():
            with instant_engine(delay_s) as url:
                rows[name] = measure(policy, url, model, args.in_flight, args.seconds)
        with instant_engine(0.0) as url:
            for name, short in (("control plane", "ready"), ("instant engine", "http")):
                rows[f"polling, {name}"] = measure_polling(short, url, model, args.in_flight, args.seconds)
    report("actor", figures_of(rows), {"in_flight": args.in_flight, "seconds": args.seconds})


if __name__ == "__main__":
    main()
