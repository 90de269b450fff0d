"""Layers with a state in rows of shared prefixes: each text is what it is alone, gradients included."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental import _config as symbolic_shapes
from transformers import PreTrainedModel

from pipelinerl.finetune.rl.prefix_packing import SortedIds
from pipelinerl.modeling import branches as branches_module
from pipelinerl.modeling import delta_kernel, delta_net
from pipelinerl.modeling.branches import Branches, calls_of
from pipelinerl.modeling.delta_branches import branched, branched_by_kernel
from pipelinerl.modeling.delta_net import Delta, convolution_width, gated_delta
from pipelinerl.modeling.model import hidden_states, prepare_model
from pipelinerl.modeling.prefixes import Prefixes, shared_with_previous
from pipelinerl.modeling.row import Row
from pipelinerl.modeling.segments import Segments
from tests.support.tiny_model import HYBRIDS, hybrid_lm
from tests.unit.modeling.test_delta_net import (
    BFLOAT16,
    FLOAT32,
    VOCABULARY,
    assert_near,
    gradients,
    random_delta,
)

Texts = list[np.ndarray]
NEVER, ALWAYS = 10**9, 1
"""Tokens from which a shared node keeps its state, beside what is usual."""


def row_of(texts: Texts) -> tuple[Row, Prefixes, Texts]:
    """With the texts in the order in which they lie there."""
    ordered = [texts[i] for i in SortedIds.of(texts).order]
    prefixes = Prefixes(np.cumsum([0, *map(len, ordered)]), shared_with_previous(ordered))
    positions = np.concatenate([np.arange(len(one)) for one in ordered])
    return Row.of(np.concatenate(ordered), positions, prefixes.boundaries, prefixes), prefixes, ordered


def tree(rng: np.random.Generator, depth: int, children: int, longest: int) -> Texts:
    """Texts that leave each other up to `depth` times, some of them inside of others."""

    def grown(begin: list[int], levels: int) -> list[list[int]]:
        own = begin + rng.integers(0, VOCABULARY, rng.integers(1, longest + 1)).tolist()
        below = range(rng.integers(1, children + 1) if levels else 0)
        ends = [own] if not levels or rng.random() < 0.3 else []
        return ends + [text for _ in below for text in grown(own, levels - 1)]

    return [np.array(one, np.int32) for one in grown([], depth)]


def shared_states(model: PreTrainedModel, row: Row, prefixes: Prefixes) -> torch.Tensor:
    """Of every token of every text."""
    ids, positions = torch.from_numpy(row.input_ids), torch.from_numpy(row.position_ids)
    segments = row.segments("cpu", kernel=convolution_width(model))
    return hidden_states(model, ids, positions, segments)[0, torch.from_numpy(prefixes.path)]


def states_alone(model: PreTrainedModel, texts: Texts) -> torch.Tensor:
    ids = [torch.from_numpy(one.astype(np.int64))[None] for one in texts]
    return torch.cat([hidden_states(model, one, torch.arange(one.shape[1])[None], None)[0] for one in ids])


def assert_same_gradients(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], limit: Callable[[str], float]
) -> None:
    """By the norm of each. Terms of some cancel, whose digits the others' size decides."""
    assert found.keys() == expected.keys() and any("conv1d" in name for name in found)
    size = float(torch.stack([one.norm() for one in expected.values()]).norm())
    for name, gradient in expected.items():
        difference = float((found[name].double() - gradient.double()).norm())
        assert difference <= limit(name) * (float(gradient.norm()) + 0.02 * size), name


@pytest.fixture(scope="module", params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest) -> PreTrainedModel:
    return prepare_model(hybrid_lm(request.param, VOCABULARY, max_position_embeddings=512))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**16), st.integers(1, 4), st.sampled_from([3, 70]), st.data())
def test_a_row_of_shared_prefixes_is_its_texts_alone(
    hybrid: PreTrainedModel, seed: int, depth: int, longest: int, data: st.DataObject
) -> None:
    """What a text alone is to be, `test_delta_net` asks transformers' own layers."""
    model = hybrid
    rng = np.random.default_rng(seed)
    row, prefixes, texts = row_of([text for _ in range(2) for text in tree(rng, depth, 3, longest)][:8])
    weights = torch.from_numpy(rng.normal(size=(int(prefixes.boundaries[-1]), 16))).float()
    with pytest.MonkeyPatch.context() as patch:
        shortest = data.draw(st.sampled_from([ALWAYS, branches_module.SHORTEST]))
        patch.setattr(branches_module, "SHORTEST", shortest)
        states = shared_states(model, row, prefixes)
        found = gradients(model, states, weights)
    alone = states_alone(model, texts)
    assert_near(states, alone, FLOAT32)
    assert_same_gradients(found, gradients(model, alone, weights), lambda name: FLOAT32)


