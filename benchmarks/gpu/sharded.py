"""The sharded trainer on several GPUs of one host: tokens per second and GPU, memory, gathering, saving.

    accelerate launch --num_processes 2 -m benchmarks.gpu.sharded [--size 4B] [--out FILE]

Each rank trains packs of its own as in `benchmarks.gpu.trainer`; with `--replicated` every rank holds
everything and gradients are summed, for comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks._figures import RESULTS, Figure, report
from benchmarks.gpu.trainer import (
    CHECKPOINTING,
    PEAK_FLOPS,
    SIZES,
    TOKENS,
    build,
    count,
    micro_batch,
    timed,
)
from pipelinerl.config import Config
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.build import learner_of
from pipelinerl.finetune.checkpoints import collect_tensors
from pipelinerl.finetune.ranks import join_ranks
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.modeling.model import prepare_model
from pipelinerl.weights.send.parity import probe_ids


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="4B", choices=list(SIZES))
    parser.add_argument("--mode", default="full", choices=list(CHECKPOINTING))
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--replicated", action="store_true")
    parser.add_argument("--keep-gathered", action="store_true")
    parser.add_argument("--save", action="store_true", help="time the collection of a checkpoint as well")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_sharded.json")
    options = parser.parse_args()
    ranks = join_ranks(cpu=False)
    torch.cuda.set_device(ranks.index)
    model = prepare_model(build(options.size), "cuda", CHECKPOINTING[options.mode], compile=not options.eager)
    parameters = count(model)
    rl = RLConfig(epsilon_high=4.0)
    stage = "deepspeed_stage2_bf16" if options.keep_gathered else "deepspeed_stage3_bf16"
    cfg = Config.model_validate(
        {
            "finetune": {"rl": rl, "max_train_steps": 100},
            "use_deepspeed": not options.replicated,
            "deepspeed_config": stage,
        }
    )
    learner = learner_of(model, cfg, ranks)
    batch = micro_batch()

    def step() -> None:
        learner.accumulate(batch, targets_of(batch, rl), Coefficients())

    def whole() -> None:
        step()
        learner.apply()

    started = time.monotonic()
    whole()
    torch.cuda.synchronize()
    first = time.monotonic() - started
    whole()
    torch.cuda.reset_peak_memory_stats()
    micro, both = timed(step, 4), timed(whole, 3)
    publishing = timed(lambda: learner.prepare_publishing(probe_ids(1000)), 3)
    found: dict[str, tuple[float, str]] = {
        "tokens of each GPU": (TOKENS / micro, "tok/s"),
        "tokens of each GPU, optimizer included": (TOKENS / both, "tok/s"),
        "MFU": (100 * 6 * parameters * TOKENS / micro / PEAK_FLOPS, "%"),
        "peak memory of a GPU": (torch.cuda.max_memory_allocated() / 1e9, "GB"),
        "optimizer": (1e3 * (both - micro), "ms"),
        "gathering weights for engines": (1e3 * publishing, "ms"),
        "first step": (first, "s"),
    }
    if options.save:
        found["collecting a checkpoint"] = (_seconds(lambda: collect_tensors(learner)), "s")
    if ranks.is_main:
        figures = [Figure(name, value, unit) for name, (value, unit) in found.items()]
        chosen = {"ranks": ranks.count, "card": torch.cuda.get_device_name()} | vars(options)
        report("gpu_sharded", figures, json.loads(json.dumps(chosen, default=str)), options.out)
    ranks.close()
    return 0


def _seconds(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
