"""Losses, their gradients and their statistics against stored reference values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.metrics import METRICS, token_statistics
from pipelinerl.finetune.rl.losses import Coefficients, LossInputs, total_loss
from pipelinerl.modeling.logprobs import token_scores
from pipelinerl.rollouts import MASKED_TOKEN_ID

FIXTURE = Path(__file__).parents[3] / "fixtures" / "losses_upstream.json"
CASES = json.loads(FIXTURE.read_text())["cases"]


def inputs_of(case: dict[str, Any], logits: torch.Tensor) -> tuple[LossInputs, RLConfig, torch.Tensor]:
    config = RLConfig(**{k: v for k, v in case["config"].items() if k in RLConfig.model_fields})
    rows, length, vocabulary = case["shape"]
    column = {k: np.array(v).reshape(rows, length) for k, v in case["inputs"].items() if k != "logits"}
    labels, segments = column["labels"], column["segment_ids"]
    keep = labels != MASKED_TOKEN_ID
    keep[:, 0] = False
    at = np.argwhere(keep)
    names = segments + 1000 * np.arange(rows)[:, None]
    _, text = np.unique(names[keep], return_inverse=True)

    def take(name: str) -> torch.Tensor:
        return torch.tensor(column[name][keep], dtype=torch.float32)

    predictors = logits[at[:, 0], at[:, 1] - 1]
    scores = token_scores(predictors, torch.eye(vocabulary), torch.tensor(labels[keep]), config.temperature)
    weight = take("loss_weight_scale")
    weight = weight / (take("group_tokens") if config.group_normalization else case["config"]["batch_size"])
    if config.overlong_filtering:
        weight = weight * (1 - take("overflow"))
    inputs = LossInputs(
        scores.logprobs, scores.entropy, take("old_logprobs"), take("ref_logprobs"), take("advantages"),
        take("rewards"), weight, weight, torch.from_numpy(text), int(text.max(initial=-1)) + 1,
    )  # fmt: skip
    return inputs, config, take("num_labels")


@pytest.mark.parametrize("number", range(len(CASES)))
def test_reference_cases(number: int) -> None:
    case = CASES[number]
    logits = torch.tensor(case["inputs"]["logits"]).reshape(case["shape"]).requires_grad_()
    inputs, config, _ = inputs_of(case, logits)
    done, final = case["current_step"], case["max_step"]
    coefficients = Coefficients(config.kl_coefficient(done, final), config.entropy_coefficient(done, final))
    loss = total_loss(inputs, config, coefficients)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(case["expected"]["loss"], rel=1e-5, abs=1e-5)
    expected = torch.tensor(case["expected"]["grad_logits"]).reshape(case["shape"])
    torch.testing.assert_close(logits.grad, expected, atol=1e-5, rtol=1e-5)


_NAMES = ("entropy", "kl", "kl_new_old", "ratio_new_old", "advantage", "reward")


@pytest.mark.parametrize("number", range(len(CASES)))
def test_reference_statistics(number: int) -> None:
    case = CASES[number]
    logits = torch.tensor(case["inputs"]["logits"]).reshape(case["shape"])
    inputs, config, num_labels = inputs_of(case, logits)
    vector = token_statistics(inputs, num_labels, torch.zeros(()), config, 1)
    found = dict(zip([metric.name for metric in METRICS], vector.tolist()))
    for name in _NAMES:
        assert found[f"rl/{name}"] == pytest.approx(case["expected"][name], rel=1e-5, abs=1e-5), name
