"""Two halves of a host with two cards as two hosts: weights over NCCL, a sharded step, the start.

    python -m benchmarks.gpu.several_hosts [--hardware gpu|cpu] [--arms ARM ...] [--rounds 1] [--steps 16]
                                           [--limit 500.0] [--arm-limit 150.0] [--out FILE]
                                           [--work results/gpu_several_hosts] [key=value ...]

Runs of the launcher with one engine and one trainer, a card for each; `hosts` of `trl_workload.py` is the
work, nothing is compiled, streams are redis. Arms:

- `local`: one host, without Ray. `ray`: one host of a Ray cluster, with both cards.
- `two_hosts`: namespaces with their own network, name, shared memory and processes, one card each
  (`tests/support/network_hosts.py`; needs root and `ip`). NCCL takes them for two machines and connects them
  by sockets over a virtual Ethernet.
- `two_nodes`: two Ray nodes at loopback addresses, one card each (`node_hosts.py`). For the launcher these
  are two hosts as well, and NCCL connects the cards directly: a fast wire between hosts.
- `step`, `two_hosts_step`, `two_nodes_step`: `benchmarks.gpu.sharded` over both cards, started as the
  launcher starts ranks, on one host and on those of either kind.

Pauses, whole updates and samples trained are those of the `--steps` after the first 6. Every arm says over
what NCCL sent ("via" of its log). `--limit` seconds are for all arms, `--arm-limit` for one; each has its
file in `--work` at once, and arms of a round that have one are not run again. Where namespaces are not
allowed, `ray` has a node at a loopback address and `two_hosts` is left out. `key=value` are for the launcher.
`--hardware cpu` rehearses everything at a tiny size: the embedded engine, weights through files, gloo.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, Figure, at_least, at_most, command_line, machine, report, write_json
from benchmarks.gpu import runs
from benchmarks.gpu.cards import need_cuda, visible_cards
from benchmarks.gpu.node_hosts import INTERFACE, NodeHost, NodeHosts
from benchmarks.gpu.runs import LimitedRun
from benchmarks.gpu.steady import our_steps, steady
from benchmarks.gpu.trl import model_in, on_loopback, overrides
from benchmarks.gpu.trl_workload import WORKLOADS
from pipelinerl.config.files import load
from tests.support.network_hosts import RAY_PORT, NetworkHost, NetworkHosts, why_not

WORK = {"gpu": "hosts", "cpu": "cpu"}
ARMS = ("local", "ray", "two_hosts", "step", "two_hosts_step", "two_nodes", "two_nodes_step")
SKIPPED = 6
STOP_S, LEAST_S = 15.0, 30.0
"""What an arm gets to end, and the least that is worth a start."""
PAUSE_GOAL, RATE_GOAL, STEP_GOAL, START_GOAL_S = 1.5, 0.98, 1.1, 10.0
ON_GPU = (
    "finetune.compile=false",
    "vllm_config.vllm_kwargs.gpu-memory-utilization=0.5",
    "+vllm_config.vllm_kwargs.kv-cache-memory-bytes=32000000000",
    "+vllm_config.vllm_kwargs.enforce-eager=",
)
UPDATE = ("max_paused_s", "total_s", "send_s", "stage_s")
"""Metrics of an update, below `weights/`."""
OF_ONE_HOST = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "VLLM_HOST_IP")
"""What several hosts have each of their own."""
FAST_SOCKETS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
WARMS = "import contextlib, transformers, ray\nwith contextlib.suppress(ImportError): import vllm"
"""Else the first arm reads from the disk what the others have in memory."""
Hosts = Sequence[NetworkHost | NodeHost]


@cache
def no_namespaces() -> str:
    """What hinders namespaces here; empty if nothing does."""
    try:
        if not why_not():
            with NetworkHosts(2, ray=False) as made:
                subprocess.run(made.hosts[1].command("true"), check=True)
        return why_not()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"


class Arm:
    """One row of the table: `name` without `_step` says on which hosts."""

    def __init__(self, options: argparse.Namespace, name: str, folder: Path, limit_s: float) -> None:
        self.name, self.folder, self.limit_s = name, folder, limit_s
        self.gpu, self.options = options.hardware == "gpu", options
        self.place = "local" if name == "step" else name.removesuffix("_step")
        self.terminated = False

    def run(self, model: Path) -> dict[str, Any]:
        """Its row. ValueError, RuntimeError or SystemExit without one."""
        if self.place == "two_hosts" and no_namespaces():
            raise SystemExit(no_namespaces())
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        begun = time.monotonic()
        with ExitStack() as stack:
            hosts = self._hosts(stack)
            made_s = time.monotonic() - begun
            self.limit_s -= made_s
            row = self._sharded(hosts) if self.name.endswith("step") else self._launched(hosts, model)
        kinds = "addresses" if self._on_nodes else "namespaces"
        kept = {name: value for name, value in self._env().items() if re.match("NCCL_(?!DEBUG)", name)}
        row |= {"arm": self.name, "hosts": kinds if hosts else "none", "hosts_s": made_s}
        return row | {"sent via": self._wires(), "env": kept, "machine": machine()}

    @property
    def _on_nodes(self) -> bool:
        return self.place == "two_nodes" or (self.place == "ray" and bool(no_namespaces()))

    def _hosts(self, stack: ExitStack) -> Hosts:
        """None for one host; else a Ray cluster of one or two, or for a step just the hosts."""
        if self.place == "local":
            return []
        each: list[str | None] = [None] if self.place == "ray" else [None, None]
        if self.gpu:
            each = [",".join(visible_cards())] if self.place == "ray" else list(visible_cards())
        ray = not self.name.endswith("_step")
        if self._on_nodes:
            return stack.enter_context(NodeHosts(each, ray)).hosts
        gpus = 0 if each[0] is None else len(each[0].split(","))
        return stack.enter_context(NetworkHosts(len(each), gpus, each, ray)).hosts

    def _env(self) -> dict[str, str]:
        env = on_loopback() | {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO"}
        env["NCCL_DEBUG_FILE"] = str(self.folder / "nccl.%h.%p")
        if not self.gpu:
            env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        if self.place.startswith("two"):
            for name in OF_ONE_HOST:
                env.pop(name, None)
            env |= FAST_SOCKETS
        if self.place == "two_nodes":  # the interface that has 127.0.0.2 is not found by that address
            env |= {"NCCL_SOCKET_IFNAME": INTERFACE, "GLOO_SOCKET_IFNAME": INTERFACE}
        elif self.place == "two_hosts" and self.name.endswith("_step"):
            env |= {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
        return env

    def _wires(self) -> dict[str, int]:
        """Over what NCCL's channels go, and how many of each kind; empty where nothing went over it."""
        found: Counter[str] = Counter()
        for path in self.folder.glob("nccl.*"):
            found.update(re.findall(r" via ([A-Z][A-Za-z0-9]*/[A-Za-z]+)", path.read_text(errors="replace")))
        return dict(found)

    def _launched(self, hosts: Hosts, model: Path) -> dict[str, Any]:
        out, work = self.folder / "run", WORKLOADS[WORK[self.options.hardware]]
        words = [*overrides(self.options.hardware, work, model), "streams=redis"]
        words += [f"dataset_loader_params={{workload:{WORK[self.options.hardware]}}}"]
        words += [*(ON_GPU if self.gpu else ()), *self.options.overrides]
        if hosts:
            words += ["world.backend=ray", f"world.ray_address={hosts[0].address}:{RAY_PORT}"]
        command = runs.launcher(out, words)
        command = hosts[0].command(*command) if hosts else command
        run = LimitedRun(command, self.folder / "run.log", self._env())
        begun, first = time.time(), 0.0
        log = out / "launcher" / "launcher_0.log"

        def enough() -> bool:
            nonlocal first
            if not first and log.is_file() and " started (pid" in log.read_text():
                first = time.time() - begun
            return len(our_steps(out)) >= SKIPPED + self.options.steps

        try:
            run.until(enough, self.limit_s)
        finally:
            run.stop()
            self.terminated = run.terminated
            print(f"{self.name}: ended after {run.seconds:.0f} s", flush=True)
        steps = our_steps(out)
        runs.keep(out, self.folder / "kept.json")
        metrics = [one.metrics for one in steps]
        row: dict[str, Any] = {
            "first_process_s": first,
            "first_step_s": steps[0].at - begun if steps else 0.0,
        }
        row |= {name: runs.values(metrics[SKIPPED:], f"weights/{name}") for name in UPDATE}
        row |= {"bytes": runs.values(metrics, "weights/bytes")[-1:], "last_metrics": metrics[-1:]}
        with suppress(Exception):
            row["placed"] = {job.name: [job.node_rank, job.gpus] for job in load(out).jobs}
            row["weights"] = str(load(out).weights.transport)
        write_json(self.folder / "made.json", row)
        try:
            return row | {"steady": steady(steps, SKIPPED, None, work.sampled)}
        except ValueError as error:
            raise ValueError(f"{error}\n{run.said(25)}") from None

    def _sharded(self, hosts: Hosts) -> dict[str, Any]:
        out = self.folder / "sharded.json"
        own = ["--size", "0.6B", "--eager"] if self.gpu else ["--cpu"]
        own = ["-m", "benchmarks.gpu.sharded", *own, "--micro-batches", "4", "--out", str(out)]
        start = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--multi_gpu"]
        start += ["--mixed_precision", "no"]
        commands = [[*start, *own]]
        if hosts:
            start += ["--num_machines", str(len(hosts)), "--main_process_ip", hosts[0].address]
            start += ["--main_process_port", "29500", "--rdzv_backend", "static"]
            commands = [
                host.command(*start, "--machine_rank", str(rank), *own) for rank, host in enumerate(hosts)
            ]
        logs = [self.folder / f"rank{rank}.log" for rank in range(len(commands))]
        ranks = [LimitedRun(command, log, self._env()) for command, log in zip(commands, logs)]
        try:
            codes = [rank.end(self.limit_s) for rank in ranks]
        finally:
            self.terminated = any(rank.terminated for rank in ranks)
            for rank in ranks:
                rank.stop()
        if any(codes) or not out.is_file():
            raise RuntimeError(f"exit status {codes}\n" + "\n".join(rank.said(20) for rank in ranks))
        return {"sharded": json.loads(out.read_text())["figures"], "total_s": ranks[0].seconds}


