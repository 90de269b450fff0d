"""One compilation serves rows of all sizes, and the time that it takes has a name."""

import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.base.waits import current_waits
from pipelinerl.modeling import attention, compiling
from pipelinerl.modeling.activations import bare_layers, checkpoint_layers, compile_layers
from pipelinerl.modeling.compiling import candidates_side_by_side, compiled, named_compilations
from pipelinerl.modeling.logprobs import _block_gradient, _block_sums
from pipelinerl.modeling.model import hidden_states, prepare_model
from pipelinerl.modeling.routing import Routers
from pipelinerl.modeling.segments import Segments
from tests.support.tiny_model import causal_lm, mixture_lm

WIDTH = 16


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Names of the waits during each compilation, which makes no code and so takes no compiler."""
    seen: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        seen.append([wait["name"] for wait in current_waits()])
        return graph.forward

    real: Callable[..., Any] = torch.compile
    monkeypatch.setattr(
        compiling.torch, "compile", lambda *args, **named: real(*args, **named, backend=backend)
    )
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def test_a_first_row_as_long_as_other_sizes_is_compiled_for_all_lengths(waits: list[list[str]]) -> None:
    """As the model and its head are wide."""
    model = prepare_model(causal_lm(31, hidden=WIDTH, heads=1))
    compile_layers(model)
    for length in (WIDTH, 7, 9, 12):
        ids = torch.arange(length)[None]
        hidden_states(model, ids, ids, None).sum().backward()
    assert len(waits) == 1


@pytest.mark.parametrize("checkpointing", [True, False])
def test_rows_of_any_number_of_texts_share_a_compilation(
    waits: list[list[str]], monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    """With the kernel of a GPU, which reads offsets and the longest length; here it is a sum of values."""

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *bounds: Any) -> torch.Tensor:
        offsets, _, longest, _ = bounds
        return query + key + value + offsets[-1] + longest

    monkeypatch.setattr(attention, "_has_varlen_kernel", lambda query, value: True)
    monkeypatch.setattr(attention, "varlen_attn", lambda *tensors, **_: kernel(*tensors))
    model = prepare_model(causal_lm(31, hidden=WIDTH), gradient_checkpointing=checkpointing)
    compile_layers(model)
    for lengths in ([9, 3], [4], [3, 8, 5], [2, 2, 2, 2, 7], [6, 1, 3, 3]):
        length = sum(lengths)
        ids = torch.arange(length)[None]
        segments = Segments.from_offsets(np.cumsum([0, *lengths]))
        hidden_states(model, ids, ids, segments).sum().backward()
    assert len(waits) == 1


def test_logits_that_happen_to_be_square_are_compiled_for_all_shapes(waits: list[list[str]]) -> None:
    sums, gradient = compiled(_block_sums), compiled(_block_gradient)
    for rows, columns in ((8, 8), (5, 9), (12, 7)):
        ids, one = torch.arange(rows) % columns, torch.ones(rows)
        sums(torch.randn(rows, columns), ids)
        gradient(torch.randn(rows, columns), ids, one, one, one, one, None, 1.0, torch.float32)
    assert len(waits) == 2


def test_a_compilation_is_a_wait_with_a_name(
    waits: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with named_compilations(), caplog.at_level("INFO", logger="pipelinerl.modeling.compiling"):
        compiled(torch.sin)(torch.ones(3))
        assert current_waits() == []
    compiled(torch.cos)(torch.ones(3))
    assert waits == [["torch.compile"], []]
    said = [record.message for record in caplog.records if record.name == compiling.__name__]
    assert len(said) == 1 and said[0].startswith("torch.compile took ")


def test_experts_are_compiled_beside_a_router_that_is_told_what_to_choose(waits: list[list[str]]) -> None:
    """Outputs, gradients and what routers note are those of layers that are not compiled; so it is undone."""
    torch.manual_seed(0)
    model = prepare_model(mixture_lm(31, hidden=WIDTH), gradient_checkpointing=True)
    routers = Routers.of(model)
    assert routers is not None

    def train(length: int) -> list[torch.Tensor]:
        ids = torch.arange(length)[None]
        routes = np.stack([np.roll(np.arange(8), i)[:2] for i in range(4 * length)])
        with routers.replaying(routes.astype(np.uint8).reshape(length, 4, 2), None, torch.device("cpu")):
            hidden = hidden_states(model, ids, ids, None)
            hidden.pow(2).sum().backward()
            found = [hidden.detach().clone(), routers.recorded().clone()]
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return found

    plain = [train(length) for length in (5, 9)]
    compile_layers(model)
    for expected, length in zip(plain, (5, 9), strict=True):
        for one, other in zip(train(length), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert waits
    compiled_calls = len(waits)
    bare_layers(model)
    checkpoint_layers(model, True)
    assert all(torch.equal(*pair) for pair in zip(train(5), plain[0], strict=True))
    assert len(waits) == compiled_calls


class Candidate:
    """A configuration of a kernel, as Triton's has it."""

    def __init__(self, warps: int) -> None:
        self.warps = warps

    def all_kwargs(self) -> dict[str, int]:
        return {"num_warps": self.warps}


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What the trainer uses of Triton, whose kernels `compile_kernel` compiles."""
    found = types.SimpleNamespace(mode=None, compile_kernel=None)

    class Mode:
        def __init__(self, executor: Executor, *, ignore_errors: bool) -> None:
            assert ignore_errors
            self.executor, self.futures = executor, list[Future[int]]()

        def __enter__(self) -> None:
            found.mode = self

        def __exit__(self, *_: object) -> None:
            found.mode = None
            wait(self.futures)

    class Kernel:
        def run(self, *args: object, grid: object, warmup: bool, num_warps: int) -> None:
            assert warmup and args == ("row", 8) and grid == (1,)
            found.mode.futures.append(found.mode.executor.submit(found.compile_kernel, num_warps))

    class Autotuner:
        def __init__(self) -> None:
            self.fn, self.nargs = Kernel(), {"x": "row", "n": 8}

        def prune_configs(self, given: dict[str, Any]) -> list[Candidate]:
            return [Candidate(warps) for warps in (1, 2, 4, 8)][: given.get("most", 4)]

    found.tuner = Autotuner
    contents: dict[str, dict[str, Any]] = {
        "_async_compile": {"AsyncCompileMode": Mode},
        "autotuner": {"Autotuner": Autotuner},
    }
    for name, content in contents.items():
        module = types.ModuleType(f"triton.runtime.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return found


def test_the_candidates_of_a_kernel_are_compiled_at_once(triton: types.SimpleNamespace) -> None:
    all_at_once = threading.Barrier(4)

    def compile_kernel(warps: int) -> int:
        return all_at_once.wait(60)  # nobody passes alone

    triton.compile_kernel = compile_kernel
    untouched = triton.tuner.prune_configs
    with candidates_side_by_side(threads=4):
        chosen = triton.tuner().prune_configs({"grid": (1,), "warmup": False})
        assert not all_at_once.broken and [one.warps for one in chosen] == [1, 2, 4, 8]
    assert triton.tuner.prune_configs is untouched


def test_a_kernel_that_is_not_launched_or_has_one_candidate_compiles_nothing_beforehand(
    triton: types.SimpleNamespace,
) -> None:
    compiled_before: list[int] = []
    triton.compile_kernel = compiled_before.append
    with candidates_side_by_side(threads=4):
        assert len(triton.tuner().prune_configs({"grid": (1,), "warmup": True})) == 4
        assert len(triton.tuner().prune_configs({"grid": (1,), "warmup": False, "most": 1})) == 1
    assert not compiled_before


def test_candidates_that_cannot_be_compiled_beforehand_are_left_to_the_tuner(
    triton: types.SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with candidates_side_by_side(threads=4), caplog.at_level("WARNING"):
        # An argument that this kernel does not take.
        assert len(triton.tuner().prune_configs({"grid": (1,), "warmup": False, "other": 1})) == 4
    assert "compiled one by one: TypeError" in caplog.text
