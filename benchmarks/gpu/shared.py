"""Samples trained per second on one card where samples share prefixes, computed once or for each of them.

    python -m benchmarks.gpu.shared [--size 1.7B] [--works groups critic] [--modes none selective full]
                                    [--ways shared unshared] [--repeats 3] [--budget 480.0] [--eager] [--tiny]
                                    [--out FILE]

The project's own optimizer step (`Learner.accumulate` of every micro-batch, then `apply`) on random weights
of Qwen3's architectures, or of Qwen3.5-4B's decoder (`--size hybrid`), bfloat16 with float32 master weights,
compiled unless `--eager`. Works: `groups` are 32 groups of 8 completions, 512 tokens behind 512 that a group
shares; `critic` are 10 groups of 16 verdicts of 128 tokens behind 1,024. Rows hold 16,384 tokens; of `shared`
ones a token that samples share counts once. Modes are what the backward pass computes again.

Of each mode one model is built, and the ways alternate on it, step by step, after two steps that do not
count; figures are medians. MFU counts 6 N for each token over 990 TFLOP/s: `unique` those that are
computed, `raw` those that samples have. The profile is of the first rows of a step, by kinds of kernels.
What is left after `--budget` seconds is left out; rows are written as they are made. `--tiny` rehearses on
a CPU.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks._figures import Figure, at_least, command_line, report, write_json
from benchmarks._texts import RL, learner_for, random_groups
from benchmarks.gpu import shapes
from benchmarks.gpu.cards import kept_at, need_cuda
from benchmarks.gpu.served import model_config
from benchmarks.gpu.trainer import CHECKPOINTING, KERNELS, PEAK_FLOPS, count, free, profile_step
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.model import prepare_model

WARM_UPS = 2
PROFILED_ROWS = 3
GATHERING = {"gathering": ("index_select", "indexselect", "index_", "gather", "embedding", "scatter")}
"""Beside the kinds that every trainer has: keys of shared tokens are copied, and their gradients summed."""
STATES = {"states": ("gated_delta", "chunk_", "l2norm", "recompute_w_u", "wy_repr")}
"""Of layers of gated DeltaNet, by the names of flash-linear-attention."""
KINDS = {**KERNELS, **STATES, **GATHERING, "optimizer": ("multi_tensor", "adam"), "compiled": ("triton",)}
GOAL, RATIO_GOAL = 70.0, 5.0


@dataclass(frozen=True)
class Work:
    """Samples of one optimizer step; lengths in tokens."""

    groups: int
    texts: int
    prompt: int
    sampled: int
    row: int = 16_384

    @property
    def samples(self) -> int:
        return self.groups * self.texts


WORKS = {"groups": Work(32, 8, 512, 512), "critic": Work(10, 16, 1024, 128)}
TINY = {"groups": Work(4, 4, 24, 24, row=256), "critic": Work(3, 8, 48, 8, row=256)}
MODES = ("none", "selective", "full")
WAYS = ("shared", "unshared")


@dataclass
class Cell:
    """What one way of one work costs in one mode. Seconds of single steps; memory in GB (1e9 bytes)."""

    work: str
    mode: str
    way: str
    samples: int
    rows: int
    unique_tokens: int
    raw_tokens: int
    warm_up_s: list[float] = field(default_factory=list)
    passes_s: list[float] = field(default_factory=list)
    """Forward and backward of all micro-batches."""
    steps_s: list[float] = field(default_factory=list)
    """The same with the optimizer."""
    gradient_norms: list[float] = field(default_factory=list)
    peak_gb: float = 0.0
    profile: dict[str, Any] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> float:
        return self.samples / statistics.median(self.steps_s)

    def mfu_percent(self, parameters: int, tokens: int) -> float:
        """Of the whole step."""
        return 100 * 6 * parameters * tokens / statistics.median(self.steps_s) / PEAK_FLOPS

    def row_of(self, parameters: int) -> dict[str, Any]:
        """All of it, with its rates."""
        return asdict(self) | {
            "samples_per_s": self.samples_per_s,
            "samples_per_s_passes": self.samples / statistics.median(self.passes_s),
            "mfu_unique_percent": self.mfu_percent(parameters, self.unique_tokens),
            "mfu_raw_percent": self.mfu_percent(parameters, self.raw_tokens),
        }


def rows_of(work: Work, vocab: int, shared: bool) -> list[PipelineBatchEncoding]:
    """The micro-batches of a step."""
    texts = random_groups(work.groups, work.texts, work.prompt, work.sampled, vocab)
    return assemble_step(texts, 0, work.row, share=shared)[0]


def build(size: str, mode: str, device: str, compiled: bool) -> PreTrainedModel:
    """A random model, prepared as a run's trainer has it."""
    torch.manual_seed(0)
    config: Any = None
    if size.endswith("hybrid"):
        config = shapes.model_config("hybrid", size == "tiny hybrid").get_text_config(decoder=True)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config or model_config(size)).float()
    return prepare_model(model, device, CHECKPOINTING[mode], compile=compiled)


def size_of(options: Any) -> str:
    """Of the model; a rehearsal has a tiny one of the same kind."""
    if not options.tiny:
        return str(options.size)
    return "tiny hybrid" if options.size == "hybrid" else "tiny"


