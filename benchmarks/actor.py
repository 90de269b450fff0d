"""Rollouts per second of the actor's control plane against an engine that answers at once.

    python -m benchmarks.actor [--in-flight 512] [--seconds 5.0]

`control plane`: scheduler, lag budget, accounting, messages and worker, with single-turn rollouts that return
a ready text without asking anybody. `instant engine`: the same rollouts ask an engine over HTTP that answers
each request with 8 tokens at once; most of it is the HTTP client. `half a second`: an answer takes 0.25 to
0.75 s, as in a run, so that the event loop is busy but not full. A core is one second of CPU time of
scheduler and worker together; the engine's is not counted.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from benchmarks._figures import ROOT, Figure, at_least, at_most, command_line, report
from benchmarks._instant import TOKENS, serve
from benchmarks._processes import function, lead, stop
from benchmarks.gpu.usage import cpu_seconds
from pipelinerl.config import Config, Job, save, typed
from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from pipelinerl.launcher.placement import derive
from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.announcements import TrainerAnnouncements, forget_announcements
from pipelinerl.run_state.resume_point import ResumePoint

START_DEADLINE_S = 120.0
ATTEMPTS = 8
CASES = {
    "control plane": ("ready_rollout", 0.0),
    "instant engine": ("http_rollout", 0.0),
    "half a second": ("http_rollout", 0.5),
}


def write_config(
    output_dir: Path, model: Path, policy: str, url: str, in_flight: int, tokens: int = TOKENS
) -> None:
    jobs = [
        Job(kind="actor_llm", idx=0, url=url, name="actor_vllm_0").model_dump(),
        Job(kind="actor", idx=1, name="actor").model_dump(),
    ]
    tree = OmegaConf.create(Config(output_dir=str(output_dir)).model_dump(mode="json", by_alias=True))
    changes = {
        "model_path": str(model),
        "eval_every_n_versions": 0,
        "eval_at_end": False,
        "dataset_loader": "benchmarks._instant.load_problems",
        "train_dataset_names": ["bench"],
        "attempts": ATTEMPTS,
        "actor": {"rollout_policy": f"benchmarks._instant.{policy}", "llm_max_rollouts": in_flight},
        "llm": {"parameters": {"max_tokens": tokens}},
        "wandb": {"use_wandb": False},
        "jobs": jobs,
    }
    merged = OmegaConf.merge(tree, changes)
    assert isinstance(merged, DictConfig)
    merged.derived = derive(typed(merged), []).model_dump()
    save(merged, output_dir)


def wait_for(what: str, condition: Callable[[], bool], actor: subprocess.Popen[bytes]) -> None:
    """RuntimeError when the actor ends before it, or at the deadline."""
    deadline = time.monotonic() + START_DEADLINE_S
    while not condition():
        if actor.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the actor did not {what} (exit code {actor.poll()})")
        time.sleep(0.02)


def measure(
    policy: str, url: str, model: Path, in_flight: int, seconds: float, out: Path, tokens: int = TOKENS
) -> dict[str, float]:
    """Announce two versions `seconds` apart; the actor's reports at both tell what it did between them.

    `scheduler_us` and `worker_us` are CPU microseconds of a rollout in the actor itself and in its worker.
    """
    write_config(out, model, policy, url, in_flight, tokens)
    forget_announcements(out)
    ResumePoint(version=0, step=0).write(out)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "pipelinerl.actor", str(out), "--job", "1"]
    with TrainerAnnouncements(out) as trainer:
        actor = lead(argv, env=env)
        try:
            trainer.weight_update_success(0)
            stream = out / "streams" / "actor"
            wait_for(
                "begin", lambda: any(one.is_file() and one.stat().st_size for one in stream.rglob("*")), actor
            )
            time.sleep(2.0)
            trainer.weight_update_success(1)
            wait_for("report", lambda: len(read_metrics(out, "actor")) >= 1, actor)
            before = cpu_seconds(actor.pid)
            time.sleep(seconds)
            trainer.weight_update_success(2)
            wait_for("report again", lambda: len(read_metrics(out, "actor")) >= 2, actor)
            after = cpu_seconds(actor.pid)
            trainer.training_done()
            if actor.wait(60) != 0:
                raise RuntimeError(f"the actor ended with {actor.returncode}")
        finally:
            stop(actor)  # waiting for it would otherwise hide the error
    first, second = read_metrics(out, "actor")[:2]
    elapsed = second["actor/time_since_start"] - first["actor/time_since_start"]
    rollouts = second["actor/published_samples"] - first["actor/published_samples"]
    spent = {pid: seconds - before[role, pid] for (role, pid), seconds in after.items()}
    return {
        "rollouts_per_s": rollouts / elapsed,
        "rollouts_per_cpu_s": rollouts / sum(spent.values()),
        "scheduler_us": 1e6 * spent[actor.pid] / rollouts,
        "worker_us": 1e6 * (sum(spent.values()) - spent[actor.pid]) / rollouts,
        "loop_lag_p99_ms": 1000 * second["actor/loop_lag_p99_s"],
    }


def figures_of(rows: dict[str, dict[str, float]]) -> list[Figure]:
    """Rollouts per second and core, and lag of the event loop."""
    found = []
    for name, row in rows.items():
        per_core = None if name == "half a second" else 2000
        found += [
            at_least(f"{name}: rollouts per CPU second", row["rollouts_per_cpu_s"], "1/s", per_core),
            Figure(f"{name}: rollouts per second", row["rollouts_per_s"], "1/s"),
            at_most(f"{name}: loop lag, p99", row["loop_lag_p99_ms"], "ms", 50),
        ]
    return found


def main() -> int:
    options = command_line(__doc__)
    rows = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train_tokenizer(["say something"] * 10, 300).save_pretrained(str(folder))  # no weights are needed
        for name, (policy, delay_s) in CASES.items():
            with function(serve, delay_s, TOKENS) as engine:
                url = f"http://127.0.0.1:{engine.recv()}"
                out = folder / name.replace(" ", "_")
                rows[name] = measure(policy, url, folder, options.in_flight, options.seconds, out)
    report("actor", figures_of(rows), vars(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
