"""Versions put into a served model by copies: what may be, and everything that must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pipelinerl.inference.placement import NoPlacement, Placement

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
Version = list[tuple[str, torch.Tensor]]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(8, 16)
        self.gate_up_proj = nn.Linear(8, 24, bias=False)
        self.norm = nn.LayerNorm(8, bias=False)
        self.register_buffer("scale", torch.tensor(1.0))
        self.kv_cache = torch.zeros(3)
        self.scale_on_the_host = torch.tensor(1.0)


class Served(nn.Module):
    """As an engine holds it: fused, in bfloat16, the vocabulary padded to 12 rows, the head tied."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.embed = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight
        self.to(torch.bfloat16)

    def load_its_own_way(self, version: Version) -> None:
        given = dict(version)
        with torch.no_grad():
            self.embed.weight[:10] = given["embed.weight"]
            self.embed.weight[10:] = 0
            for number, layer in enumerate(self.layers):
                start = f"layers.{number}."
                for kind in ("weight", "bias"):
                    parts = [given[f"{start}{part}_proj.{kind}"] for part in "qkv"]
                    getattr(layer.qkv_proj, kind).copy_(torch.cat(parts))
                parts = [given[f"{start}{part}_proj.weight"] for part in ("gate", "up")]
                layer.gate_up_proj.weight.copy_(torch.cat(parts))
                layer.norm.weight.copy_(given[f"{start}norm.weight"])


def version(seed: int) -> Version:
    """Under the names of a checkpoint, in float32, in no special order."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (10, 8)}
    for number in range(2):
        start = f"layers.{number}."
        for part, rows in (("up", 12), ("gate", 12)):
            shapes[f"{start}{part}_proj.weight"] = (rows, 8)
        for part, rows in (("v", 4), ("q", 8), ("k", 4)):
            shapes |= {f"{start}{part}_proj.weight": (rows, 8), f"{start}{part}_proj.bias": (rows,)}
        shapes[f"{start}norm.weight"] = (8,)
    return [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]


@pytest.fixture
def loaded() -> Served:
    model = Served()
    model.load_its_own_way(version(1))
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_copies_leave_what_the_models_own_way_leaves(loaded: Served) -> None:
    placement = Placement.of(loaded, version(1), PACKED)
    expected = Served()
    for seed in (2, 3):
        assert placement.holds(loaded)
        placement.put(version(seed))
        expected.load_its_own_way(version(seed))
        for name, tensor in state(expected).items():
            assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert loaded.head.weight is loaded.embed.weight


def test_a_parameter_that_lies_elsewhere_is_seen(loaded: Served) -> None:
    placement = Placement.of(loaded, version(1), PACKED)
    loaded.layers[0].norm.weight = nn.Parameter(torch.ones(8))
    assert not placement.holds(loaded)


def _scaled(model: Served) -> None:
    with torch.no_grad():
        model.layers[1].norm.weight += 1


def _swapped(model: Served) -> None:
    with torch.no_grad():
        weight = model.layers[0].gate_up_proj.weight
        weight.copy_(weight.roll(12, 0))


def _not_loaded(model: Served) -> None:
    model.extra = nn.Parameter(torch.ones(2))


def _derived(model: Served) -> None:
    model.layers[0].absorbed = model.layers[0].qkv_proj.weight.detach().T.contiguous()


def _padded_in_between(model: Served) -> None:
    model.layers[0].gate_up_proj = nn.Linear(8, 26, bias=False)


def _narrower(model: Served) -> None:
    model.layers[0].norm = nn.LayerNorm(9, bias=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_scaled, "does not hold layers.1.norm.weight"),
        (_swapped, r"does not hold layers.0.up_proj.weight|does not hold layers.0.gate_proj.weight"),
        (_not_loaded, "extra is in no version"),
        (_derived, "layers.0 holds absorbed beside its parameters"),
        (_padded_in_between, "layers.0.gate_up_proj.weight has 26 rows, its tensors 24"),
        (_narrower, r"layers.0.norm.weight"),
    ],
)
def test_a_model_that_copies_would_not_serve(
    loaded: Served, change: Callable[[Served], None], reason: str
) -> None:
    change(loaded)
    with pytest.raises(NoPlacement, match=reason):
        Placement.of(loaded, version(1), PACKED)


def test_a_name_without_a_parameter(loaded: Served) -> None:
    with pytest.raises(NoPlacement, match=r"no parameter for layers.0.[qkv]_proj"):
        Placement.of(loaded, version(1), {"gate_up_proj": PACKED["gate_up_proj"]})


def test_other_tensors_than_the_first_version_change_nothing(loaded: Served) -> None:
    placement = Placement.of(loaded, version(1), PACKED)
    before = state(loaded)
    narrow = [(name, tensor[..., :4]) for name, tensor in version(2)]
    for wrong in (version(2)[1:], narrow, [*version(2), ("more", torch.ones(1))]):
        with pytest.raises(ValueError, match="have changed since the first version"):
            placement.put(wrong)
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.state_dict().items())
