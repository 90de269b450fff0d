"""Samples trained per second, end to end: this project beside TRL's asynchronous trainer, on the same work.

    python -m benchmarks.gpu.trl [--hardware gpu|cpu] [--only ARM ...] [--steps 12] [--limit 525.0]
                                 [--work results/gpu_trl] [--out FILE] [key=value ...]

Two cards, one for the engine (vLLM on both sides) and one for the trainer; `trl_workload.py` has the work: a
Qwen3-1.7B with random weights, prompts of 518 tokens, completions of 512, groups of 8, optimizer steps of 256
texts that are at most 4 updates old, 512 requests in flight. Arms:

- `ours`: `pipelinerl.launch` with its defaults; only keys of the work are given. `unshared`: without shared
  prefixes.
- `trl`: TRL's AsyncGRPO with its defaults and a vLLM with its own, one HTTP process. `trl_tuned`: four of
  them, and 8,192 tokens in a batch.

TRL runs in an environment of its own: `TRL_PYTHON` is its interpreter (this one if it is not set), `TRL_PATH`
what it needs in PYTHONPATH. Of each arm the first steps do not count (compilation, and what was sampled
meanwhile); of the `--steps` after them the mean rate is compared, of texts trained or of texts sampled,
whichever is lower: a trainer that works off what was sampled before is faster than it can stay. Requests of
one length end in waves, and so steps come in waves where the engine is the slower side: the median of single
steps stands beside it. Both engines are looked at twice a second, through vLLM's own metrics.

`--limit` seconds are for all arms that are run; what an arm leaves is for those after it. One that reaches
its end counts with the steps that it has made. Its file in `--work` is written at once; arms that have a
file there are not run again. `key=value` are for the arms of this project. `--hardware cpu` rehearses
everything at a tiny size with the embedded engine.
"""

import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, ROOT, Figure, at_least, command_line, machine, report, write_json
from benchmarks._processes import Server, started
from benchmarks.gpu import runs
from benchmarks.gpu.cards import need_cuda, visible_cards
from benchmarks.gpu.runs import LimitedRun
from benchmarks.gpu.steady import EngineWatch, Step, our_steps, steady, trl_steps
from benchmarks.gpu.trl_workload import WORKLOADS, Workload
from pipelinerl.base.errors import ConfigError
from pipelinerl.config.files import load
from pipelinerl.engines.vllm.options import flag, serve_env

STOP_S = 15.0
"""What an arm gets to end, of its share of the limit."""
PORT = 18_100
GOALS = {"trl": 3.5, "trl_tuned": 3.0}
GOAL, TRAINER_GOAL = 60.0, 1.8


@dataclass(frozen=True)
class Arm:
    """One row of the table."""

    skipped: int
    """Steps before the clock starts. TRL compiles nothing, so nothing was sampled ahead before its first."""
    overrides: tuple[str, ...] = ()
    """Of this project's run."""
    flags: Mapping[str, Any] | None = None
    """Of the vLLM beside TRL; None: an arm of this project."""


ARMS = {
    "ours": Arm(6),
    "trl": Arm(2, flags={}),
    "unshared": Arm(6, ("finetune.share_prefixes=false",)),
    "trl_tuned": Arm(2, flags={"api-server-count": 4, "max-num-batched-tokens": 8192}),
}
"""In an order in which two neighbours fit into one call of a machine."""


def make_model(work: Workload, folder: Path) -> None:
    """Random weights in bfloat16, with the small tokenizer."""
    import torch
    from transformers import Qwen3ForCausalLM

    from benchmarks.gpu.served import TOKENIZER, model_config, model_folder

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(model_config(work.model))
    model.bfloat16().save_pretrained(folder)
    model_folder(work.model, folder)
    shutil.copy(TOKENIZER / "chat_template.jinja", folder)


def model_in(work: Workload, folder: Path) -> Path:
    """The model, made unless it is there; by a process of its own, whose memory on the card is free then."""
    return made_once(make_model, work, folder)


def made_once(make: Callable[[Any, Path], None], what: Any, folder: Path) -> Path:
    """The folder, into which `make` has put a model of `what` now or earlier."""
    if not (folder / "chat_template.jinja").is_file():
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(what, folder))
        maker.start()
        maker.join()
        if maker.exitcode:
            raise SystemExit(f"the model could not be made: exit status {maker.exitcode}")
    return folder


