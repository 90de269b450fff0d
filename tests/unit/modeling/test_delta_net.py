"""Gated DeltaNets in packed rows: each text is what it is alone, in transformers' own forward."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import PreTrainedModel

from pipelinerl.modeling import delta_kernel, delta_net
from pipelinerl.modeling.delta_net import CHUNK, Delta, delta_nets, gated_delta, gated_delta_step
from pipelinerl.modeling.model import hidden_states, prepare_model
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.upcast import Float32Activations
from tests.support.tiny_model import HYBRIDS, hybrid_lm

VOCABULARY = 31
FLOAT32, BFLOAT16 = 1e-5, 2e-2
OF_DECAYS = 5e-3
"""So far are transformers' own gradients of decays from float64; the trainer's are 1e-5 from it."""
LENGTHS = [5, 1, CHUNK + 1, 3, CHUNK, 2 * CHUNK + 7, 2]
"""Shorter than the convolution, ends of chunks, and more than one chunk."""
ROWS = ([5, 7], LENGTHS, [40, 2, 9])


@pytest.fixture(scope="module", params=HYBRIDS)
def pair(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The model as the trainer has it, and with transformers' own layers and attention."""
    model = hybrid_lm(request.param, VOCABULARY)
    own = copy.deepcopy(model).train()
    own.set_attn_implementation("eager")
    return prepare_model(model), own


def texts(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(0, VOCABULARY, (1, one))) for one in lengths]


def packed_states(model: PreTrainedModel, given_texts: list[torch.Tensor]) -> torch.Tensor:
    lengths = [one.shape[1] for one in given_texts]
    positions = torch.cat([torch.arange(one) for one in lengths])[None]
    segments = Segments.from_offsets(np.cumsum([0, *lengths]))
    return hidden_states(model, torch.cat(given_texts, 1), positions, segments)[0]


def own_states(model: PreTrainedModel, given_texts: list[torch.Tensor]) -> torch.Tensor:
    decoder = model.get_decoder()
    found = [decoder(input_ids=one, use_cache=False).last_hidden_state[0] for one in given_texts]
    return torch.cat(found)


def gradients(model: PreTrainedModel, states: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (states.float() * weights).sum().backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_near(found: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    """The norm of the difference, relative to the norm."""
    found, expected = found.detach().double(), expected.detach().double()
    assert float((found - expected).norm() / expected.norm().clamp(min=1e-12)) <= limit


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 2 * CHUNK + 9), min_size=1, max_size=6), st.integers(0, 2**16))
def test_a_packed_row_is_its_texts_alone(pair: Any, lengths: list[int], seed: int) -> None:
    model, own = pair
    row = texts(lengths, seed)
    assert_near(packed_states(model, row), own_states(own, row), FLOAT32)


def test_gradients_of_a_packed_row_are_the_sum_of_those_of_its_texts(pair: Any) -> None:
    model, own = pair
    row = texts(LENGTHS)
    weights = torch.randn(sum(LENGTHS), 16, generator=torch.Generator().manual_seed(1))
    found = gradients(model, packed_states(model, row), weights)
    alone = gradients(model, torch.cat([packed_states(model, [one]) for one in row]), weights)
    expected = gradients(own, own_states(own, row), weights)
    assert found.keys() == alone.keys() == expected.keys()
    assert any("linear_attn.conv1d" in name for name in found)
    for name, gradient in found.items():
        assert_near(gradient, alone[name], FLOAT32)
        decays = name.endswith(("A_log", "dt_bias", "in_proj_a.weight", "in_proj_ba.weight"))
        assert_near(gradient, expected[name], OF_DECAYS if decays else FLOAT32)


@pytest.mark.parametrize("family", HYBRIDS)
def test_in_bfloat16_a_text_in_a_row_differs_from_itself_alone_by_rounding(family: str) -> None:
    model = prepare_model(hybrid_lm(family, VOCABULARY)).bfloat16()
    row = texts(LENGTHS)
    weights = torch.randn(sum(LENGTHS), 16, generator=torch.Generator().manual_seed(1))
    packed = packed_states(model, row)
    alone = torch.cat([packed_states(model, [one]) for one in row])
    assert packed.dtype == torch.bfloat16
    assert_near(packed, alone, BFLOAT16)
    found, expected = gradients(model, packed, weights), gradients(model, alone, weights)
    for name, gradient in expected.items():
        assert_near(found[name], gradient, 2 * BFLOAT16)


