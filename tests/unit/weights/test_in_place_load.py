"""Versions put into a served model by copies: what may be, and everything that must not."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from pipelinerl.engines.vllm import in_place_load as module
from pipelinerl.engines.vllm.in_place_load import InPlaceLoad, NoInPlaceLoad

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


@dataclass
class Mapper:
    """vLLM's `WeightsMapper` as far as it is asked: since 0.33 it knows the parts of parameters as well."""

    prefix: dict[str, str | None]
    orig_to_new_stacked: dict[str, tuple[str, str]]

    def _map_name(self, name: str) -> str | None:
        for part, (whole, _) in self.orig_to_new_stacked.items():
            name = name.replace(part, whole)
        for old, new in self.prefix.items():
            if name.startswith(old):
                return None if new is None else new + name.removeprefix(old)
        return name


class Stub(nn.Module):
    """Stands for a tower that is not served; hands on every attribute of what it hides, as vLLM's does."""

    def __init__(self, hidden: nn.Module) -> None:
        super().__init__()
        self.__dict__["hidden"] = hidden

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["hidden"], name)


class Seeing(nn.Module):
    """A decoder of text below another name, and a tower of sight that it is served without."""

    def __init__(self, decoder: Served) -> None:
        super().__init__()
        self.language_model = decoder
        self.visual = Stub(nn.Sequential(nn.Linear(2, 2)))
        stacked = {f".{part}_proj.": (".qkv_proj.", part) for part in "qkv"}
        names = {"model.visual.": "visual.", "model.language_model.": "language_model.", "mtp.": None}
        self.hf_to_vllm_mapper = Mapper(names, stacked)


def seen_version(seed: int) -> Version:
    sight = [("model.visual.0.weight", torch.ones(2, 2)), ("model.visual.0.bias", torch.ones(2))]
    return [*sight, *((f"model.language_model.{name}", tensor) for name, tensor in version(seed))]


def test_the_text_half_of_a_model_that_also_sees(loaded: Served) -> None:
    in_place = InPlaceLoad(Seeing(loaded), seen_version(1), PACKED)
    in_place.load(seen_version(2))
    expected = Served()
    expected.load_its_own_way(version(2))
    for name, tensor in state(expected).items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    with pytest.raises(ValueError, match="have changed since the first version"):
        in_place.load(seen_version(3)[1:])


@pytest.mark.parametrize("name", ["model.audio.0.weight", "model.language_model.layers.0.extra", "lone"])
def test_what_no_part_of_the_model_stands_for_is_not_left_out(loaded: Served, name: str) -> None:
    with pytest.raises(NoInPlaceLoad, match=f"no parameter for {name}"):
        InPlaceLoad(Seeing(loaded), [*seen_version(1), (name, torch.ones(2))], PACKED)


EXPERTS, WIDTH = 3, 6


class RoutedExperts(nn.Module):
    """Experts of a layer as vLLM keeps them, with its mapping of names (0.26 to 0.33)."""

    def __init__(self, layer_name: str) -> None:
        super().__init__()
        self.layer_name = layer_name
        self.w13_weight = nn.Parameter(torch.zeros(EXPERTS, 2 * WIDTH, 8))
        self.w2_weight = nn.Parameter(torch.zeros(EXPERTS, 8, WIDTH))

    def get_expert_mapping(self, include_fused: bool = False) -> list[tuple[str, str, int, str]]:
        fused = [
            ("experts.w13_weight", "experts.gate_up_proj", 0, "w1"),
            ("experts.w13_weight", "experts.gate_up_proj", 1, "w3"),
            ("experts.w2_weight", "experts.down_proj", 0, "w2"),
        ]
        both = [
            ("experts.w13_", f"experts.{expert}.gate_up_proj.", expert, part)
            for expert in range(EXPERTS)
            for part in ("w1", "w3")
        ]
        parts = (("w1", "w13_", "gate_proj"), ("w2", "w2_", "down_proj"), ("w3", "w13_", "up_proj"))
        single = [
            (f"experts.{parameter}", f"experts.{expert}.{name}.", expert, part)
            for expert in range(EXPERTS)
            for part, parameter, name in parts
        ]
        return fused * include_fused + both + single


class Runner(nn.Module):
    def __init__(self, layer_name: str) -> None:
        super().__init__()
        self.routed_experts = RoutedExperts(layer_name)


