"""The same step on a CUDA device: float32 equals the CPU, bfloat16 comes close. Skipped without one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.config import RLConfig
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.step import Learner
from pipelinerl.finetune.targets import targets_of
from pipelinerl.preprocess.assemble import encode
from tests.unit.finetune.builders import ready, settings, write_steps
from tests.unit.finetune.conftest import tiny_model
from tests.unit.finetune.test_step import learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def gradient(one: Learner) -> torch.Tensor:
    batch = encode([ready(i, (-1.0) ** i) for i in range(5)], 0, 5)
    one.accumulate(batch, targets_of(batch, one.rl), Coefficients(0.1, 0.01))
    found = [p.grad.flatten() for p in one.model.parameters() if p.grad is not None]
    return torch.cat(found).cpu()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
def test_gradients_match_the_cpu(dtype: torch.dtype, tolerance: float) -> None:
    rl = RLConfig(epsilon_high=4.0, kl_coef=0.1, entropy_bonus=0.01)
    model = tiny_model()
    on_device = learner(copy.deepcopy(model).cuda(), rl)
    on_device.compute_dtype = dtype
    expected, found = gradient(learner(model, rl)), gradient(on_device)
    assert float((found - expected).norm() / expected.norm()) < tolerance


def test_a_bfloat16_run_trains_and_resumes(tmp_path: Path) -> None:
    write_steps(tmp_path, 4, 6)
    chosen = settings(tmp_path, tiny_model(), device="cuda", bfloat16=True)
    Trainer(chosen, Ranks()).run()
    again = Trainer(chosen, Ranks())
    assert again.counters.completed_steps == 4
    assert all(p.dtype == torch.float32 for p in again.learner.model.parameters())
