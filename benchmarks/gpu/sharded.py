"""The sharded trainer on several GPUs of one host: tokens per second and GPU, memory, gathering, saving.

    accelerate launch --num_processes 2 -m benchmarks.gpu.sharded [--size 4B] [--mode full] [--eager]
                      [--replicated] [--keep-gathered] [--save] [--micro-batches 1] [--rounds 5] [--repeats 4]
                      [--tokens 16384] [--text 2048] [--seq-parallel 1] [--cpu] [--out FILE]

Each rank trains packs of its own as in `benchmarks.gpu.trainer`, or `--seq-parallel` ranks one together, of
`--tokens` tokens in texts of `--text`; with `--replicated` every rank holds
everything and gradients are summed, for comparison: the step with sums in buckets beside the last backward
pass (as the trainer makes it), with the same buckets behind it, with one blocking sum after the other, and
without any sum, in turns, `--rounds` times. `--save` times the collection of a checkpoint as well.
`--cpu` rehearses it with a tiny model and short packs.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from benchmarks._figures import Figure, command_line, report
from benchmarks._texts import RL, learner_for
from benchmarks.gpu.cards import kept_at, need_cuda
from benchmarks.gpu.trainer import (
    CHECKPOINTING,
    PEAK_FLOPS,
    SIZES,
    build,
    count,
    micro_batch,
    timed,
)
from pipelinerl.finetune.checkpoints import collect_tensors
from pipelinerl.finetune.gradient_sums import GradientSums
from pipelinerl.finetune.ranks import Ranks, join_ranks
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.model import prepare_model

BESIDE, BEHIND, SINGLE, NONE = "buckets beside the backward", "buckets behind it", "single sums", "no sums"
"""Ways of summing gradients over ranks that hold all weights each."""


class SingleSums(GradientSums):
    """One blocking sum for each gradient, behind the backward pass: what buckets are compared with."""

    def __init__(self, ranks: Ranks, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(ranks, [])
        self._own = parameters

    def begin(self) -> None:
        pass

    def finish(self) -> None:
        self._ranks.gather(None)
        for parameter in self._own:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


def ways_compared(learner: Learner, step: Callable[[bool], None], rounds: int) -> list[Figure]:
    """Medians of whole steps; `step` takes whether its last micro-batch is marked as such."""
    parameters = [p for group in learner.optimiser.param_groups for p in group["params"]]
    single = SingleSums(learner.ranks, parameters)
    usual, on_gpu = learner.sums, learner.device.type == "cuda"
    ways = {BESIDE: usual, BEHIND: usual, SINGLE: single, NONE: None}
    times: dict[str, list[float]] = {way: [] for way in ways}
    peaks = dict.fromkeys(ways, 0)
    for round_ in range(rounds + 1):
        for way, sums in ways.items():
            learner.sums = sums
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            learner.ranks.gather(None)
            seconds = timed(partial(step, way == BESIDE), 1)
            # Who is slowest decides: a step ends when all ranks have the sums.
            slowest = max(learner.ranks.gather(seconds))
            if round_ > 0:  # the first one of each warms up
                times[way].append(slowest)
            peaks[way] = max(peaks[way], torch.cuda.max_memory_allocated() if on_gpu else 0)
    learner.sums = usual
    found = {way: 1e3 * statistics.median(seconds) for way, seconds in times.items()}
    figures = [Figure("gradients", sum(p.nbytes for p in parameters) / 1e9, "GB")]
    figures += [Figure(f"a step, {way}", ms, "ms") for way, ms in found.items()]
    figures += [
        Figure(f"what sums add, {way}", found[way] - found[NONE], "ms") for way in (BESIDE, BEHIND, SINGLE)
    ]
    return figures + [Figure(f"peak memory, {way}", peak / 1e9, "GB") for way, peak in peaks.items()]


def attended(model: PreTrainedModel) -> int:
    """Numbers of a token's queries in all layers.

    Attention forward and backward takes 6 times as many operations for each token of its text, of which a
    token sees half on average.
    """
    config = model.config
    return int(config.num_hidden_layers * config.num_attention_heads * config.head_dim)


def main() -> int:
    options = command_line(__doc__, size=(*SIZES, "8B"), mode=CHECKPOINTING)
    if not options.cpu:
        need_cuda("benchmarks.gpu.sharded", "--cpu")
    options.out = kept_at("gpu_sharded", options.out, options.cpu)
    ranks = join_ranks(cpu=options.cpu, seq_parallel=options.seq_parallel)
    device = "cpu" if options.cpu else "cuda"
    if not options.cpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    size, text, texts = options.size, options.text, options.tokens // options.text
    if options.cpu:
        size, text, texts = "tiny", 64, 2
    compiled = not (options.eager or options.cpu)
    model = prepare_model(build(size, device), device, CHECKPOINTING[options.mode], compile=compiled)
    parameters, batch = count(model), micro_batch(texts, text, model.config.vocab_size)
    stage = "deepspeed_stage2_bf16" if options.keep_gathered else "deepspeed_stage3_bf16"
    keys = {"use_deepspeed": not options.replicated, "deepspeed_config": stage}
    learner = learner_for(model, ranks, bfloat16=True, **keys)

    def step(last: bool = False) -> None:
        one = replace(batch, is_last=last)
        learner.accumulate(one, targets_of(one, RL), Coefficients())

    def whole(marked: bool = True) -> None:
        for micro in range(options.micro_batches):
            step(marked and micro == options.micro_batches - 1)
        learner.apply()

    first = timed(whole, 1)
    whole()
    if not options.cpu:
        torch.cuda.reset_peak_memory_stats()
    micro, both = timed(step, options.repeats), timed(whole, max(options.repeats - 1, 1))
    publishing = timed(lambda: learner.prepare_publishing(), max(options.repeats - 1, 1))
    peak = 0 if options.cpu else torch.cuda.max_memory_allocated()
    tokens = texts * text / options.seq_parallel  # of each GPU
    products = 6 * parameters * tokens
    attention = 6 * attended(model) * tokens * text
    figures = [
        Figure("tokens of each GPU", tokens / micro, "tok/s"),
        Figure("tokens of each GPU, optimizer included", options.micro_batches * tokens / both, "tok/s"),
        Figure("MFU", 100 * products / micro / PEAK_FLOPS, "%"),
        Figure("MFU with attention", 100 * (products + attention) / micro / PEAK_FLOPS, "%"),
        Figure("peak memory of a GPU", peak / 1e9, "GB"),
        Figure("a micro-batch", 1e3 * micro, "ms"),
        Figure("an optimizer step", 1e3 * both, "ms"),
        Figure("optimizer", 1e3 * (both - options.micro_batches * micro), "ms"),
        Figure("gathering weights for engines", 1e3 * publishing, "ms"),
        Figure("first step", first, "s"),
    ]
    if learner.sums is not None:
        figures += ways_compared(learner, whole, options.rounds)
    if options.save:
        figures.append(Figure("collecting a checkpoint", timed(lambda: collect_tensors(learner), 1), "s"))
    if ranks.is_main:
        card = "none" if options.cpu else torch.cuda.get_device_name()
        chosen = {"ranks": ranks.count, "card": card} | vars(options)
        report("gpu_sharded", figures, json.loads(json.dumps(chosen, default=str)), options.out)
    ranks.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
