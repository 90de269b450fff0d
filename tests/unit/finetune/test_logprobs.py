"""Chunked scores equal the plain softmax, values and gradients."""

from __future__ import annotations

import pytest
import torch

from pipelinerl.finetune.logprobs import token_scores


def naive(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, t: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = (torch.nn.functional.linear(hidden, weight, bias) / t).log_softmax(-1)
    return logits.gather(1, targets[:, None])[:, 0], -(logits.exp() * logits).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_elements", [1, 50, 1 << 20])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients(temperature: float, chunk_elements: int, with_bias: bool) -> None:
    torch.manual_seed(3)
    leaves = [torch.randn(7, 5), torch.randn(11, 5)] + ([torch.randn(11)] if with_bias else [])
    targets = torch.randint(0, 11, (7,))
    upstream = torch.randn(2, 7)
    results = []
    for chunked in (True, False):
        hidden, weight, *rest = (x.clone().requires_grad_() for x in leaves)
        bias = rest[0] if rest else None
        if chunked:
            logprobs, entropy = token_scores(hidden, weight, targets, temperature, bias, chunk_elements)
        else:
            logprobs, entropy = naive(hidden, weight, bias, targets, temperature)
        (upstream[0] * logprobs + upstream[1] * entropy).sum().backward()
        results.append([logprobs, entropy, *(x.grad for x in (hidden, weight, *rest))])
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_scores_stay_float32_under_autocast() -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(4, 8), torch.randn(9, 8), torch.arange(4)
    plain = token_scores(hidden, weight, targets).logprobs
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(token_scores(hidden, weight, targets).logprobs, plain)


def test_no_targets_give_empty_scores_and_zero_gradient() -> None:
    weight = torch.randn(9, 8, requires_grad=True)
    scores = token_scores(torch.randn(0, 8), weight, torch.zeros(0, dtype=torch.int64))
    scores.logprobs.sum().backward()
    assert scores.logprobs.shape == (0,) and float(weight.grad.abs().sum()) == 0.0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        token_scores(torch.zeros(1, 2), torch.zeros(3, 2), torch.zeros(1, dtype=torch.int64), 0.0)
    with pytest.raises(ValueError, match="disagree"):
        token_scores(torch.zeros(2, 2), torch.zeros(3, 2), torch.zeros(1, dtype=torch.int64))
