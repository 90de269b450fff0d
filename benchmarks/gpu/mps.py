"""What CUDA's Multi-Process Service gives to processes that share a card: a run's own, or several.

    python -m benchmarks.gpu.mps [--model results/smollm2] [--rows kernels run] [--processes 3]
                                 [--seconds 3.0] [--steps 20] [--limit 400.0] [--work results/gpu_mps]
                                 [--out FILE]

Without the service processes on a card take turns; with it their kernels run beside each other. `kernels`
counts small kernels (CUDA graphs of matrices of 256 x 576) of one process, of `--processes` in turns, and of
as many under the service. `run` trains the reputation game with `--model` on one card, engine and trainer
beside each other, `--steps` steps in turns and as many under the service; what it learns is of no interest.
Nothing of the card is set: the service is a program of this user (`nvidia-cuda-mps-control`) with folders of
its own, and ends with this script.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks._figures import Figure, command_line, report
from benchmarks.gpu import runs
from benchmarks.gpu.cards import visible_cards
from benchmarks.gpu.reputation import KV_BYTES, PRESET
from benchmarks.gpu.side_by_side import UNCOMPILED, on_a_card
from benchmarks.gpu.trl import on_loopback

CONTROL = "nvidia-cuda-mps-control"
ROWS = ("kernels", "run")
START_S = 20.0
"""Until every process has its context and its graph."""
END_S = 60.0
REPEATS = 200
"""Of the product in a graph."""


@contextmanager
def service() -> Iterator[dict[str, str]]:
    """Environment of processes that are to share cards under a service of their own, which ends afterwards.

    Raises SystemExit where the program is missing or does not start.
    """
    if shutil.which(CONTROL) is None:
        raise SystemExit(f"{CONTROL} is not on this host; it comes with NVIDIA's driver")
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in own.values():
            os.mkdir(path)
        # The daemon sees all cards: ids that clients name would be counted among its own.
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | own
        started = subprocess.run([CONTROL, "-d"], env=env, capture_output=True, text=True, timeout=END_S)
        if started.returncode != 0:
            raise SystemExit(f"{CONTROL} does not start: {(started.stderr or started.stdout).strip()[-200:]}")
        try:
            yield own
        finally:
            subprocess.run([CONTROL], env=env, input="quit\n", text=True, timeout=END_S, check=False)


def work(begin: float, seconds: float) -> None:
    """Print how many small kernels a second this process runs from `begin` (seconds since 1970) on.

    Raises RuntimeError where it was ready later than that, and so ran beside nobody for a while.
    """
    import torch

    x, w = (torch.randn(n, 576, device="cuda", dtype=torch.bfloat16) for n in (256, 576))
    torch.tanh(x @ w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            torch.tanh(x @ w)
    if time.time() > begin:
        raise RuntimeError(f"ready {time.time() - begin:.1f} s too late")
    time.sleep(begin - time.time())
    at, count = time.time(), 0
    while time.time() - at < seconds:
        graph.replay()
        torch.cuda.synchronize()
        count += REPEATS
    print(count / (time.time() - at))


def kernels(processes: int, seconds: float, env: Mapping[str, str]) -> float:
    """Kernels a second of so many processes on one card together. Raises RuntimeError for one that fails."""
    code = f"from benchmarks.gpu.mps import work; work({time.time() + START_S}, {seconds})"
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    began = [
        subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) for _ in range(processes)
    ]
    total = 0.0
    try:
        for process in began:
            said, error = process.communicate(timeout=START_S + seconds + END_S)
            if process.returncode != 0:
                raise RuntimeError(f"a process ended with {process.returncode}: {error.strip()[-300:]}")
            total += float(said)
    finally:
        for process in began:
            process.kill()
            process.wait()
    return total


def trained(model: Path, out: Path, steps: int, limit_s: float, env: Mapping[str, str]) -> float:
    """Texts a second of a run with engine and trainer on one card. Raises RuntimeError for one that fails."""
    given = [*PRESET, "hardware=gpu"]
    given += [f"model_path={model}", f"finetune.max_train_steps={steps}", "eval_at_end=false"]
    given += ["eval_every_n_versions=0", "wandb.use_wandb=false", *on_a_card(KV_BYTES, 4), *UNCOMPILED]
    run = runs.LimitedRun(runs.launcher(runs.fresh(out), given), out.with_suffix(".log"), env)
    if (status := run.end(limit_s)) != 0:
        raise RuntimeError(f"status {status} after {run.seconds:.0f} s\n{run.said(10)}")
    return float(runs.report_of(out)["rates"]["trained_texts_per_second"])


def compared(name: str, unit: str, turns: float, together: float) -> Iterator[Figure]:
    yield Figure(f"{name}, in turns", turns, unit)
    yield Figure(f"{name}, under the service", together, unit)
    yield Figure(f"{name}, under the service / in turns", together / turns, "x")


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv, rows=ROWS)
    runs.leave_in_order()
    end, card = time.monotonic() + options.limit, visible_cards()[0]
    options.work.mkdir(parents=True, exist_ok=True)
    alone = on_loopback() | {"CUDA_VISIBLE_DEVICES": card}
    figures: list[Figure] = []
    settings = {"processes": options.processes, "seconds": options.seconds, "steps": options.steps}
    with service() as own, tempfile.TemporaryDirectory() as empty:
        # No service in an empty folder: one of the host's own would make the turns a service, too.
        ways = {"turns": alone | {"CUDA_MPS_PIPE_DIRECTORY": empty}, "service": alone | own}
        if "kernels" in options.rows:
            with runs.survived("kernels"):
                figures.append(
                    Figure("kernels of one process", kernels(1, options.seconds, ways["turns"]), "1/s")
                )
                found = {way: kernels(options.processes, options.seconds, env) for way, env in ways.items()}
                name = f"kernels of {options.processes} processes"
                figures += compared(name, "1/s", found["turns"], found["service"])
        if "run" in options.rows:
            with runs.survived("run"):
                model, work_in = options.model.absolute(), options.work.absolute()
                found = {
                    way: trained(model, work_in / way, options.steps, (end - time.monotonic()) / (2 - n), env)
                    for n, (way, env) in enumerate(ways.items())
                }
                figures += compared("a run on one card", "texts/s", found["turns"], found["service"])
    report("gpu_mps", figures, settings, options.out)
    return 0 if len(figures) == 4 * ("kernels" in options.rows) + 3 * ("run" in options.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
