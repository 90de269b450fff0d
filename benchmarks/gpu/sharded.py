"""The sharded trainer on several GPUs of one host: tokens per second and GPU, memory, gathering, saving.

    accelerate launch --num_processes 2 -m benchmarks.gpu.sharded [--size 4B] [--mode full] [--eager]
                      [--replicated] [--keep-gathered] [--save] [--micro-batches 1] [--cpu]
                      [--out FILE]

Each rank trains packs of its own as in `benchmarks.gpu.trainer`; with `--replicated` every rank holds
everything and gradients are summed, for comparison. `--save` times the collection of a checkpoint as well.
`--cpu` rehearses it with a tiny model and short packs.
"""

import json
import os
import sys

import torch

from benchmarks._figures import RESULTS, Figure, command_line, report
from benchmarks._texts import RL, learner_for
from benchmarks.gpu.trainer import (
    CHECKPOINTING,
    PEAK_FLOPS,
    SIZES,
    TEXT,
    TOKENS,
    build,
    count,
    micro_batch,
    timed,
)
from pipelinerl.finetune.checkpoints import collect_tensors
from pipelinerl.finetune.ranks import join_ranks
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.modeling.model import prepare_model


def main() -> int:
    options = command_line(__doc__, size=SIZES, mode=CHECKPOINTING)
    options.out = options.out or RESULTS / "gpu_sharded.json"
    ranks, device = join_ranks(cpu=options.cpu), "cpu" if options.cpu else "cuda"
    if not options.cpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    size, text, texts = ("tiny", 64, 2) if options.cpu else (options.size, TEXT, TOKENS // TEXT)
    compiled = not (options.eager or options.cpu)
    model = prepare_model(build(size, device), device, CHECKPOINTING[options.mode], compile=compiled)
    parameters, batch = count(model), micro_batch(texts, text, model.config.vocab_size)
    stage = "deepspeed_stage2_bf16" if options.keep_gathered else "deepspeed_stage3_bf16"
    keys = {"use_deepspeed": not options.replicated, "deepspeed_config": stage}
    learner = learner_for(model, ranks, bfloat16=True, **keys)

    def step() -> None:
        learner.accumulate(batch, targets_of(batch, RL), Coefficients())

    def whole() -> None:
        for _ in range(options.micro_batches):
            step()
        learner.apply()

    first = timed(whole, 1)
    whole()
    if not options.cpu:
        torch.cuda.reset_peak_memory_stats()
    micro, both = timed(step, 4), timed(whole, 3)
    publishing = timed(lambda: learner.prepare_publishing(), 3)
    peak = 0 if options.cpu else torch.cuda.max_memory_allocated()
    tokens = texts * text
    figures = [
        Figure("tokens of each GPU", tokens / micro, "tok/s"),
        Figure("tokens of each GPU, optimizer included", options.micro_batches * tokens / both, "tok/s"),
        Figure("MFU", 100 * 6 * parameters * tokens / micro / PEAK_FLOPS, "%"),
        Figure("peak memory of a GPU", peak / 1e9, "GB"),
        Figure("a micro-batch", 1e3 * micro, "ms"),
        Figure("an optimizer step", 1e3 * both, "ms"),
        Figure("optimizer", 1e3 * (both - options.micro_batches * micro), "ms"),
        Figure("gathering weights for engines", 1e3 * publishing, "ms"),
        Figure("first step", first, "s"),
    ]
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