def test_what_transformers_does_with_such_a_row_is_something_else() -> None:
    """Its torch form takes no notice of boundaries: why the forward is replaced."""
    model = hybrid_lm("qwen3_5", VOCABULARY)
    layer = delta_nets(model)[0]
    hidden = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))
    ends = torch.tensor([0, 6, 12], dtype=torch.int32)
    numbers = torch.tensor([[0] * 6 + [1] * 6], dtype=torch.int32)
    with torch.no_grad():
        joined = layer(hidden, cu_seq_lens_q=ends, seq_idx=numbers)
        alone = torch.cat([layer(one) for one in hidden.split(6, 1)], 1)
    assert float((joined - alone)[:, 6:].abs().max()) > 1e-3


def test_right_padding_does_not_change_real_tokens() -> None:
    model = prepare_model(hybrid_lm("qwen3_next", VOCABULARY))
    rows = torch.cat(texts([9, 9]))
    positions = torch.arange(9).expand(2, -1)
    full = hidden_states(model, rows, positions, None)
    changed = rows.clone()
    changed[:, 6:] = 0
    torch.testing.assert_close(hidden_states(model, changed, positions, None)[:, :6], full[:, :6])


def test_recomputed_layers_give_the_same_gradients() -> None:
    row = texts(LENGTHS[:4])
    weights = torch.randn(sum(LENGTHS[:4]), 16, generator=torch.Generator().manual_seed(1))
    found: dict[Any, dict[str, torch.Tensor]] = {}
    for mode in (False, True, "selective", 2):
        model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY), gradient_checkpointing=mode)
        found[mode] = gradients(model, packed_states(model, row), weights)
    torch.testing.assert_close(found, dict.fromkeys(found, found[False]))


def token_by_token(given_one: Delta) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence of the paper in float64."""
    query, key, value, decay, beta = (one.double() for one in given_one)
    query, key = (one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt() for one in (query, key))
    heads, keys = value.shape[1], key.shape[1]
    states = [torch.zeros(key.shape[2], value.shape[2], dtype=torch.float64) for _ in range(heads)]
    out = []
    for token in range(len(value)):
        for head in range(heads):
            k, q = (one[token, head * keys // heads] for one in (key, query))
            kept = states[head] * decay[token, head].exp()
            states[head] = kept + beta[token, head] * torch.outer(k, value[token, head] - k @ kept)
            out.append(q / key.shape[2] ** 0.5 @ states[head])
    return torch.stack(out).view(value.shape), torch.stack(states)


def random_delta(count: int, seed: int = 0) -> Delta:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(count, *shape, generator=generator)

    return Delta(draw(2, 8), draw(2, 8), draw(4, 6), -3 * draw(4).abs(), draw(4).sigmoid())


def parts(whole: Delta, lengths: list[int]) -> Iterator[Delta]:
    return (Delta(*one) for one in zip(*(field.split(lengths) for field in whole), strict=True))


def test_chunks_are_the_recurrence_token_by_token() -> None:
    whole = random_delta(sum(LENGTHS))
    out, states = gated_delta(whole, LENGTHS)
    expected = [token_by_token(one) for one in parts(whole, LENGTHS)]
    assert_near(out, torch.cat([one for one, _ in expected]), FLOAT32)
    assert_near(states, torch.stack([state for _, state in expected]), FLOAT32)


def test_gradients_of_chunks_are_those_of_the_recurrence() -> None:
    """Also of decays that leave next to nothing from one token to the next, whose gradients are small."""
    whole = [one.requires_grad_() for one in random_delta(sum(LENGTHS))]
    out, states = gated_delta(Delta(*whole), LENGTHS)
    found = torch.autograd.grad(out.square().sum() + states.sum(), whole)
    expected = [token_by_token(one) for one in parts(Delta(*whole), LENGTHS)]
    total = torch.stack([one.square().sum() + state.sum() for one, state in expected]).sum()
    wanted = torch.autograd.grad(total, whole)
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other, FLOAT32)
    strong = whole[3].detach() < -6
    assert strong.any()
    assert_near(found[3][strong], wanted[3][strong], FLOAT32)


def test_a_text_in_pieces_goes_on_from_its_state() -> None:
    whole, lengths = random_delta(90, seed=3), [40, 1, 49]
    expected, last = token_by_token(whole)
    first, middle, end = parts(whole, lengths)
    found, states = gated_delta(first, [40])
    more, states = gated_delta_step(middle, states)
    rest, states = gated_delta(end, [49], states)
    assert_near(torch.cat([found, more, rest]), expected, FLOAT32)
    assert_near(states[0], last, FLOAT32)


class _StandIn(torch.autograd.Function):
    """As the package's kernel: one autograd function over texts of one row."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        *fields, offsets = arguments
        ctx.save_for_backward(*fields, offsets)
        return gated_delta(Delta(*(one[0] for one in fields)), offsets.diff().tolist())[0][None]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        *fields, offsets = ctx.saved_tensors

        def differentiate() -> Any:
            given_fields = [one.detach().requires_grad_() for one in fields]
            delta = Delta(*(one[0] for one in given_fields))
            out = gated_delta(delta, offsets.diff().tolist())[0][None]
            return torch.autograd.grad(out, given_fields, gradient)

        # Operations inside of an operation are not recorded, but those of another thread are.
        with ThreadPoolExecutor(1) as threads:
            return *threads.submit(differentiate).result(), None


