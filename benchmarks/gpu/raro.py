"""RARO at its reference values with an instruction model on cards, beside more SFT and verifier RL.

    python -m benchmarks.gpu.raro [--hardware gpu|cpu] [--model DIR] [--only ARM ...] [--seeds 0 1 2]
                                  [--steps STEPS] [--per-card 2] [--limit 560.0]
                                  [--work results/gpu_raro] [--out FILE] [key=value ...]

Chained arithmetic in the `full` prompts with an instruction model (`--model`, a folder such as
`pipelinerl.pretrained` writes), which `benchmarks.gpu.raro_start` teaches the format once (`--only start`
does that alone): 16 attempts, 16 verdicts, weights 1/9 and 8/9, tau 0.55 and 0.6, KL 1e-3. The same values on
Countdown in miniature: `benchmarks.raro --game reference`, on a CPU. RL arms have equal policy completions;
more SFT goes on far longer, and counts with its best version by validation. The ablations `no_tie`,
`no_replay` and `half` (weights of 1/2 each) have the first seed, unless `--only` names them.

A run has one card for engine and trainer; `--per-card` of them share it, and every visible card is used.
Finished runs are not repeated and those that `--limit` seconds ended go on, so the same command continues;
the table of what is there is written after every run, and at the end the metrics of all runs beside it.
`key=value` are for every run. `--hardware cpu` rehearses at a tiny size with the embedded engine.
"""

import argparse
import json
import os
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._figures import RESULTS, ROOT, command_line, machine
from benchmarks._raro_arithmetic import write_files
from benchmarks._raro_figure import draw
from benchmarks._raro_runs import Step, arms_of, read, write
from benchmarks._raro_table import Arm, RunResult, lines, table
from benchmarks.gpu.raro_start import MARK
from benchmarks.gpu.runs import KEPT_BYTES, STOP_S, LimitedRun, launcher, leave_in_order, survived
from benchmarks.gpu.side_by_side import UNCOMPILED, Task, on_a_card, run_all, slots
from benchmarks.gpu.trl import on_loopback

ARMS = arms_of("raro")
COMPARED = ("raro", "rlvr", "sft")
"""The slow runs first, so that they do not end alone."""
ABLATIONS = ("no_tie", "no_replay", "half")
ATTEMPTS = 16
LEAST_S = 150.0
"""With less left no run is started: its engine would hardly be up."""
KV_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Setting:
    """What is played, and for how long."""

    step: Step
    steps: int
    """Optimizer steps of the RL arms."""
    sft_steps: int
    sizes: dict[str, int]
    evaluations: int = 4
    sft_evaluations: int = 12
    overrides: tuple[str, ...] = ()
    sft_overrides: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    """Arguments of the supervised start."""


LENGTHS = ("raro.max_answer_tokens=8", "raro.max_question_tokens=40")
ON_CARDS = Setting(
    step=Step(completions=4 * ATTEMPTS, verdicts=16, attempts=ATTEMPTS),
    steps=80,
    sft_steps=800,
    sizes={"train": 8000, "val": 300, "test": 1000},
    overrides=(
        "finetune.num_warmup_steps=3",
        "finetune.lr_scheduler_type=constant_with_warmup",
        *LENGTHS,
        "raro.policy.max_tokens=96",
        "raro.critic.max_tokens=128",
        "finetune.learning_rate=3e-5",
        "vllm_config.vllm_kwargs.max_model_len=512",
    ),
    sft_overrides=("finetune.learning_rate=5e-5", "finetune.lr_scheduler_type=cosine"),
)
REHEARSED = Setting(
    step=Step(completions=8, verdicts=2, attempts=4),
    steps=2,
    sft_steps=4,
    sizes={"train": 40, "val": 4, "test": 4},
    evaluations=1,
    sft_evaluations=2,
    overrides=(
        *LENGTHS,
        "raro.policy.max_tokens=12",
        "raro.critic.max_tokens=12",
        "engine.max_model_len=512",
    ),
    start=("--plays", "60", "--questions", "40", "--pack-tokens", "4096", "--look", "4"),
)
"""Without a card. Completions are short, because a model with random weights never ends."""