class Measured:
    """The cells of one mode, all on one model."""

    def __init__(self, options: Any, mode: str, works: Mapping[str, Work]) -> None:
        self.mode, self.device = mode, "cpu" if options.tiny else "cuda"
        model = build(size_of(options), mode, self.device, not (options.eager or options.tiny))
        self.parameters, self.vocab = count(model), model.config.vocab_size
        self.learner: Learner = learner_for(model, bfloat16=not options.tiny)
        self.works = works

    def cells(self, work: str, ways: Sequence[str], repeats: int) -> list[Cell]:
        """Steps of all ways in turn, then a profile of each."""
        found, batches = [], {}
        for way in ways:
            batches[way] = rows_of(self.works[work], self.vocab, way == "shared")
            computed, raw = (
                sum(one.n_computed for one in batches[way]),
                sum(one.n_tokens for one in batches[way]),
            )
            samples = self.works[work].samples
            found.append(Cell(work, self.mode, way, samples, len(batches[way]), computed, raw))
        for turn in range(WARM_UPS + repeats):
            for cell in found:
                self._step(cell, batches[cell.way], turn >= WARM_UPS)
        if self.device == "cuda":
            for cell in found:
                few = batches[cell.way][:PROFILED_ROWS]
                cell.profile = profile_step(partial(self._passes, few), KINDS) | {"rows": len(few)}
                self.learner.apply()
        return found

    def _step(self, cell: Cell, batches: Sequence[PipelineBatchEncoding], counts: bool) -> None:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = self._now()
        self._passes(batches)
        passed = self._now()
        norm = self.learner.apply()
        ended = self._now()
        if not counts:
            cell.warm_up_s.append(round(ended - begun, 3))
            return
        cell.passes_s.append(passed - begun)
        cell.steps_s.append(ended - begun)
        cell.gradient_norms.append(norm)
        if self.device == "cuda":
            cell.peak_gb = max(cell.peak_gb, round(torch.cuda.max_memory_allocated() / 1e9, 2))

    def _passes(self, batches: Sequence[PipelineBatchEncoding]) -> None:
        # As in the loop: targets are prepared on the host for every micro-batch.
        for batch in batches:
            self.learner.accumulate(batch, targets_of(batch, RL), Coefficients())

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def figures_of(rows: Sequence[Mapping[str, Any]], goals: bool) -> Iterator[Figure]:
    """Every cell, shared against unshared in the same mode, and the fastest of both with their goals."""
    fastest: dict[tuple[str, str], float] = {}
    of = {(row["work"], row["mode"], row["way"]): row["samples_per_s"] for row in rows}
    for row in rows:
        work, way = row["work"], row["way"]
        label = f"{work}, {row['mode']}, {way}"
        yield Figure(f"{label}: samples", row["samples_per_s"], "1/s")
        yield Figure(f"{label}: MFU of unique tokens", row["mfu_unique_percent"], "%")
        yield Figure(f"{label}: MFU of raw tokens", row["mfu_raw_percent"], "%")
        yield Figure(f"{label}: peak memory", row["peak_gb"], "GB")
        fastest[work, way] = max(fastest.get((work, way), 0.0), row["samples_per_s"])
        other = of.get((work, row["mode"], "unshared"))
        if way == "shared" and other is not None:
            yield Figure(f"{work}, {row['mode']}: shared / unshared", row["samples_per_s"] / other, "x")
    for (work, way), rate in fastest.items():
        goal = GOAL if goals and (work, way) == ("groups", "shared") else None
        yield at_least(f"{work}: fastest {way}", rate, "1/s", goal)
        if way == "shared" and (work, "unshared") in fastest:
            goal = RATIO_GOAL if goals and work == "critic" else None
            yield at_least(f"{work}: fastest, ratio", rate / fastest[work, "unshared"], "x", goal)


def tried(measure: Callable[[], list[Cell]], what: str) -> list[Cell]:
    """What does not fit into the card's memory, or cannot be compiled, is said; the others go on."""
    try:
        return measure()
    except RuntimeError as error:
        print(f"  {what}: {type(error).__name__}: {str(error)[:600]}", flush=True)
        return []


def main() -> int:
    options = command_line(__doc__, works=WORKS, modes=MODES, ways=WAYS)
    if not options.tiny:
        need_cuda("benchmarks.gpu.shared", "--tiny")
    out = kept_at("gpu_shared", options.out, options.tiny)
    begun, works = time.monotonic(), TINY if options.tiny else WORKS
    # One piece of code serves all rows: modes would otherwise run into the limit of its versions.
    torch._dynamo.config.recompile_limit = 64
    rows: list[dict[str, Any]] = []
    for mode in options.modes:
        measured: Measured | None = None
        for work in options.works:
            passed = time.monotonic() - begun
            if passed > options.budget:
                print(f"  {mode} {work}: left out, {options.budget:g} s are over", flush=True)
                continue
            measured = measured or Measured(options, mode, works)
            cells = tried(partial(measured.cells, work, options.ways, options.repeats), f"{mode} {work}")
            rows += [cell.row_of(measured.parameters) for cell in cells]
            if not cells:  # it holds gradients of half a step
                measured = None
                free()
            write_json(out.with_name(f"{out.stem}_rows.json"), {"rows": rows})
            for row in rows[len(rows) - len(cells) :]:
                told = [
                    row["way"],
                    f"{row['samples_per_s']:.1f} samples/s, first step {row['warm_up_s'][0]} s",
                ]
                print(f"  {mode} {work} {' '.join(told)}: {row['profile'].get('ms')}", flush=True)
            print(f"  {time.monotonic() - begun:.0f} s", flush=True)
        del measured
        free()
    settings: dict[str, Any] = {"size": size_of(options), "repeats": options.repeats}
    settings |= {"compiled": not (options.eager or options.tiny), "torch": torch.__version__}
    settings |= {name: str(works[name]) for name in options.works}
    if not options.tiny:
        settings["card"] = torch.cuda.get_device_name()
    report("gpu_shared", figures_of(rows, size_of(options) == "1.7B"), settings, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
