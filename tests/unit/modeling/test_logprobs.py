"""Chunked scores equal the plain softmax, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.modeling import logprobs
from pipelinerl.modeling.logprobs import token_scores


def naive(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    t: float,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias) / t
    logits = (logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(-1)
    return logits.gather(1, targets[:, None])[:, 0], -(logits.exp() * logits).sum(-1)


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


@settings(max_examples=40)
@given(
    n=st.integers(1, 12),
    width=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    chunk_rows=st.integers(1, 13),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    scale=st.sampled_from([0.1, 1.0, 6.0]),
    with_bias=st.booleans(),
    used=st.sampled_from(["both", "logprobs", "entropy"]),
    cap=st.sampled_from([None, None, 2.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_any_shape_equals_the_plain_softmax_in_float64(
    n: int,
    width: int,
    vocabulary: int,
    chunk_rows: int,
    temperature: float,
    scale: float,
    with_bias: bool,
    used: str,
    cap: float | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = (scale * torch.randn(n, width, generator=generator)).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).requires_grad_()
    bias = torch.randn(vocabulary, generator=generator).requires_grad_() if with_bias else None
    targets = torch.randint(0, vocabulary, (n,), generator=generator)
    upstream = torch.randn(2, n, generator=generator)
    scores = token_scores(hidden, weight, targets, temperature, bias, chunk_rows * vocabulary, cap)
    leaves = [hidden, weight] if bias is None else [hidden, weight, bias]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    plain, entropy = naive(exact[0], exact[1], exact[2] if with_bias else None, targets, temperature, cap)
    tolerance = {"atol": 2e-4 * max(1.0, scale), "rtol": 1e-4}
    torch.testing.assert_close(scores.logprobs.double(), plain, **tolerance)
    torch.testing.assert_close(scores.entropy.double(), entropy, **tolerance)
    assert bool((scores.entropy > -1e-3).all()) and bool((scores.logprobs < 1e-4).all())
    # What is not used has no gradient at all, not one of zeros.
    rows = {"both": [0, 1], "logprobs": [0], "entropy": [1]}[used]
    torch.stack([upstream[row] * scores[row] for row in rows]).sum().backward()
    torch.stack([upstream[row] * (plain, entropy)[row] for row in rows]).sum().backward()
    for ours, expected in zip(leaves, exact):
        assert ours.grad is not None and expected.grad is not None
        difference = (ours.grad.double() - expected.grad).norm()
        # Float32 loses digits in proportion to the size of the logits.
        assert float(difference) <= 5e-5 * (1 + scale / temperature) * float(expected.grad.norm()) + 1e-4


def test_the_gradient_of_a_small_entropy_keeps_its_digits() -> None:
    """Where logits are large and one of them dominates, it is a small difference of small numbers."""
    generator = torch.Generator().manual_seed(414)
    hidden, weight = 6 * torch.randn(8, 8, generator=generator), torch.randn(14, 8, generator=generator)
    targets, gradients = torch.zeros(8, dtype=torch.int64), []
    for kind in (torch.float64, torch.float32):
        factors = weight.clone().to(kind).requires_grad_()
        exact = naive(hidden.double(), factors, None, targets, 0.3)[1] if kind == torch.float64 else None
        entropy = token_scores(hidden, factors, targets, 0.3).entropy if exact is None else exact
        entropy.sum().backward()
        assert factors.grad is not None
        gradients.append(factors.grad.double())
    torch.testing.assert_close(gradients[1], gradients[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("cap", [None, 5.0])
def test_no_matrix_over_the_vocabulary_is_kept_for_the_backward(cap: float | None) -> None:
    n, width, vocabulary = 64, 4, 512
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    hidden = torch.randn(n, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_scores(
            hidden, weight, torch.zeros(n, dtype=torch.int64), chunk_elements=8 * vocabulary, cap=cap
        )
    assert max(kept) <= max(n * width, vocabulary * width) < n * vocabulary


def test_logits_are_held_in_chunks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, sizes = logprobs._logits, []

    def noted(*arguments: object) -> torch.Tensor:
        found = plain(*arguments)  # type: ignore[arg-type]
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(logprobs, "_logits", noted)
    hidden = torch.randn(64, 4, requires_grad=True)
    scores = token_scores(hidden, torch.randn(512, 4), torch.zeros(64, dtype=torch.int64), 1.0, None, 4096)
    scores.logprobs.sum().backward()
    assert max(sizes) <= 4096 and sum(sizes) == 2 * 64 * 512