def stand_in(query: Any, key: Any, value: Any, g: Any, beta: Any, cu_seqlens: Any, **options: Any) -> Any:
    assert options == {"use_qk_l2norm_in_kernel": True}
    return _StandIn.apply(query, key, value, g, beta, cu_seqlens), None


@pytest.mark.parametrize("compiled", [False, True])
def test_the_operation_around_the_kernel_hands_on_values_and_gradients(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled it is one graph for all rows, backward pass included."""
    monkeypatch.setattr(delta_kernel, "chunk_rule", lambda: stand_in)

    def run(offsets: torch.Tensor, *fields: torch.Tensor) -> torch.Tensor:
        return delta_net._attend(*(2 * one[None] for one in fields), offsets)[0]

    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    function = torch.compile(run, backend=graphs, dynamic=True, fullgraph=True) if compiled else run
    for lengths in ROWS:
        offsets = torch.from_numpy(np.cumsum([0, *lengths])).int()
        whole = [one.requires_grad_() for one in random_delta(sum(lengths))]
        expected, _ = gated_delta(Delta(*(2 * one for one in whole)), lengths)
        wanted = torch.autograd.grad(expected.square().sum(), whole)
        out = function(offsets, *whole)
        torch.testing.assert_close(out, expected)
        for found, gradient in zip(torch.autograd.grad(out.square().sum(), whole), wanted, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6)
    assert graphs.frame_count == compiled


def test_compiled_layers_with_the_kernel_have_one_graph_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_kernel, "chunk_rule", lambda: stand_in)
    monkeypatch.setattr(delta_net, "_on_card", lambda values: True)
    monkeypatch.setattr(delta_net, "kernel_missing", lambda: None)
    model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY))
    layers = [one for one in model.get_decoder().layers if hasattr(one, "linear_attn")]
    rows = [texts(one) for one in ROWS]
    weights = [torch.randn(sum(one.shape[1] for one in row), 16) for row in rows]
    plain = [
        gradients(model, packed_states(model, *one[:1]), one[1]) for one in zip(rows, weights, strict=True)
    ]
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("eager")  # its backward pass, compiled: the test above
    for layer in layers:
        layer.forward = torch.compile(layer.forward, backend=graphs, dynamic=True, fullgraph=True)
    for row, weight, expected in zip(rows, weights, plain, strict=True):
        found = gradients(model, packed_states(model, row), weight)
        for name, gradient in expected.items():
            assert_near(found[name], gradient, FLOAT32)
    assert graphs.frame_count == 1


@pytest.mark.parametrize("rounding", [Float32Activations(), torch.autocast("cpu", torch.bfloat16)])
def test_the_rounding_of_bfloat16_can_be_measured(rounding: Any) -> None:
    model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY))
    wide = packed_states(model, texts(LENGTHS)).detach()
    if isinstance(rounding, Float32Activations):
        model.bfloat16()
    with rounding, torch.no_grad():
        other = packed_states(model, texts(LENGTHS))
    assert 0 < float((other - wide).abs().mean()) < 0.05