class Mixture(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.gate = nn.Linear(8, EXPERTS, bias=False)
        self.shared = nn.Module()
        self.shared.gate_up_proj = nn.Linear(8, 8, bias=False)
        self.experts = Runner(f"layers.{number}.mlp.experts")


class ServedMixture(nn.Module):
    """Two layers of experts in bfloat16, gate, up and down of expert e at [e]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for number, layer in enumerate(self.layers):
            layer.mlp = Mixture(number)
        self.to(torch.bfloat16)

    def load_its_own_way(self, seed: int) -> None:
        with torch.no_grad():
            for layer, given in zip(self.layers, drawn(seed), strict=True):
                routed = layer.mlp.experts.routed_experts
                layer.mlp.gate.weight.copy_(given["gate"])
                layer.mlp.shared.gate_up_proj.weight.copy_(torch.cat([given["s_gate"], given["s_up"]]))
                for expert in range(EXPERTS):
                    routed.w13_weight[expert, :WIDTH] = given["gate_proj"][expert]
                    routed.w13_weight[expert, WIDTH:] = given["up_proj"][expert]
                    routed.w2_weight[expert] = given["down_proj"][expert]


def drawn(seed: int) -> list[dict[str, torch.Tensor]]:
    """Weights of each layer; those of experts with the expert first."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"gate": (EXPERTS, 8), "s_gate": (4, 8), "s_up": (4, 8)}
    shapes |= dict.fromkeys(("gate_proj", "up_proj"), (EXPERTS, WIDTH, 8))
    shapes |= {"down_proj": (EXPERTS, 8, WIDTH)}
    return [{name: torch.randn(shapes[name], generator=generator) for name in shapes} for _ in range(2)]


def mixture_version(seed: int, kind: str) -> Version:
    """Under a checkpoint's names: all experts of a layer in two tensors, or each of them in three or two."""
    found: Version = []
    for number, given in enumerate(drawn(seed)):
        start = f"layers.{number}.mlp."
        found.append((f"{start}gate.weight", given["gate"]))
        found += [(f"{start}shared.{part}_proj.weight", given[f"s_{part}"]) for part in ("up", "gate")]
        gate, up, down = (given[f"{part}_proj"] for part in ("gate", "up", "down"))
        if kind == "stacked":
            found.append((f"{start}experts.gate_up_proj", torch.cat([gate, up], 1)))
            found.append((f"{start}experts.down_proj", down))
            continue
        for expert in reversed(range(EXPERTS)):
            parts = {"down": down[expert], "up": up[expert], "gate": gate[expert]}
            if kind == "gate and up in one":
                parts = {"gate_up": torch.cat([gate[expert], up[expert]]), "down": down[expert]}
            found += [(f"{start}experts.{expert}.{part}_proj.weight", one) for part, one in parts.items()]
    return found


KINDS = ("stacked", "one by one", "gate and up in one")
QKV = {"qkv_proj": PACKED["qkv_proj"]}


@pytest.fixture
def mixture() -> ServedMixture:
    model = ServedMixture()
    model.load_its_own_way(1)
    return model


@pytest.mark.parametrize("most_single", [0, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_put_where_the_models_own_way_puts_them(
    mixture: ServedMixture, kind: str, most_single: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SINGLE_COPIES", most_single)
    in_place = InPlaceLoad(mixture, mixture_version(1, kind), QKV)
    in_place.load(mixture_version(2, kind))
    expected = ServedMixture()
    expected.load_its_own_way(2)
    for name, tensor in state(expected).items():
        assert torch.equal(tensor, mixture.state_dict()[name]), name
    assert in_place.fits(mixture)


def routed(model: ServedMixture) -> RoutedExperts:
    found: RoutedExperts = model.layers[1].mlp.experts.routed_experts
    return found


def halves_swapped(model: ServedMixture) -> None:
    routed(model).w13_weight.copy_(routed(model).w13_weight.roll(WIDTH, 1))


def experts_swapped(model: ServedMixture) -> None:
    routed(model).w2_weight.copy_(routed(model).w2_weight[[0, 2, 1]])


def rows_shuffled(model: ServedMixture) -> None:
    routed(model).w2_weight.copy_(routed(model).w2_weight[:, torch.arange(8).roll(1)])


def experts_of_one_of_three_cards(model: ServedMixture) -> None:
    for name, parameter in list(routed(model).named_parameters()):
        setattr(routed(model), name, nn.Parameter(parameter[:1].clone()))


def redundant(model: ServedMixture) -> None:
    one = routed(model)
    one.w2_weight = nn.Parameter(torch.cat([one.w2_weight, one.w2_weight[:1]]))


def block_layout(model: ServedMixture) -> None:
    one = routed(model)
    one.w2_weight = nn.Parameter(one.w2_weight.unflatten(2, (2, 3)).transpose(1, 2).contiguous())


OTHER_LAYOUTS: dict[str, tuple[Callable[[ServedMixture], None], str]] = {
    "up before gate": (halves_swapped, r"does not hold layers.1.mlp.experts.\S*(gate|up)\S*"),
    "experts in another order": (experts_swapped, r"does not hold layers.1.mlp.experts.\S*down_proj"),
    "rows in another order": (rows_shuffled, r"does not hold layers.1.mlp.experts.\S*down_proj"),
    "one card's experts": (experts_of_one_of_three_cards, r"w(13|2)_weight has \d+ rows"),
    "an expert twice": (redundant, r"w2_weight (has \d+ rows|holds more than zeros behind)"),
    "blocks": (block_layout, "w2_weight"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHER_LAYOUTS)
def test_experts_that_a_kernel_keeps_otherwise(
    mixture: ServedMixture, change: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARED", 50)  # an expert at a time
    apply, reason = OTHER_LAYOUTS[change]
    with torch.no_grad():
        apply(mixture)
    with pytest.raises(NoInPlaceLoad, match=reason):
        InPlaceLoad(mixture, mixture_version(1, kind), QKV)


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_without_one_of_the_experts(mixture: ServedMixture, kind: str) -> None:
    whole = mixture_version(1, kind)
    for missing in [name for name, _ in whole if ".experts." in name]:
        with pytest.raises(NoInPlaceLoad, match=r"rows, its tensors|is in no version"):
            InPlaceLoad(mixture, [one for one in whole if one[0] != missing], QKV)
