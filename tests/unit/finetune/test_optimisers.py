"""Every optimizer that the configuration accepts trains, follows its formula and resumes; schedules."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from pipelinerl.config.finetune import FinetuneConfig
from pipelinerl.finetune.lion import Lion
from pipelinerl.finetune.optimiser import build_optimiser
from pipelinerl.finetune.schedulers import learning_rate_factor
from tests.support.builders import VALUE_HEAD
from tests.support.training import assert_resumes_bit_for_bit, saved, train, trainer


@pytest.mark.parametrize("name", get_args(FinetuneConfig.model_fields["optim"].annotation))
def test_decay_skips_norms_and_biases(model: PreTrainedModel, name: str) -> None:
    optimiser = build_optimiser(model, name, weight_decay=0.1)
    decayed, plain = optimiser.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() == 2 for p in decayed["params"]) and all(p.dim() == 1 for p in plain["params"])
    assert sum(len(g["params"]) for g in optimiser.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", ["adafactor", "lion"])
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path, name: str) -> None:
    straight, _ = assert_resumes_bit_for_bit(tmp_path, optim=name)
    before, after = load_file(straight / "model/model.safetensors"), saved(straight)
    assert any(not torch.equal(after[key], before[key]) for key in after)


def test_adams_constants_are_those_of_the_configuration(tmp_path: Path) -> None:
    """Also after a resume: like the rate they belong to the configuration and not to the state."""

    def constants(**finetune: float) -> set[tuple[tuple[float, float], float]]:
        groups = trainer(tmp_path, **finetune).learner.optimiser.param_groups
        return {(group["betas"], group["eps"]) for group in groups}

    assert constants() == {((0.9, 0.999), 1e-8)}
    train(tmp_path, interrupt_train_steps=2)
    given = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-5}
    assert constants(**given) == {((0.8, 0.95), 1e-5)}


def test_the_state_of_another_optimiser_or_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path, interrupt_train_steps=2)
    with pytest.raises(ValueError, match=r"saved with AdamW over .*, this run trains with Lion over"):
        trainer(tmp_path, optim="lion")
    with pytest.raises(ValueError, match=r"set finetune\.optim and finetune\.model_class as before"):
        trainer(tmp_path, model_class=VALUE_HEAD)


def test_a_run_that_is_interrupted_and_goes_on_has_the_schedules_of_one_that_is_not(tmp_path: Path) -> None:
    rl = {"kl_coef": 0.4, "final_kl_coef": 0.0}

    def coefficients(folder: Path) -> list[float]:
        rows = (folder / "finetune" / "metrics.jsonl").read_text().splitlines()
        return [row["rl/kl_coef"] for row in map(json.loads, rows) if "rl/kl_coef" in row]

    train(tmp_path / "straight", rl=rl)
    train(tmp_path / "halves", rl=rl, interrupt_train_steps=2)
    train(tmp_path / "halves", rl=rl)
    assert coefficients(tmp_path / "halves") == coefficients(tmp_path / "straight")
    assert coefficients(tmp_path / "straight") == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_lion_follows_its_algorithm() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 2))
    ours, momentum = weight.detach().clone(), torch.zeros(3, 2)
    optimiser = Lion([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    for _ in range(4):
        weight.grad = torch.randn(3, 2)
        ours = ours * (1 - 0.1 * 0.5) - 0.1 * (0.9 * momentum + 0.1 * weight.grad).sign()
        momentum = 0.99 * momentum + 0.01 * weight.grad
        optimiser.step()
        torch.testing.assert_close(weight.detach(), ours)
    with pytest.raises(ValueError, match="no closure"):
        optimiser.step(lambda: None)


def test_schedules() -> None:
    assert learning_rate_factor(0, "constant", 5, 10) == 1.0
    assert learning_rate_factor(0, "cosine", 4, 10) == pytest.approx(0.2)
    assert learning_rate_factor(4, "cosine", 4, 10) == pytest.approx(1.0)
    assert learning_rate_factor(10, "cosine", 4, 10) == pytest.approx(0.0)
    assert learning_rate_factor(7, "linear", 4, 10) == pytest.approx(0.5)
