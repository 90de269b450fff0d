"""Versions put into a served model by copies: what may be, and everything that must not."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pipelinerl.weights.receive.in_place_load import InPlaceLoad, NoInPlaceLoad

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
Version = list[tuple[str, torch.Tensor]]


class Attention:
    """As engines keep it beside their modules."""

    def __init__(self, sinks: torch.Tensor) -> None:
        self.sinks = sinks

    def process_weights_after_loading(self) -> None: ...


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(8, 16)
        self.gate_up_proj = nn.Linear(8, 24, bias=False)
        self.norm = nn.LayerNorm(8, bias=False)
        self.temperature = nn.Parameter(torch.tensor(1.0))
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
        for layer in self.layers:
            layer.attention = Attention(layer.norm.weight)

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
                layer.temperature.copy_(given[f"{start}temperature"])


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
        shapes |= {f"{start}norm.weight": (8,), f"{start}temperature": ()}
    return [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]


@pytest.fixture
def loaded() -> Served:
    model = Served()
    model.load_its_own_way(version(1))
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_copies_leave_what_the_models_own_way_leaves(loaded: Served) -> None:
    in_place = InPlaceLoad(loaded, version(1), PACKED)
    expected = Served()
    for seed in (2, 3):
        assert in_place.fits(loaded)
        in_place.load(version(seed))
        expected.load_its_own_way(version(seed))
        for name, tensor in state(expected).items():
            assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert loaded.head.weight is loaded.embed.weight


def test_a_parameter_that_lies_elsewhere_is_seen(loaded: Served) -> None:
    in_place = InPlaceLoad(loaded, version(1), PACKED)
    loaded.layers[0].norm.weight = nn.Parameter(torch.ones(8))
    assert not in_place.fits(loaded)


def swap_parts(model: Served) -> None:
    weight = model.layers[0].gate_up_proj.weight
    weight.copy_(weight.roll(12, 0))


def derive(model: Served) -> None:
    model.layers[0].absorbed = model.layers[0].qkv_proj.weight.detach().T.contiguous()


def derive_beside(model: Served) -> None:
    model.layers[0].attention = Attention(model.layers[0].norm.weight.detach().float())


def gate_up(columns: int, rows: int) -> Callable[[Served], None]:
    return lambda model: setattr(model.layers[0], "gate_up_proj", nn.Linear(columns, rows, bias=False))


def parameter(path: str, value: torch.Tensor) -> Callable[[Served], None]:
    module, _, name = path.rpartition(".")
    return lambda model: setattr(model.get_submodule(module), name, nn.Parameter(value))


CHANGES: dict[str, tuple[Callable[[Served], object], str]] = {
    "scaled": (lambda model: model.layers[1].norm.weight.add_(1), "does not hold layers.1.norm.weight"),
    "parts swapped": (swap_parts, r"does not hold layers.0.(up|gate)_proj.weight"),
    "not loaded": (parameter("extra", torch.ones(2)), "extra is in no version"),
    "derived": (derive, "layers.0 holds absorbed beside its parameters"),
    "derived by attention": (derive_beside, "layers.0 holds sinks beside its parameters"),
    "padded in between": (gate_up(8, 26), "layers.0.gate_up_proj.weight has 26 rows, its tensors 24"),
    "padded by ones": (
        lambda model: model.embed.weight[11].fill_(1),
        "embed.weight holds more than zeros behind its 10 rows",
    ),
    "column-parallel on two cards": (
        gate_up(8, 12),
        "layers.0.gate_up_proj.weight has 12 rows, its tensors 24",
    ),
    "row-parallel on two cards": (
        gate_up(4, 24),
        r"layers.0.gate_proj.weight is \[12, 8\], its place \[12, 4\]",
    ),
    "numbers instead of a number": (
        parameter("layers.0.temperature", torch.ones(2)),
        "layers.0.temperature or one of its tensors is a single number",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_copies_would_not_serve(loaded: Served, change: str) -> None:
    apply, reason = CHANGES[change]
    with torch.no_grad():
        apply(loaded)
    with pytest.raises(NoInPlaceLoad, match=reason):
        InPlaceLoad(loaded, version(1), PACKED)


def test_names_that_do_not_fit_the_model(loaded: Served) -> None:
    only_queries = [one for one in version(1) if ".0.k_" not in one[0] and ".0.v_" not in one[0]]
    # A head of its own, sent as such, in a model that keeps both in the same memory.
    with_head = [*version(1), ("head.weight", dict(version(1))["embed.weight"])]
    with torch.no_grad():
        loaded.layers[0].qkv_proj.weight[8:] = 0
    loaded.head.weight = nn.Parameter(loaded.embed.weight.detach())
    only_gates = {"gate_up_proj": PACKED["gate_up_proj"]}
    for given, packed, reason in (
        (version(1), only_gates, r"no parameter for layers.0.[qkv]_proj"),
        (only_queries, PACKED, r"layers.0.qkv_proj.\w+ has 16 rows, its tensors 8"),
        (with_head, PACKED, "several tensors have one place"),
    ):
        with pytest.raises(NoInPlaceLoad, match=reason):
            InPlaceLoad(loaded, given, packed)


def test_other_tensors_than_the_first_version_change_nothing(loaded: Served) -> None:
    in_place = InPlaceLoad(loaded, version(1), PACKED)
    before = state(loaded)
    narrow = [(name, tensor[..., :4] if tensor.dim() else tensor) for name, tensor in version(2)]
    for wrong in (version(2)[1:], narrow, [*version(2), ("more", torch.ones(1))]):
        with pytest.raises(ValueError, match="have changed since the first version"):
            in_place.load(wrong)
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.state_dict().items())