def counted(*lengths: Sequence[int]) -> Texts:
    """Texts that are the first tokens of one text, each with one of its own behind them."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, VOCABULARY - 1, max(max(one) for one in lengths))
    ends = [[VOCABULARY - 1] * one[1] if len(one) > 1 else [] for one in lengths]
    return [np.array([*whole[: one[0]], *end], np.int32) for one, end in zip(lengths, ends, strict=True)]


CASES: dict[str, Texts] = {
    "one branch": counted((70,), (60, 9)),
    "no branch": counted((70,)),
    "none that shares": [np.array([n, *range(n)], np.int32) for n in range(1, 9)],
    "behind one token": counted((1, 3), (2, 1), (5,)),
    "a text inside of another, and equal ones": counted((70,), (70,), (66,), (3,), (3,)),
    "each leaves one token later": counted(*((n, 2) for n in range(1, 12)), (20,)),
    "each leaves 65 tokens later": counted(*((65 * n, 2) for n in range(1, 7)), (400,)),
    "parents of one and two tokens": counted((1, 5), (2, 5), (4, 5), (4, 1), (9,)),
    "a chunk and its neighbours": counted((63, 3), (64, 64), (65, 1), (128, 2), (200,)),
}


@pytest.mark.parametrize("case", CASES)
def test_shapes_of_tries(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY, max_position_embeddings=512))
    row, prefixes, texts = row_of(CASES[case])
    weights = torch.randn(int(prefixes.boundaries[-1]), 16, generator=torch.Generator().manual_seed(1))
    alone = states_alone(model, texts)
    expected = gradients(model, alone, weights)
    for shortest in (ALWAYS, branches_module.SHORTEST, NEVER):
        monkeypatch.setattr(branches_module, "SHORTEST", shortest)
        states = shared_states(model, row, prefixes)
        assert_near(states, alone, FLOAT32)
        assert_same_gradients(gradients(model, states, weights), expected, lambda name: FLOAT32)


def paths_of(branches: Branches) -> set[tuple[int, ...]]:
    """Of each leaf the row's tokens that its state has seen."""
    states, leaves, parents = list[tuple[int, ...]](), set(), branches.parents.tolist()
    for call in calls_of(branches.parents, branches.offsets, branches.on_host, branches.table):
        rows, starts = branches.rows[call.places].tolist(), call.offsets.tolist()
        own = [tuple(rows[a:b]) for a, b in pairwise(starts)]
        before = [states[one] if one < parents[-1] else () for one in call.parents.tolist()]
        assert call.begins == any(before)
        paths = [one + other for one, other in zip(before, own, strict=True)]
        if call.keeps:
            assert call.states == slice(len(states), len(states) + len(own))
            states += paths
        else:
            leaves.update(paths)
    return leaves


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.integers(0, 5), st.sampled_from([1, 4, 64, NEVER]))
def test_every_leaf_has_seen_its_text_and_nothing_else(seed: int, depth: int, shortest: int) -> None:
    rng = np.random.default_rng(seed)
    row, prefixes, _ = row_of(tree(rng, depth, 3, 20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches_module, "SHORTEST", shortest)
        branches = Branches.of(prefixes, 4)
    expected = {tuple(one.tolist()) for one in np.split(prefixes.path, prefixes.boundaries[1:-1])}
    inside = {one for one in expected for other in expected if one != other and other[: len(one)] == one}
    assert paths_of(branches) == expected - inside
    sequences = int(branches.table.view(-1, 4)[:, 0].sum())
    assert row.input_ids.size <= len(branches.rows) <= row.input_ids.size + (shortest - 1) * sequences
    assert torch.equal(branches.rows[branches.back], torch.arange(row.input_ids.size))


@pytest.mark.parametrize("family", HYBRIDS)
def test_in_bfloat16_a_text_of_such_a_row_differs_from_itself_alone_by_rounding(family: str) -> None:
    model = prepare_model(hybrid_lm(family, VOCABULARY, max_position_embeddings=512)).bfloat16()
    row, prefixes, texts = row_of(tree(np.random.default_rng(7), 2, 2, 70))
    weights = torch.randn(int(prefixes.boundaries[-1]), 16, generator=torch.Generator().manual_seed(1))
    states, alone = shared_states(model, row, prefixes), states_alone(model, texts)
    assert states.dtype == torch.bfloat16
    assert_near(states, alone, BFLOAT16)
    found, expected = gradients(model, states, weights), gradients(model, alone, weights)
    assert_same_gradients(found, expected, lambda name: 2 * BFLOAT16)


def test_recomputed_layers_give_the_same_gradients() -> None:
    row, prefixes, _ = row_of(tree(np.random.default_rng(5), 2, 3, 70))
    weights = torch.randn(int(prefixes.boundaries[-1]), 16, generator=torch.Generator().manual_seed(1))
    found: dict[Any, dict[str, torch.Tensor]] = {}
    for mode in (False, True, "selective", "offload", 2):
        model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY), gradient_checkpointing=mode)
        found[mode] = gradients(model, shared_states(model, row, prefixes), weights)
    torch.testing.assert_close(found, dict.fromkeys(found, found[False]))