class Found:
    """Rows of all rounds, and medians over them."""

    def __init__(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self.rows = rows

    def median(self, arm: str, *keys: str) -> float | None:
        """Of a value, or of a list of values, of every round; None without any."""
        values: list[float] = []
        for row in self.rows.get(arm, ()):
            found: Any = row
            for key in keys:
                found = found[key]
            values += found if isinstance(found, list) else [found]
        return statistics.median(values) if values else None

    def ratio(self, one: str, other: str, *keys: str) -> float | None:
        """Of one arm's value to another's; None unless both are there."""
        first, second = self.median(one, *keys), self.median(other, *keys)
        return first / second if first is not None and second else None


def figures_of(found: Found, gpu: bool) -> Iterator[Figure]:
    """What every arm measured, and what several hosts and Ray cost; goals are for cards."""
    steady_rate, step_ms = ("steady", "trained_per_s"), ("sharded", "an optimizer step", "value")
    for arm in found.rows:
        if (rate := found.median(arm, *steady_rate) if not arm.endswith("step") else None) is not None:
            yield Figure(f"{arm}: samples trained", rate, "1/s")
            for name, key in (("paused by an update", "max_paused_s"), ("a whole update", "total_s")):
                yield Figure(f"{arm}: {name}, median", 1e3 * (found.median(arm, key) or 0.0), "ms")
            yield Figure(f"{arm}: to the first process", found.median(arm, "first_process_s") or 0.0, "s")
            yield Figure(f"{arm}: to the first step", found.median(arm, "first_step_s") or 0.0, "s")
        if arm.endswith("step"):
            yield Figure(f"{arm}: sharded optimizer step", found.median(arm, *step_ms) or 0.0, "ms")
    for arm in ("ray", "two_hosts", "two_nodes"):
        if (rate := found.ratio(arm, "local", *steady_rate)) is not None:
            goal = RATE_GOAL if gpu and arm == "ray" else None
            yield at_least(f"{arm} / local: samples trained", rate, "x", goal)
        if (pause := found.ratio(arm, "local", "max_paused_s")) is not None:
            yield at_most(f"{arm} / local: paused by an update", pause, "x", PAUSE_GOAL if gpu else None)
        for what in ("process", "step"):
            ours, plain = (found.median(one, f"first_{what}_s") for one in (arm, "local"))
            if ours is not None and plain is not None:
                goal = START_GOAL_S if gpu and arm == "ray" else None
                yield at_most(f"{arm} beyond local: to the first {what}", ours - plain, "s", goal)
        if (step := found.ratio(f"{arm}_step", "step", *step_ms)) is not None:
            yield at_most(f"{arm} / one host: sharded step", step, "x", STEP_GOAL if gpu else None)


def main() -> int:
    options = command_line(__doc__, arms=ARMS)
    gpu, work = options.hardware == "gpu", options.work.absolute()
    if gpu:
        need_cuda("benchmarks.gpu.several_hosts", "--hardware cpu")
    if find_spec("ray") is None:
        print("benchmarks.gpu.several_hosts needs ray: pip install -e '.[ray]'", file=sys.stderr)
        return 2
    runs.leave_in_order()
    # Memory of a virtual machine may grow with use; Ray's monitor would kill before it has.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    out = options.out or (RESULTS / "gpu_several_hosts.json" if gpu else work / "gpu_several_hosts.json")
    wanted = [(number, name) for number in range(options.rounds) for name in options.arms or ARMS]
    files = {one: work / f"{one[1]}.{one[0]}.json" for one in wanted}
    left = [one for one in wanted if not files[one].is_file()]
    end = time.monotonic() + options.limit
    workload = WORKLOADS[WORK[options.hardware]]
    if left:
        subprocess.run([sys.executable, "-c", WARMS], check=True)
    model = model_in(workload, work / "model") if left else work
    while left:
        limit_s = min(options.arm_limit, end - time.monotonic() - STOP_S)
        number, name = one = left.pop(0)
        if limit_s < LEAST_S:
            print(f"{name}: no time is left", flush=True)
            continue
        arm = Arm(options, name, work / f"{name}.{number}", limit_s)
        with runs.survived(name):
            write_json(files[one], arm.run(model))
        if arm.terminated:
            break
    rows: dict[str, list[dict[str, Any]]] = {}
    for number, name in wanted:
        if files[number, name].is_file():
            rows.setdefault(name, []).append(json.loads(files[number, name].read_text()))
    settings = {"hardware": options.hardware, "workload": vars(workload), "no namespaces": no_namespaces()}
    settings |= {"cards": visible_cards() if gpu else [], "rounds": options.rounds, "skipped": SKIPPED}
    missed = report("gpu_several_hosts", figures_of(Found(rows), gpu), settings, out)
    write_json(out, json.loads(out.read_text()) | {"rows": rows, "cores": len(os.sched_getaffinity(0))})
    return 1 if missed or not set(options.arms or ARMS) <= set(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