@dataclass
class Plan:
    """Everything that runs share."""

    hardware: str
    setting: Setting
    work: Path
    model: Path | None
    given: list[str] = field(default_factory=list)

    @property
    def start(self) -> Path:
        """The model that every arm starts from."""
        return self.work / "start"

    def run_folder(self, arm: str, seed: int) -> Path:
        return self.work / f"{arm}_{seed}"

    def steps(self, arm: Arm) -> int:
        return self.setting.sft_steps if arm.best_validation else self.setting.steps

    def is_finished(self, arm: str, seed: int) -> bool:
        mark = self.run_folder(arm, seed) / "launcher" / "completed.json"
        return mark.is_file() and int(json.loads(mark.read_text())["steps"]) >= self.steps(ARMS[arm])

    def unfinished(self, queue: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Those of the runs, by arm and seed, that are not at their end."""
        return [key for key in queue if not self.is_finished(*key)]

    def overrides(self, name: str, seed: int) -> list[str]:
        """A run's configuration."""
        arm, setting = ARMS[name], self.setting
        texts, steps = setting.step.texts(arm), self.steps(arm)
        times = setting.sft_evaluations if arm.best_validation else setting.evaluations
        every = -(-steps // times) * texts
        own = [
            f"+domain={arm.domain}",
            f"hardware={self.hardware}",
            f"model_path={self.start}",
            f"seed={seed}",
            f"finetune.max_train_steps={steps}",
            f"finetune.save_checkpoint_steps={max(1, steps // 8)}",
            "finetune.keep_intermediate_checkpoints=false",
            f"eval_every_n_versions={every}",
            "test_dataset_names=[val,test]",
            *setting.step.overrides(arm),
            *(self.on_a_card() if self.hardware == "gpu" else ()),
            *self.questions(),
            *setting.overrides,
        ]
        if arm.best_validation:  # nothing is sampled between two evaluations
            own += ["max_lag=null", f"finetune.weight_update_interval={every}"]
            own += [f"preprocess.max_ready_samples_per_lead={texts}", *setting.sft_overrides]
        return [*own, *arm.overrides, *self.given]

    def on_a_card(self) -> list[str]:
        """Engine and trainer beside each other, and beside those of other runs."""
        return [*on_a_card(KV_BYTES, http_processes=4), *UNCOMPILED]

    def questions(self) -> list[str]:
        """Where questions come from, and how they are asked."""
        files = ", ".join(f"{split}: {self.work}/data/{split}.jsonl" for split in self.setting.sizes)
        return ["raro.data.source=jsonl", "raro.prompt_set=full", f"raro.data.files={{{files}}}"]


def make_start(plan: Plan, end: float) -> bool:
    """Files and the supervised start, unless they are there; False if it did not get there."""
    if (plan.start / MARK).is_file():
        return True
    if plan.model is None:
        raise SystemExit("give --model, the folder of an instruction-tuned model")
    write_files(plan.work / "data", plan.setting.sizes)
    words = ["--model", str(plan.model), "--out", str(plan.start), *plan.setting.start]
    command = [sys.executable, "-m", "benchmarks.gpu.raro_start", *words]
    # Compiling would take longer than these few steps.
    env = on_loopback() | {
        "TORCH_COMPILE_DISABLE": "1",
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
    }
    run = LimitedRun(command, plan.work / "start.log", env)
    status = run.end(end - time.monotonic())
    print(f"start: status {status} after {run.seconds:.0f} s\n{run.said(2)}", flush=True)
    return status == 0


def task_of(plan: Plan, out: Path, name: str, seed: int) -> Task:
    """A run of the launcher; the table is written anew behind it."""
    folder = plan.run_folder(name, seed)

    def keep(status: int) -> bool:
        done = status == 0 and plan.is_finished(name, seed)
        if done:
            write_all(plan, out)
        return done

    command = launcher(folder, plan.overrides(name, seed))
    return Task(f"{name} seed {seed}", command, folder.with_suffix(".log"), keep)


def results_of(plan: Plan) -> list[RunResult]:
    """Every finished run in the folder."""
    found = []
    for path in sorted(plan.work.glob("*_*/launcher/completed.json")):
        name, _, seed = path.parents[1].name.rpartition("_")
        if name in ARMS and plan.is_finished(name, int(seed)):
            with survived(f"reading {name} seed {seed}"):
                out, questions = plan.run_folder(name, int(seed)), plan.setting.sizes["test"]
                found.append(read(out, ARMS, name, int(seed), plan.setting.step, questions))
    return found


def keep_metrics(work: Path, path: Path) -> None:
    """Metrics of all runs in `work` and the end of each log, in one file: what is left of a machine."""
    with tarfile.open(path, "w:gz") as kept:
        for one in sorted(work.glob("*/*/metrics.jsonl")):
            kept.add(one, str(one.relative_to(work)))
        for log in sorted(work.glob("**/*.log")):
            end = log.with_suffix(".end")
            end.write_bytes(log.read_bytes()[-KEPT_BYTES:])
            kept.add(end, str(log.relative_to(work)))
            end.unlink()


def write_all(plan: Plan, out: Path) -> list[RunResult]:
    """Table, figure and metrics of what there is."""
    results = results_of(plan)
    mark = plan.start / MARK
    settings = {
        "hardware": plan.hardware,
        "steps": plan.setting.steps,
        "SFT steps": plan.setting.sft_steps,
        "policy completions per step": plan.setting.step.completions,
        "verdicts": plan.setting.step.verdicts,
        "overrides": plan.given,
        "start": json.loads(mark.read_text()) if mark.is_file() else None,
        "machine": machine(),
    }
    write(out, results, ARMS, settings)
    keep_metrics(plan.work, out.with_suffix(".runs.tar.gz"))
    if results:
        draw(results, ARMS, out.with_suffix(".png"))
    return results


def plan_of(options: argparse.Namespace) -> Plan:
    setting = ON_CARDS if options.hardware == "gpu" else REHEARSED
    if options.steps is not None:
        setting = Setting(**{**vars(setting), "steps": int(options.steps)})
    model = None if options.model is None else options.model.absolute()
    return Plan(options.hardware, setting, options.work.absolute(), model, options.overrides)


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv, only=["start", *COMPARED, *ABLATIONS])
    leave_in_order()
    end, plan = time.monotonic() + options.limit, plan_of(options)
    plan.work.mkdir(parents=True, exist_ok=True)
    out = options.out or (RESULTS if options.hardware == "gpu" else plan.work) / "gpu_raro.json"
    wanted = options.only or [*COMPARED, *ABLATIONS]
    once = set() if options.only else set(ABLATIONS)
    queue = [
        (name, seed)
        for name in wanted
        if name != "start"
        for seed in (options.seeds[:1] if name in once else options.seeds)
    ]
    if not make_start(plan, end):
        return 1
    tasks = [task_of(plan, out, *key) for key in plan.unfinished(queue)]
    run_all(tasks, slots(options.hardware, options.per_card), end, LEAST_S - STOP_S)
    left = plan.unfinished(queue)
    results = write_all(plan, out)
    for line in lines(table(results, ARMS), ARMS) if results else []:
        print(line)
    print(f"left: {', '.join(f'{name} {seed}' for name, seed in left) or 'none'}", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