def test_a_row_that_does_not_say_what_branches_begin_with_is_refused() -> None:
    model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY))
    row, prefixes, _ = row_of(CASES["one branch"])
    ids, positions = torch.from_numpy(row.input_ids), torch.from_numpy(row.position_ids)
    with pytest.raises(ValueError, match=r"^Qwen3_5GatedDeltaNet has a state, and segments do not say"):
        hidden_states(model, ids, positions, Segments.from_prefixes(prefixes))


class _StandIn(torch.autograd.Function):
    """As the package's kernel: one autograd function that takes states and gives them."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *fields, before, offsets = arguments
        ctx.save_for_backward(*fields, before, offsets)
        out, last = gated_delta(Delta(*(one[0] for one in fields)), offsets.diff().tolist(), before)
        return out[None], last

    @staticmethod
    def backward(ctx: Any, *wanted: Any) -> Any:
        *fields, before, offsets = ctx.saved_tensors

        def differentiate() -> Any:
            taken = [
                one.detach().requires_grad_() for one in (*fields, *([] if before is None else [before]))
            ]
            delta = Delta(*(one[0] for one in taken[:5]))
            out, last = gated_delta(delta, offsets.diff().tolist(), None if before is None else taken[5])
            return torch.autograd.grad([out[None], last], taken, wanted)

        # Operations inside of an operation are not recorded, but those of another thread are.
        with ThreadPoolExecutor(1) as threads:
            found = threads.submit(differentiate).result()
        return *found, *([None] if before is None else []), None


def stand_in(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    *,
    use_qk_l2norm_in_kernel: bool,
    cu_seqlens: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens_cpu: torch.Tensor | None = None,
) -> Any:
    assert use_qk_l2norm_in_kernel
    assert cu_seqlens_cpu is None or torch.equal(cu_seqlens, cu_seqlens_cpu)
    assert initial_state is None or len(initial_state) == len(cu_seqlens) - 1
    out, last = _StandIn.apply(query, key, value, g, beta, initial_state, cu_seqlens)
    return out, last if output_final_state else None


@pytest.fixture
def with_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_kernel, "chunk_rule", lambda: stand_in)
    monkeypatch.setattr(delta_net, "_on_card", lambda values: True)
    monkeypatch.setattr(delta_net, "kernel_missing", lambda: None)


ROWS = ("a text inside of another, and equal ones", "each leaves 65 tokens later", "no branch", "one branch")


@pytest.mark.parametrize("compiled", [False, True])
@symbolic_shapes.patch(use_duck_shape=False)  # as `compiled` does
def test_the_operation_around_the_kernel_hands_on_values_and_gradients(
    compiled: bool, with_kernel: None
) -> None:
    """Compiled it is one graph for all rows, backward pass included."""

    def run(branches: Branches, *fields: torch.Tensor) -> torch.Tensor:
        return branched_by_kernel([2 * one for one in fields], branches)

    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    function = torch.compile(run, backend=graphs, dynamic=True, fullgraph=True) if compiled else run
    for case in ROWS:
        row, prefixes, _ = row_of(CASES[case])
        branches = Branches.of(prefixes, 4)
        whole = [one.requires_grad_() for one in random_delta(row.input_ids.size)]
        expected = branched([2 * one for one in whole], branches, delta_net._by_torch)
        wanted = torch.autograd.grad(expected.square().sum(), whole)
        for _ in range(2):  # what is kept of a row serves its next layer
            out = function(branches, *whole)
            torch.testing.assert_close(out, expected)
            for found, gradient in zip(torch.autograd.grad(out.square().sum(), whole), wanted, strict=True):
                torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6)
    assert graphs.frame_count == compiled


@symbolic_shapes.patch(use_duck_shape=False)
def test_compiled_layers_have_one_graph_for_all_rows(with_kernel: None) -> None:
    """Forward; that the operation has one for its backward pass, the test above shows."""
    model = prepare_model(hybrid_lm("qwen3_5", VOCABULARY, max_position_embeddings=512))
    layers = [one for one in model.get_decoder().layers if hasattr(one, "linear_attn")]
    rows = [row_of(CASES[case])[:2] for case in ROWS]
    weights = [torch.randn(int(prefixes.boundaries[-1]), 16) for _, prefixes in rows]
    plain = [
        gradients(model, shared_states(model, *row), weight)
        for row, weight in zip(rows, weights, strict=True)
    ]
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("eager")
    for layer in layers:
        layer.forward = torch.compile(layer.forward, backend=graphs, dynamic=True, fullgraph=True)
    for row, weight, expected in zip(rows, weights, plain, strict=True):
        found = gradients(model, shared_states(model, *row), weight)
        assert_same_gradients(found, expected, lambda name: FLOAT32)
    assert graphs.frame_count == 1
