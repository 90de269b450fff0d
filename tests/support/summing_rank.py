"""One rank whose gradients are summed; started by test_gradient_sums: `summing_rank.py FOLDER JSON`.

JSON has `cases`, names of CASES, and `kind`, cpu or gpu. Of each case, FOLDER gets this rank's gradients of
every step as they reached the optimizer, and the order of events: `gradient` where a backward pass adds one,
`sum NUMBERS` where a sum begins.
"""

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from pipelinerl.finetune import gradient_sums
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.ranks import Ranks, join_ranks
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, encode, sentinel_batch
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling import activations
from tests.support.builders import VALUE_HEAD, ready, trainer_config
from tests.support.policy import tiny_model

BUCKET_BYTES = 1500
"""Below the tiny model's larger matrices, above the smaller ones."""
STEPS = 3
EVEN = ((2, 2, 2),) * STEPS
UNEVEN = ((3, 1, 2), (1, 2, 1), (2, 4, 1))
IDLE = ((2, 0, 1), (0, 2, 0), (1, 0, 2))
CASES: dict[str, tuple[Sequence[Sequence[int]], dict[str, Any]]] = {
    "float32": (EVEN, {}),
    "uneven": (UNEVEN, {"load_as_bf16": True}),
    "idle": (IDLE, {}),
    "idle, bfloat16": (IDLE, {"load_as_bf16": True}),
    "value head": (UNEVEN, {"model_class": VALUE_HEAD, "load_as_bf16": True}),
    "recomputed": (UNEVEN, {"gradient_checkpointing": True, "load_as_bf16": True}),
    "reentrant": (UNEVEN, {"gradient_checkpointing": True, "reentrant_checkpointing": True}),
    "adapters": (UNEVEN, {"lora": {"enabled": True, "r": 4}, "load_as_bf16": True}),
    "unused": (UNEVEN, {}),
    "compiled": (UNEVEN, {"compile": True}),
    "late": (((1, 1, 1),) * STEPS, {}),
    "not finite": (EVEN, {}),
    "dies": (EVEN, {}),
}
"""Micro-batches by step and rank (0: a sentinel alone), and fields of `trainer_config`."""


def micro_batches(case: str, step: int, rank: int) -> list[PipelineBatchEncoding]:
    count = CASES[case][0][step][rank]
    if count == 0:
        return [sentinel_batch(step, 8)]
    found = []
    for micro in range(count):
        seed = 100 * step + 10 * rank + micro
        spoilt = case == "not finite" and (step, rank) == (1, 1)
        found.append(encode([ready(seed, float("inf") if spoilt else 1.0 + rank)], step, 8))
        found[-1].is_last = micro == count - 1
    return found


def learner_of_case(case: str, ranks: Ranks, folder: Path, kind: str = "cpu") -> Learner:
    """Without clipping; its optimizer leaves the weights alone."""
    cfg = trainer_config(folder, tiny_model(), hardware={"kind": kind}, **CASES[case][1])
    torch.manual_seed(0)
    # Compiled layers are one node of a backward pass each; what a C compiler makes of them plays no part.
    quick = partial(torch.compile, backend="aot_eager")
    with patch.object(activations, "compiled", lambda function, dynamic: quick(function, dynamic=dynamic)):
        learner = build_learner(cfg, ranks, folder / "model")
    learner.gradient_clipping_threshold = None
    return learner


def holders(learner: Learner) -> list[torch.nn.Parameter]:
    """What the optimizer changes, in its order."""
    return [p for group in learner.optimiser.param_groups for p in group["params"]]


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    found = enumerate(holders(learner))
    return {str(i): torch.zeros_like(p) if p.grad is None else p.grad.clone() for i, p in found}


def accumulate(learner: Learner, case: str, step: int, rank: int) -> None:
    """The micro-batches of a step; in the case `unused` ranks take turns to leave three matrices out."""
    part = learner.model.get_decoder().layers[1].mlp
    if case == "unused" and (step + rank) % 2:
        part.forward = torch.zeros_like
    for batch in micro_batches(case, step, rank):
        learner.accumulate(batch, targets_of(batch, learner.rl), Coefficients(0.1, 0.01))
    vars(part).pop("forward", None)


class Run:
    """The steps of one case on this rank."""

    def __init__(self, case: str, ranks: Ranks, folder: Path, kind: str) -> None:
        self.case, self.rank, self.folder = case, ranks.index, folder
        self.learner = learner_of_case(case, ranks, folder, kind)
        self.events: list[list[str]] = []
        for parameter in self.learner.policy.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _: self.events[-1].append("gradient"))
        if case == "dies" and self.rank == 1:
            first = self.learner.model.get_input_embeddings().weight
            first.register_hook(self._die)
        every, arrive = dist.all_reduce, ranks.arrive

        def watched(tensor: torch.Tensor, **options: Any) -> Any:
            self.events[-1].append(f"sum {tensor.numel()}")
            return every(tensor, **options)

        def together() -> dist.Work:
            """Whether the others are there would otherwise be a question of time."""
            (work := arrive()).wait()
            return work

        chosen = arrive if case == "late" else together
        with patch.object(dist, "all_reduce", watched), patch.object(ranks, "arrive", chosen):
            self._steps()
        (folder / f"{case}_{self.rank}.json").write_text(json.dumps(self.events))

    def _die(self, _: torch.Tensor) -> None:
        if len(self.events) == 2:
            raise RuntimeError("out of something in the backward pass")

    def _steps(self) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for step in range(STEPS):
            self.events.append([])
            gate = self.folder / f"gate_{step}"
            if self.case == "late" and self.rank == 1:
                while not gate.exists():
                    time.sleep(0.01)
            accumulate(self.learner, self.case, step, self.rank)
            if self.case == "late" and self.rank == 0:
                gate.touch()
            self.learner.optimiser.step = lambda step=step: tensors.update(
                {f"{step}.{name}": gradient for name, gradient in gradients(self.learner).items()}
            )
            try:
                self.learner.apply()
            except FloatingPointError:
                self.events[-1].append("not finite")
                self.learner.optimiser.zero_grad(set_to_none=True)
        save_file(tensors, self.folder / f"{self.case}_{self.rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    gradient_sums.BUCKET_BYTES = BUCKET_BYTES
    options = json.loads(sys.argv[2])
    own = join_ranks(cpu=options["kind"] == "cpu")
    for name in options["cases"]:
        Run(name, own, Path(sys.argv[1]) / name, options["kind"])
    own.close()
