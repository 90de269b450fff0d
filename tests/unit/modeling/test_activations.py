"""Recomputing activations changes what is kept, never what is computed."""

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import Checkpointing
from pipelinerl.modeling import model as models
from pipelinerl.modeling.activations import decoder_layers
from pipelinerl.modeling.host_inputs import HostInputs
from pipelinerl.modeling.model import hidden_states, prepare_model
from pipelinerl.modeling.segments import Segments
from tests.support.policy import VOCAB
from tests.support.tiny_model import causal_lm

OFFSETS = np.array([0, 4, 11, 12], np.int32)


def gradients(mode: Checkpointing, reentrant: bool = False) -> tuple[list[torch.Tensor], int, int]:
    """Gradients, calls of the feed-forward layers' widening products, and elements kept for the backward."""
    model = prepare_model(causal_lm(VOCAB), "cpu", mode, reentrant)
    calls, kept = 0, 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    for layer in decoder_layers(model):
        layer.mlp.up_proj.register_forward_hook(count)
    ids = torch.arange(12)[None]
    positions = torch.cat([torch.arange(int(n)) for n in np.diff(OFFSETS)])[None]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = hidden_states(model, ids, positions, Segments.from_offsets(OFFSETS))
    hidden.square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None], calls, kept


@pytest.mark.parametrize(
    ("mode", "reentrant", "calls"),
    [(True, False, 4), (True, True, 4), (2, False, 3), ("selective", False, 4), ("offload", False, 4)],
)
def test_every_mode_gives_the_same_gradients(mode: Checkpointing, reentrant: bool, calls: int) -> None:
    plain, once, everything = gradients(False)
    found, called, kept = gradients(mode, reentrant)
    assert (once, called) == (2, calls)
    assert kept < everything
    assert len(found) == len(plain)
    for ours, expected in zip(found, plain):
        torch.testing.assert_close(ours, expected)


def test_inputs_of_two_layers_at_most_are_on_the_device() -> None:
    inputs, given = HostInputs(), [torch.full((3,), float(n), requires_grad=True) for n in range(4)]
    kept = [inputs.keep(one) for one in given]

    def there() -> list[bool]:
        return [one._there is not None for one in kept]

    assert there() == [False, False, False, True]
    for at in (3, 2, 1, 0):
        found = kept[at].take()
        assert torch.equal(found, given[at]) and found.requires_grad and found.grad_fn is None
        assert there() == [one == at - 1 for one in range(4)]
    assert torch.equal(kept[2].take(), given[2])  # a second backward of the same graph


def test_layers_are_compiled_after_their_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def note(model: torch.nn.Module) -> None:
        seen.extend("forward" in vars(layer) for layer in decoder_layers(model))  # type: ignore[arg-type]

    monkeypatch.setattr(models, "compile_layers", note)
    prepare_model(causal_lm(VOCAB), "cpu", True, compile=True)
    assert seen == [True, True]


def rows(length: int) -> torch.Tensor:
    return torch.arange(length).expand(2, -1)


@pytest.mark.slow
def test_one_piece_of_code_serves_all_layers_and_lengths() -> None:
    model = prepare_model(causal_lm(VOCAB), "cpu", True)
    plain = hidden_states(model, rows(9), rows(9), None)
    torch._dynamo.reset()
    compiled = 0

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        nonlocal compiled
        compiled += 1
        return graph.forward

    for layer in decoder_layers(model):
        layer.compile(dynamic=True, backend=backend)
    for length in (5, 7, 9):
        found = hidden_states(model, rows(length), rows(length), None)
        found.sum().backward()
    torch.testing.assert_close(found, plain)
    assert compiled == 1
    torch._dynamo.reset()
