"""Two ranks do what one does: same gradient norm, same weights, same accounting; whole or in shards."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelinerl.base.child import wrapped
from pipelinerl.finetune import build
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import LoneRank, Ranks
from pipelinerl.finetune.step import Learner
from pipelinerl.run_state.accounting import RolloutLog
from tests.support.builders import VALUE_HEAD, trainer_config, write_steps
from tests.support.forked import Forked
from tests.support.policy import VOCAB, tiny_model
from tests.support.processes import free_port
from tests.support.recorder import Recorder
from tests.support.tiny_model import causal_lm, hybrid_lm, mixture_lm

ROOT = Path(__file__).parents[3]
DEADLINE_S = 300
"""Two processes that import torch at the same time need a while on a busy machine."""


def results(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    summary = json.loads((folder / "finetune/summary.json").read_text())
    return load_file(folder / "finetune/current/model.safetensors"), summary


def start_ranks(
    folder: Path,
    count: int,
    program: str = "two_ranks",
    apart: bool = False,
    deadline_s: float = DEADLINE_S,
    **fields: Any,
) -> list[tuple[int, str]]:
    """Exit code and stderr of each rank; the variables are those that a distributed launcher sets.

    `apart`: each rank is on a host of its own.
    """
    start = subprocess.Popen if torch.cuda.is_initialized() else Forked  # a fork could not use the card
    words = wrapped([sys.executable, "-m", f"tests.support.{program}", str(folder), json.dumps(fields)])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    end, files = time.monotonic() + deadline_s, [folder / f"{program}_{index}.txt" for index in range(count)]
    with ExitStack() as stack:
        ranks = []
        for index, file in enumerate(files):
            own = {"RANK": str(index), "LOCAL_RANK": "0" if apart else str(index), "OMP_NUM_THREADS": "1"}
            said = stack.enter_context(file.open("w"))
            ranks.append(start(words, cwd=ROOT, env=os.environ | shared | own, stderr=said))
            stack.enter_context(ranks[-1])
            stack.callback(ranks[-1].kill)
        codes = [rank.wait(max(end - time.monotonic(), 0)) for rank in ranks]
    return list(zip(codes, (file.read_text() for file in files), strict=True))


def test_a_rank_takes_the_card_of_its_number_on_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two hosts with a card each, the second rank has card 0 as the first has.

    That ranks which joined have these numbers, `two_ranks.py` asserts.
    """
    taken: list[torch.device] = []

    def load(path: object, device: torch.device, *_: object, **__: object) -> None:
        taken.append(device)
        raise RuntimeError("far enough")

    monkeypatch.setattr(build, "load_model", load)
    second = Ranks()
    second.index, second.count = 1, 2
    cfg: Any = MagicMock(trainer_on_gpu=True, sharding=None)
    with pytest.raises(RuntimeError, match="far enough"):
        build.build_learner(cfg, second, "model")
    assert taken == [torch.device("cuda", 0)]


class SecondOfTwo(Ranks):
    """A rank on another host than the first, which has said `first`."""

    index, count = 1, 2

    def __init__(self, first: Any = None) -> None:
        self.first, self.said = first, None

    def gather(self, value: Any) -> list[Any]:
        self.said = value
        return [self.first or value, value]


def test_ranks_that_have_loaded_different_models_are_refused(tmp_path: Path) -> None:
    """A host with an older copy of the model at the same path."""
    cfg, first = trainer_config(tmp_path, causal_lm(VOCAB)), SecondOfTwo()
    build.build_learner(cfg, first, tmp_path / "model")
    assert first.said is not None
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "model", copy)
    build.build_learner(cfg, SecondOfTwo(first.said), copy)
    weights = load_file(copy / "model.safetensors")
    next(iter(weights.values())).mul_(1.01)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model_path=.*: rank 1 on .* has loaded another model than rank 0"):
        build.build_learner(cfg, SecondOfTwo(first.said), copy)
    shutil.copytree(tmp_path / "model", copy, dirs_exist_ok=True)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 12345}))
    with pytest.raises(ValueError, match="another model than rank 0"):
        build.build_learner(cfg, SecondOfTwo(first.said), copy)


def one_rank(folder: Path, ranks: Ranks | None = None, **fields: Any) -> None:
    trainer = Trainer(trainer_config(folder, tiny_model(), **fields), ranks or Ranks())
    trainer._broadcaster = Recorder(trainer.learner, folder)
    trainer.run()


def prepare(
    folder: Path, ranks: int, hidden: int = 16, states: bool = False, tied: bool = True, **rows: Any
) -> Path:
    folder.mkdir()
    write_steps(folder, 4, 6, ranks=ranks, **rows)
    if states:
        model = hybrid_lm("qwen3_5", VOCAB, sees=True)
    else:
        model = mixture_lm(VOCAB) if rows.get("mixture") else causal_lm(VOCAB, hidden=hidden, tied=tied)
    model.save_pretrained(folder / "model")
    return folder


def trained(folder: Path) -> list[str]:
    """Rollouts as often as they were written down; none has several texts here."""
    with RolloutLog(folder, "finetune") as rollouts:
        return sorted(name for entry in rollouts._entries() for name in entry.rollouts)


def assert_same_state(found: Learner, expected: Learner, tolerance: float) -> None:
    """Both were loaded by one process: a checkpoint does not depend on the ranks that wrote it."""
    ours, theirs = (learner.optimiser.state_dict()["state"] for learner in (found, expected))
    assert ours.keys() == theirs.keys() and len(ours) > 0
    for index, values in theirs.items():
        for name, tensor in values.items():
            both = [one.dequantize() if is_8bit(one) else one for one in (ours[index][name], tensor)]
            torch.testing.assert_close(*both, atol=10 * tolerance, rtol=10 * tolerance)