def overrides(hardware: str, work: Workload, model: Path) -> list[str]:
    """What this project has to be told of the work; everything else stays at its default."""
    serving = "engine.max_model_len" if hardware == "cpu" else "vllm_config.vllm_kwargs.max_model_len"
    return [
        f"hardware={hardware}",
        f"model_path={model}",
        "dataset_loader=benchmarks.gpu.trl_rollouts.load_problems",
        f"dataset_loader_params={{workload:{hardware}}}",
        "train_dataset_names=[train]",
        "actor.rollout_policy=benchmarks.gpu.trl_rollouts.generate_rollout",
        f"actor.llm_max_rollouts={work.in_flight}",
        f"llm.parameters.max_tokens={work.sampled}",
        "llm.parameters.ignore_eos=true",
        f"{serving}={work.context}",
        f"max_lag={work.updates * work.texts}",
        "eval_every_n_versions=0",
        f"finetune.attempts={work.group}",
        f"finetune.gradient_accumulation_passes={work.texts}",
        f"finetune.seq_length={work.row}",
        f"finetune.learning_rate={work.learning_rate}",
        "finetune.lr_scheduler_type=constant",
        "finetune.num_warmup_steps=0",
        "finetune.save_checkpoint_steps=100000",
    ]


class Trial:
    """Runs one arm to its end."""

    def __init__(self, hardware: str, name: str, folder: Path, steps: int, limit_s: float) -> None:
        self.hardware, self.name, self.arm, self.work = hardware, name, ARMS[name], WORKLOADS[hardware]
        self.folder = folder
        self.wanted, self.limit_s = self.arm.skipped + steps, limit_s
        self.terminated = False
        self._watch: EngineWatch | None = None

    def run(self, model: Path, given: Sequence[str]) -> dict[str, Any]:
        """The arm's row. ValueError, with the end of its log, if it made too few steps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = time.time()
        ran, steps = self._ours(model, given) if self.arm.flags is None else self._trl(model)
        row = {
            "arm": self.name,
            "overrides": list(self.arm.overrides),
            "flags": self.arm.flags,
            "work": asdict(self.work),
            "wanted_steps": self.wanted,
            "first_step_s": steps[0].at - begun if steps else None,
            "all_steps": [[one.at - begun, one.texts, one.trainer_s] for one in steps],
            "last_metrics": steps[-1].metrics if steps else {},
            "engine_looks": [] if self._watch is None else self._watch.looks,
            "total_s": ran.seconds,
            "machine": machine(),
        }
        write_json(self.folder / "made.json", row)
        try:
            return row | {"steady": steady(steps, self.arm.skipped, self._watch, self.work.sampled)}
        except ValueError as error:
            raise ValueError(f"{error}\n{ran.said(25)}") from None

    def _ours(self, model: Path, given: Sequence[str]) -> tuple[LimitedRun, list[Step]]:
        out = runs.fresh(self.folder / "run")
        words = [*overrides(self.hardware, self.work, model), *self.arm.overrides, *given]
        run = LimitedRun(runs.launcher(out, words), self.folder / "run.log", on_loopback())

        def enough() -> bool:
            if self._watch is None:
                with suppress(ConfigError):  # until the launcher has written where engines are
                    self._look_at(*(job.url for job in load(out).jobs if job.kind == "actor_llm"))
            return len(our_steps(out)) >= self.wanted

        self._wait(run, enough)
        runs.keep(out, self.folder / "kept.json")
        return run, our_steps(out)

    def _trl(self, model: Path) -> tuple[LimitedRun, list[Step]]:
        lines = self.folder / "steps.jsonl"
        lines.unlink(missing_ok=True)
        python, path = os.environ.get("TRL_PYTHON", sys.executable), os.environ.get("TRL_PATH", "")
        options = ["--model", str(model), "--hardware", self.hardware, "--out", str(lines)]
        options += ["--url", f"http://127.0.0.1:{PORT}", "--steps", str(self.wanted)]
        env = on_loopback() | {"PYTHONPATH": os.pathsep.join([*filter(None, [path]), str(ROOT)])}
        if self.hardware == "gpu":
            env |= {"CUDA_VISIBLE_DEVICES": visible_cards()[1]}
        engine = self._engine(model)
        with started(engine):
            self._look_at(engine.url)
            # At once, since it waits for the engine itself: both take their time to start.
            command = [python, "-m", "benchmarks.gpu.trl_peer", *options]
            run = LimitedRun(command, self.folder / "trainer.log", env)

            def enough() -> bool:
                if engine.process.poll() is not None:
                    raise RuntimeError(f"TRL's engine ended:\n{engine.said(25)}")
                return len(trl_steps(lines, self.work)) >= self.wanted

            self._wait(run, enough)
        return run, trl_steps(lines, self.work)

    def _engine(self, model: Path) -> Server:
        """TRL's, on the first card."""
        assert self.arm.flags is not None
        log = self.folder / "engine.log"
        if self.hardware == "cpu":
            words = ["--model", str(model), "--port", str(PORT), "--max-num-seqs", str(self.work.in_flight)]
            words += ["--max-model-len", str(self.work.context)]
            argv = [sys.executable, "-m", "pipelinerl.engines.cpu", *words]
            return Server(argv, PORT, log, os.environ | {"OMP_NUM_THREADS": "1"})
        flags = {
            "host": "127.0.0.1",
            "port": PORT,
            "dtype": "bfloat16",
            "max-model-len": self.work.context,
            "max-num-seqs": self.work.in_flight,
            "weight-transfer-config": {"backend": "nccl"},
            **self.arm.flags,
        }
        # `vllm serve`, as TRL's documents have it.
        argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        argv += [word for name, value in flags.items() for word in flag(name, value)]
        return Server(argv, PORT, log, {**on_loopback(), **serve_env([visible_cards()[0]])})

    def _look_at(self, *urls: str) -> None:
        self._watch = EngineWatch(*urls)
        self._watch.start()

    def _wait(self, run: LimitedRun, enough: Callable[[], bool]) -> None:
        try:
            run.until(enough, self.limit_s)
        finally:
            if self._watch is not None:
                self._watch.end()
            run.stop()
            self.terminated = run.terminated
            print(f"{self.name}: ended after {run.seconds:.0f} s", flush=True)


