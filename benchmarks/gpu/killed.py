"""An engine that is killed inside a run: does the run go on, and how long was it without updates?

    python -m benchmarks.gpu.killed [--hardware gpu|cpu] [--after 10] [--limit 240.0]
                                  [--work results/gpu_killed] [--out FILE] [key=value ...]

The guessing game; once the trainer has done `--after` steps the engine's whole process group gets SIGKILL.
The launcher has to start another one, the trainer to give it the weights (over NCCL in a new group), the
actor to sample again what was lost, and the run to end with status 0 and rollouts that add up. `--limit` is
in seconds, the table as JSON goes to `--out` and logs beside it.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks._figures import Figure, at_least, at_most, command_line, report
from benchmarks.gpu.runs import LimitedRun, fresh, keep, launcher, leave_in_order, report_of, steps_of

ENGINES = ("vllm.entrypoints", "pipelinerl.engines.cpu")
GUESSING = shlex.split("""
+domain=guessing model_path=domains/guessing/checkpoint max_lag=512 eval_every_n_versions=1000000
actor.llm_max_rollouts=64 llm.parameters.max_tokens=16 test_llm.parameters.max_tokens=16 finetune.attempts=8
finetune.seq_length=1024 finetune.gradient_accumulation_passes=128 finetune.learning_rate=2e-4
finetune.lr_scheduler_type=constant finetune.num_warmup_steps=0 finetune.max_train_steps=30
finetune.save_checkpoint_steps=20 preprocess.ring_buffer_size=512 preprocess.max_ready_samples_per_lead=256
""")
ON_GPU = shlex.split("""
vllm_config.vllm_kwargs.max_model_len=256 vllm_config.vllm_kwargs.gpu-memory-utilization=0.2
+vllm_config.vllm_kwargs.kv-cache-memory-bytes=4000000000 +vllm_config.vllm_kwargs.enforce-eager=
""")


def engine_of(run: LimitedRun) -> psutil.Process | None:
    """The engine's server process below this launcher."""
    for process in psutil.Process(run.process.pid).children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if any(name in words for name in ENGINES) and os.getpgid(process.pid) == process.pid:
            return process
    return None


def figures_of(found: dict[str, Any]) -> Iterator[Figure]:
    """Status, seconds without an update, and whether every rollout is accounted for."""
    yield at_most("exit status", float(found["status"]), "", 0.0)
    yield Figure("optimizer steps", found["steps"], "steps")
    if found["gap_s"] is not None:
        yield Figure("from the kill to the next trained step", found["gap_s"], "s")
    if found["adds_up"] is not None:
        yield at_least("rollout accounting adds up", float(found["adds_up"]), "", 1.0)


def main() -> int:
    options = command_line(__doc__)
    leave_in_order()
    options.out = options.out or options.work / "gpu_killed.json"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    out = fresh(options.work.absolute() / "run")
    special = ON_GPU if options.hardware == "gpu" else []
    given = [f"hardware={options.hardware}", *GUESSING, *special, *options.overrides]
    run = LimitedRun(launcher(out, given), options.work.absolute() / "killed.log")

    def steps() -> float:
        return max((done for _, done in steps_of(out)), default=0.0)

    reached = run.until(lambda: steps() >= options.after, options.limit)
    engine = engine_of(run) if reached and run.process.poll() is None else None
    killed_at, before = time.time(), steps()
    if engine is not None:
        os.killpg(engine.pid, signal.SIGKILL)
    status = run.end(options.limit)
    keep(out, options.out)
    later = [at for at, done in steps_of(out) if done > before + 1 and at > killed_at]
    found = {"status": status, "steps": steps(), "adds_up": report_of(out).get("rollouts", {}).get("adds_up")}
    found["gap_s"] = later[0] - killed_at if engine is not None and later else None
    if status or engine is None:
        print(run.said(25), flush=True)
    settings = {"hardware": options.hardware, "killed": engine is not None, "after": before}
    missed = report("gpu_killed", figures_of(found), settings, options.out)
    return min(missed, 1) if engine is not None else 1


if __name__ == "__main__":
    sys.exit(main())
