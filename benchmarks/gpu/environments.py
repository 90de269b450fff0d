"""What SmolLM2 learns in environments of other ecosystems on a card that several runs share.

    python -m benchmarks.gpu.environments [--model results/smollm2] [--hardware gpu|cpu]
        [--domains textarena logic verifiers ifeval coding] [--seeds 0 1] [--steps 60] [--gpu CARD]
        [--per-card 3] [--limit 560.0] [--work results/gpu_environments] [--out FILE] [key=value ...]

Of each domain and seed one run of its GPU profile with `--model`, the folder that
`python -m pipelinerl.pretrained smollm2 DIR` made, without any supervised step: evaluated before, while and
after it trains on problems that training never gives. `--per-card` runs at a time share the card `--gpu`
(every visible one unless given), each with engine and trainer together. textarena plays GuessTheNumber alone,
verifiers the taskset `halving` of `docs/examples/verifiers` in words, ifeval asks one instruction at a time,
and the others have the mixtures of their files in `conf/domain`.

`--limit` seconds are for a call. The row of a finished run goes to `--work` and is not made again; what the
limit ends goes on with the same command. Table and figure (`--out`, `results/gpu_environments.json` beside
the folder of this file) are written anew behind every run, with the metrics of all runs beside them at the
end. `key=value` are for every run; `--hardware cpu` rehearses at a tiny size with the embedded engine.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _learning_figure
from benchmarks._figures import Figure, command_line, report, write_json
from benchmarks._learned import figures_of, panel, row_of, table_of
from benchmarks.environments import find_examples
from benchmarks.gpu import runs
from benchmarks.gpu.raro import keep_metrics
from benchmarks.gpu.side_by_side import UNCOMPILED, Task, on_a_card, run_all, slots

TEXTS = 512
"""Of an optimizer step, 32 problems of 16 attempts."""
EVALUATIONS = 4
"""While a run trains, beside the one before."""
LEAST_S = 150.0
"""With less left no run is started: its engine would hardly be up."""
KV_BYTES = 8 * 2**30
SERVED = "vllm_config.vllm_kwargs.max_model_len"


@dataclass(frozen=True)
class Trial:
    """A domain that a small instruction model finds rewards in."""

    metric: str
    """What is shown of it, from 0 to 1."""
    tokens: int
    """Of a completion at most."""
    context: int
    overrides: tuple[str, ...] = ()
    tiny: tuple[str, ...] = ()
    """Beside them in a rehearsal."""


TINY = ("dataset_loader_params.test_count=4",)
TRIALS = {
    "textarena": Trial(
        "reward",
        tokens=12,
        context=1024,
        overrides=(
            "dataset_loader_params.games={Nim-v0: null, TicTacToe-v0-train: null}",
            "dataset_loader_params.test_count=128",
        ),
        tiny=TINY,
    ),
    "logic": Trial("success", tokens=32, context=768, tiny=("dataset_loader_params.test_count=1",)),
    "verifiers": Trial(
        "reward_halves",
        tokens=24,
        context=256,
        overrides=(
            "dataset_loader_params.env.taskset={id: halving, words: true}",
            "dataset_loader_params.count=2000",
            "dataset_loader_params.test_count=192",
        ),
        tiny=TINY,
    ),
    "ifeval": Trial(
        "success",
        tokens=128,
        context=512,
        overrides=("dataset_loader_params.max_constraints=1",),
        tiny=TINY,
    ),
    "coding": Trial(
        "success",
        tokens=96,
        context=512,
        overrides=("dataset_loader_params.test_count=128", "coding.max_tests=2", "coding.timeout_s=4.0"),
        tiny=TINY,
    ),
}


def overrides_of(options: argparse.Namespace, domain: str, seed: int) -> list[str]:
    """What a run is told beyond its domain's profile."""
    trial, gpu = TRIALS[domain], options.hardware == "gpu"
    texts, attempts = (TEXTS, 16) if gpu else (16, 4)
    every = max(1, options.steps // EVALUATIONS) * texts
    context = f"{SERVED if gpu else 'engine.max_model_len'}={trial.context}"
    return [
        f"+domain={domain}",
        f"hardware={options.hardware}",
        f"model_path={options.model}",
        f"seed={seed}",
        *(on_a_card(KV_BYTES, http_processes=2) if gpu else ["actor.llm_max_rollouts=8"]),
        *(UNCOMPILED if gpu else ["finetune.seq_length=2048"]),
        context,
        f"llm.parameters.max_tokens={trial.tokens}",
        f"test_llm.parameters.max_tokens={trial.tokens}",
        f"max_lag={4 * texts}",
        f"eval_every_n_versions={every}",
        f"finetune.attempts={attempts}",
        f"finetune.gradient_accumulation_passes={texts}",
        f"finetune.max_train_steps={options.steps}",
        "finetune.learning_rate=1e-5",
        "finetune.lr_scheduler_type=constant",
        "finetune.num_warmup_steps=0",
        "finetune.save_checkpoint_steps=20",
        "finetune.keep_intermediate_checkpoints=false",
        "observe.rollout_page=false",
        "wandb.use_wandb=false",
        *trial.overrides,
        *(() if gpu else trial.tiny),
        *options.overrides,
    ]


def rows_in(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Rows of finished runs by domain, in the order that was asked for."""
    found: dict[str, list[dict[str, Any]]] = {}
    for domain in options.domains:
        paths = [row_file(options, domain, seed) for seed in options.seeds]
        if there := [json.loads(path.read_text()) for path in paths if path.is_file()]:
            found[domain] = there
    return found


def row_file(options: argparse.Namespace, domain: str, seed: int) -> Path:
    return Path(options.work / f"{domain}_{seed}.json")


def write_all(options: argparse.Namespace) -> None:
    """Table and figure of what there is; nothing before the first run has ended."""
    found = rows_in(options)
    if not found:
        return
    tables = {domain: table_of(rows) for domain, rows in found.items()}
    figures: list[Figure] = []
    for domain, rows in found.items():
        figures += figures_of(rows, tables[domain], f"{domain}: ")
    settings = {
        "hardware": options.hardware,
        "steps": options.steps,
        "seeds": {domain: [row["seed"] for row in rows] for domain, rows in found.items()},
        "runs at a time on a card": options.per_card,
    }
    report("gpu_environments", figures, settings, options.out)
    kept = json.loads(options.out.read_text()) | {"overrides": options.overrides}
    write_json(options.out, kept | {"table": tables, "rows": found})
    panels = {domain: panel(rows, TRIALS[domain].metric) for domain, rows in found.items()}
    _learning_figure.draw(panels, options.out.with_suffix(".png"), "percent, held-out problems")


def task_of(options: argparse.Namespace, domain: str, seed: int) -> Task:
    """One run; its row is kept and the table written behind it."""
    name = f"{domain}_{seed}"
    out, given = options.work / name, overrides_of(options, domain, seed)

    def keep(status: int) -> bool:
        if status == 0:
            with runs.survived(name):
                write_json(row_file(options, domain, seed), row_of(seed, out) | {"overrides": given})
                write_all(options)
        return row_file(options, domain, seed).is_file()

    return Task(name, runs.launcher(out, given), options.work / f"{name}.log", keep)


def wanted(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Domains and seeds without a row; the first seed of every domain before the second."""
    asked = [(domain, seed) for seed in options.seeds for domain in options.domains]
    return [key for key in asked if not row_file(options, *key).is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv, domains=TRIALS)
    end = time.monotonic() + options.limit
    if (said := runs.no_model(options.model)) is not None:
        print(said)
        return 2
    runs.settle(options, "gpu_environments")
    find_examples()
    tasks = [task_of(options, *key) for key in wanted(options)]
    run_all(
        tasks, slots(options.hardware, options.per_card), end, LEAST_S if options.hardware == "gpu" else 0.0
    )
    write_all(options)
    keep_metrics(options.work, options.out.with_suffix(".runs.tar.gz"))
    left = wanted(options)
    print(f"left: {', '.join(f'{domain} {seed}' for domain, seed in left) or 'none'}", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