def on_loopback() -> dict[str, str]:
    """The environment, such that nothing looks for a network."""
    fixed = {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
    return {**os.environ, **fixed, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def figures_of(found: Mapping[str, Mapping[str, Any]], gpu: bool) -> Iterator[Figure]:
    """Every arm's, and how this project compares by default; goals are for two cards."""
    for name, row in found.items():
        one = row["steady"]
        goal = GOAL if gpu and name == "ours" else None
        yield at_least(f"{name}: samples trained", one["samples_per_s"], "1/s", goal)
        yield Figure(f"{name}: trained in the steps that count", one["trained_per_s"], "1/s")
        yield Figure(f"{name}: the same, median of steps", one["samples_per_s_median"], "1/s")
        yield Figure(f"{name}: trainer alone", one["trainer_samples_per_s"], "1/s")
        yield Figure(f"{name}: a step of the trainer", one["trainer_s"], "s")
        if "engine_idle_share" in one:
            yield Figure(f"{name}: engine without requests", one["engine_idle_share"], "share")
            yield Figure(f"{name}: sampled", one["engine_tokens_per_s"], "tok/s")
        yield Figure(f"{name}: steps that count", one["steps"], "steps")
    ours = found.get("ours")
    for name, row in found.items():
        if ours is not None and name != "ours":
            whole, alone = (
                ours["steady"][rate] / row["steady"][rate]
                for rate in ("samples_per_s", "trainer_samples_per_s")
            )
            yield at_least(f"ours / {name}", whole, "x", GOALS.get(name) if gpu else None)
            goal = TRAINER_GOAL if gpu and name in GOALS else None
            yield at_least(f"ours / {name}, trainers alone", alone, "x", goal)


def main() -> int:
    options = command_line(__doc__, only=ARMS)
    gpu, work = options.hardware == "gpu", options.work.absolute()
    if gpu:
        need_cuda("benchmarks.gpu.trl", "--hardware cpu")
    runs.leave_in_order()
    out = options.out or (RESULTS / "gpu_trl.json" if gpu else work / "gpu_trl.json")
    rows = {name: work / f"{name}.json" for name in ARMS}
    left = [name for name in options.only or ARMS if not rows[name].is_file()]
    end = time.monotonic() + options.limit
    model = model_in(WORKLOADS[options.hardware], work / "model") if left else work
    while left:
        limit_s = (end - time.monotonic()) / len(left) - STOP_S
        name = left.pop(0)
        shutil.rmtree(work / name, ignore_errors=True)
        trial = Trial(options.hardware, name, work / name, options.steps, limit_s)
        with runs.survived(name):
            write_json(rows[name], trial.run(model, options.overrides))
        if trial.terminated:
            break
    found = {name: json.loads(path.read_text()) for name, path in rows.items() if path.is_file()}
    settings = {"hardware": options.hardware, **asdict(WORKLOADS[options.hardware])}
    missed = report("gpu_trl", figures_of(found, gpu), settings, out)
    parts = ("steady", "first_step_s", "total_s", "all_steps", "last_metrics")
    kept = {name: {part: row[part] for part in parts} for name, row in found.items()}
    write_json(out.with_name(f"{out.stem}_rows.json"), kept)
    return 1 if missed or not set(options.only or ARMS) <= set(found) else 0


if __name__ == "__main__":
    sys.exit(main())