def is_8bit(state: torch.Tensor) -> bool:
    return type(state).__name__ == "OptimState8bit"


SHARDED: dict[str, Any] = {"use_fsdp": True}
SHARDED_GRADIENTS: dict[str, Any] = {"use_deepspeed": True, "deepspeed_config": "deepspeed_stage2_bf16"}
ON_HOST: dict[str, Any] = {"fsdp": {"cpu_offload": True}}
STATES: dict[str, Any] = {"states": True}
ONLY_SHARDED = {*SHARDED, *SHARDED_GRADIENTS, *ON_HOST, "ends", "whole_on_host", "seq_parallel"}
CASES: dict[str, dict[str, Any]] = {
    "replicated": {},
    "sharded and resumed": SHARDED | {"tied": False, "ends": [2, 4]},
    "gradients sharded, bfloat16": SHARDED_GRADIENTS | {"load_as_bf16": True},
    "sharded, with a value head": SHARDED | {"model_class": VALUE_HEAD},
    "sharded, with shared prefixes": SHARDED | {"begin": [1, 2, 3, 4, 5]},
    "sharded mixture, with replayed experts": SHARDED | {"mixture": True, "learning_rate": 1e-3},
    "sharded and resumed adapters": SHARDED | {"lora": {"enabled": True, "r": 4}, "ends": [2, 4]},
    "sharded, the engines' copy in host memory": SHARDED | {"whole_on_host": True},
    "states in host memory and resumed": ON_HOST | {"ends": [2, 4]},
    "sharded and resumed, with states and a part that sees": SHARDED | {**STATES, "ends": [2, 4]},
    "sharded, with states and shared prefixes": SHARDED | {**STATES, "begin": [1, 2, 3, 4, 5]},
    "sharded and resumed adapters beside a part that sees": SHARDED
    | {**STATES, "lora": {"enabled": True, "r": 4}, "ends": [2, 4]},
    "a row over both ranks, resumed": {"seq_parallel": 2, "ends": [2, 4]},
    "sharded and resumed moments in 8 bits": SHARDED | {"optim": "adamw_8bit", "ends": [2, 4]},
}
QUICK = ("sharded and resumed",)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_two_ranks_equal_one(tmp_path: Path, case: str) -> None:
    fields = dict(CASES[case])
    begin, states = fields.pop("begin", []), fields.pop("states", False)
    mixture, tied = fields.pop("mixture", False), fields.pop("tied", True)
    hidden = 64 if "optim" in fields else 16  # moments of small matrices are float32
    one = prepare(tmp_path / "one", 1, hidden, states, tied, begin=begin, mixture=mixture)
    partitions = 2 // fields.get("seq_parallel", 1)
    shared = bool(begin)
    two = prepare(
        tmp_path / "two", partitions, hidden, states, tied, begin=begin, share=shared, mixture=mixture
    )
    alone = {name: value for name, value in fields.items() if name not in ONLY_SHARDED}
    for key, package in (("lora", "peft"), ("optim", "torchao")):
        if key in fields:
            pytest.importorskip(package)
    one_rank(one, **alone)
    for code, said in start_ranks(two, 2, apart=True, **fields):
        assert code == 0, said[-2000:]
    # A moment between two codes may get the other one.
    tolerance = 0.02 if "load_as_bf16" in fields else 1e-3 if "optim" in fields else 1e-4
    (expected, summary), (found, other) = results(one), results(two)
    assert other["grad_norm"] == pytest.approx(summary["grad_norm"], rel=10 * tolerance)
    assert (other["samples"], other["completed_steps"]) == (24, 4)
    assert trained(two) == trained(one)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance, rtol=tolerance)
    published, here = (load_file(folder / "published.safetensors") for folder in (two, one))
    assert published.keys() == here.keys()
    assert tied or "lm_head.weight" in published
    for name, tensor in here.items():
        assert published[name].dtype == tensor.dtype
        torch.testing.assert_close(published[name], tensor, atol=tolerance, rtol=tolerance)
    assert_same_state(
        Trainer(trainer_config(two, tiny_model(), **alone), Ranks()).learner,
        Trainer(trainer_config(one, tiny_model(), **alone), Ranks()).learner,
        tolerance,
    )
    scores, theirs = (np.load(folder / "scores.npy") for folder in (two, one))
    assert float(np.abs(scores - theirs).mean()) < 10 * tolerance


def test_a_lone_rank_may_keep_its_states_in_host_memory(tmp_path: Path) -> None:
    """The same training, and bit for bit the same after a resume."""
    plain, straight, resumed = (prepare(tmp_path / name, 1) for name in ("plain", "straight", "resumed"))
    one_rank(plain)
    lone = LoneRank(cpu=True)
    try:
        one_rank(straight, lone, **ON_HOST)
        for end in (2, 4):
            one_rank(resumed, lone, **ON_HOST, interrupt_train_steps=end)
        sharded = Trainer(trainer_config(straight, tiny_model(), **ON_HOST), lone).learner
        assert sharded.sharded and sharded.device == torch.device("cpu")
    finally:
        lone.close()
    states = [load_file(one / "finetune/training_state/tensors.safetensors") for one in (straight, resumed)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[1][name], tensor) for name, tensor in states[0].items())
    for name in ("finetune/current/model.safetensors", "published.safetensors"):
        expected, found, again = (load_file(one / name) for one in (plain, straight, resumed))
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, atol=1e-4, rtol=1e-4)
            assert torch.equal(found[key], again[key])
    kept, whole = (Trainer(trainer_config(one, tiny_model()), Ranks()).learner for one in (straight, plain))
    assert_same_state(kept, whole, 1e-4)
