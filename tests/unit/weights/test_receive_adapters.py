"""Adapters alone in a model of vLLM: each version is the start's weights and its adapters, bit for bit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipelinerl.engines.version_file import HostMemory
from pipelinerl.engines.vllm import receive_adapters as module
from pipelinerl.engines.vllm.in_place_load import NoInPlaceLoad
from pipelinerl.engines.vllm.receive_adapters import AdapterLoad, AdapterVersion, TakesAdapters
from pipelinerl.engines.wire import PermanentUpdateError, permanent_words

HIDDEN, HEAD, HEADS, KV_HEADS, WIDTH, VOCABULARY, RANK, SCALE = 8, 4, 4, 2, 12, 10, 2, 1.5
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
SHAPES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (WIDTH, HIDDEN),
    "mlp.up_proj": (WIDTH, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDTH),
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)


def eighths(*shape: int, seed: int) -> torch.Tensor:
    """Numbers whose sums of products float32 holds exactly, in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-40, 41, shape, generator=generator) / 8


def checkpoint() -> Tensors:
    """As a folder of a model has it; not every number is one of bfloat16 that another version could make."""
    found = {"model.embed_tokens.weight": eighths(VOCABULARY, HIDDEN, seed=1)}
    for layer in range(2):
        for number, (name, shape) in enumerate(SHAPES.items()):
            found[f"model.layers.{layer}.{name}.weight"] = eighths(*shape, seed=10 * layer + number)
        found[f"model.layers.{layer}.self_attn.q_proj.bias"] = torch.ones(HEADS * HEAD)
    return {name: one.bfloat16() for name, one in found.items()}


def adapters(seed: int, but: str = "nothing") -> Tensors:
    """Under peft's names."""
    found: Tensors = {}
    for layer in range(2):
        for number, (name, (outputs, inputs)) in enumerate(SHAPES.items()):
            start = f"base_model.model.model.layers.{layer}.{name}"
            down = eighths(RANK, inputs, seed=1000 * seed + 10 * layer + number)
            up = eighths(outputs, RANK, seed=2000 * seed + 10 * layer + number)
            found |= {f"{start}.lora_A.weight": down, f"{start}.lora_B.weight": up}
    return {name: one for name, one in found.items() if but not in name}


def merged(base: Tensors, version: Tensors) -> Tensors:
    """What a trainer would send in one piece."""
    found = dict(base)
    for name in [one for one in version if "lora_A" in one]:
        target = name.removeprefix("base_model.model.").replace(".lora_A", "")
        product = version[name.replace("lora_A", "lora_B")].double() @ version[name].double() * SCALE
        found[target] = (base[target].double() + product).to(torch.bfloat16)
    return found


class Served(nn.Module):
    """A rank's part of a model as vLLM holds it: fused, divided, heads of keys and values more than once."""

    def __init__(self, given: Tensors, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self.model = nn.Module()
        padded = torch.zeros(16, HIDDEN, dtype=torch.bfloat16)
        padded[:VOCABULARY] = given["model.embed_tokens.weight"]
        self.model.embed_tokens = _holding(padded)
        self.model.layers = nn.ModuleList(_layer(given, number, rank, ranks) for number in range(2))


def _holding(weight: torch.Tensor) -> nn.Module:
    found = nn.Module()
    found.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return found


def _layer(given: Tensors, number: int, rank: int, ranks: int) -> nn.Module:
    def of(name: str) -> torch.Tensor:
        return given[f"model.layers.{number}.{name}.weight"]

    queries = HEADS // ranks
    kept = max(1, KV_HEADS // ranks)
    first = rank * KV_HEADS // ranks
    heads = [of("self_attn.q_proj").view(HEADS, HEAD, HIDDEN)[rank * queries : (rank + 1) * queries]]
    heads += [of(f"self_attn.{one}_proj").view(KV_HEADS, HEAD, HIDDEN)[first : first + kept] for one in "kv"]
    layer: Any = nn.Module()
    layer.self_attn, layer.mlp = nn.Module(), nn.Module()
    layer.self_attn.qkv_proj = _holding(torch.cat([one.flatten(0, 1) for one in heads]))
    layer.self_attn.o_proj = _holding(of("self_attn.o_proj").chunk(ranks, 1)[rank])
    gate_up = [of(f"mlp.{one}_proj").chunk(ranks)[rank] for one in ("gate", "up")]
    layer.mlp.gate_up_proj = _holding(torch.cat(gate_up))
    layer.mlp.down_proj = _holding(of("mlp.down_proj").chunk(ranks, 1)[rank])
    return layer


def equal(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("on_card", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_version_is_the_merged_one_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, ranks: int, on_card: bool
) -> None:
    """Also what comes back after others, and a layer that has no adapter any more."""
    monkeypatch.setattr(module, "COMPARED", 3 * HIDDEN)  # several pieces a matrix
    base = checkpoint()
    for rank in range(ranks):
        served = Served(base, rank, ranks)
        load = AdapterLoad(served, list(base.items()), PACKED, rank=rank, ranks=ranks, on_card=on_card)
        versions = [adapters(seed) for seed in (1, 2, 3, 1)] + [adapters(4, but="up_proj"), adapters(1)]
        for version in versions:
            assert not equal(served, Served(merged(base, version), rank, ranks))
            load.load(load.prepare(version, SCALE))
            assert equal(served, Served(merged(base, version), rank, ranks))
        assert load.fits(served)
        load.release()


def test_the_start_is_kept_before_the_first_version_is_put_into_place() -> None:
    """`prepare` runs beside the engine's steps, which it must not change."""
    base = checkpoint()
    served = Served(base)
    load = AdapterLoad(served, list(base.items()), PACKED)
    version = load.prepare(adapters(1), SCALE)
    assert equal(served, Served(base))
    load.load(version)
    assert equal(served, Served(merged(base, adapters(1))))


def test_a_mapping_of_names_holds_for_adapters_and_checkpoint() -> None:
    """Of a model that also sees, both may call the decoder otherwise than vLLM."""

    class Mapper:
        def _map_name(self, name: str) -> str:
            return name.replace("model.language.", "model.").replace("old.", "model.")

    base = checkpoint()
    served: Any = Served(base)
    served.hf_to_vllm_mapper = Mapper()
    load = AdapterLoad(served, [(f"old.{n.removeprefix('model.')}", t) for n, t in base.items()], PACKED)
    names = {n.replace(".layers.", ".language.layers."): n for n in adapters(1)}
    load.load(load.prepare({new: adapters(1)[old] for new, old in names.items()}, SCALE))
    assert equal(served, Served(merged(base, adapters(1))))


LAYER = "base_model.model.model.layers.0.self_attn.k_proj"


def without_half(tensors: Tensors) -> None:
    del tensors[f"{LAYER}.lora_B.weight"]


def of_another_layer(tensors: Tensors) -> None:
    for part in ("lora_A", "lora_B"):
        tensors[f"{LAYER.replace('layers.0', 'layers.7')}.{part}.weight"] = tensors[f"{LAYER}.{part}.weight"]


def of_another_width(tensors: Tensors) -> None:
    tensors[f"{LAYER}.lora_A.weight"] = torch.ones(RANK, HIDDEN + 1)


def of_another_type(tensors: Tensors) -> None:
    tensors[f"{LAYER}.lora_A.weight"] = tensors[f"{LAYER}.lora_A.weight"].bfloat16()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_half, "k_proj.lora_A.weight is half of no adapter"),
        (of_another_layer, "the engine does not hold model.layers.7.self_attn.k_proj.weight as the folder"),
        (of_another_width, "k_proj.weight of shape (8, 8) has adapters torch.float32 (8, 2)"),
        (of_another_type, "and torch.bfloat16 (2, 8)"),
    ],
)
def test_adapters_of_another_model_are_refused_for_good_and_change_nothing(change: Any, said: str) -> None:
    base = checkpoint()
    served, tensors = Served(base), adapters(1)
    load = AdapterLoad(served, list(base.items()), PACKED)
    change(tensors)
    with pytest.raises(PermanentUpdateError) as refused:
        load.prepare(tensors, SCALE)
    words = permanent_words(str(refused.value))
    assert words is not None and said in words and "set weights.lora=merged" in words
    assert equal(served, Served(base))


def test_weights_that_are_not_those_of_the_folder_get_no_adapters() -> None:
    """One number of one matrix is enough; the other matrices do not suffer."""
    base = checkpoint()
    served: Any = Served(base)
    served.model.layers[1].mlp.gate_up_proj.weight[WIDTH, 0] += 1  # the first row of up_proj
    load = AdapterLoad(served, list(base.items()), PACKED)
    load.prepare(adapters(1, but="layers.1.mlp.up_proj"), SCALE)
    with pytest.raises(PermanentUpdateError, match=r"does not hold model\.layers\.1\.mlp\.up_proj\.weight"):
        load.prepare(adapters(1), SCALE)


def test_a_model_with_numbers_computed_from_its_weights_is_refused() -> None:
    served: Any = Served(checkpoint())
    served.model.layers[0].self_attn.absorbed = torch.ones(3)
    with pytest.raises(NoInPlaceLoad, match="holds absorbed beside its parameters"):
        AdapterLoad(served, list(checkpoint().items()), PACKED)


@pytest.mark.parametrize(("on_card", "remedy"), [(True, "gpu-memory-utilization"), (False, "ulimit -l")])
def test_where_no_memory_is_left_for_the_start_the_remedy_is_said(
    monkeypatch: pytest.MonkeyPatch, on_card: bool, remedy: str
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory")

    load = AdapterLoad(Served(checkpoint()), list(checkpoint().items()), PACKED, on_card=on_card)
    monkeypatch.setattr(torch.Tensor, "clone", none_left)
    monkeypatch.setattr(HostMemory, "reserve", none_left)
    with pytest.raises(PermanentUpdateError, match=f"weights.lora=adapter needs .* GiB.*{remedy}"):
        load.prepare(adapters(1), SCALE)


class Worker(TakesAdapters):
    """A back-end between vLLM and the model; its checkpoint is read by nobody's loader."""

    def __init__(self, device: str = "cuda", quantised: object = None) -> None:
        self.base, self.read = checkpoint(), 0
        self.model, self.device = Served(self.base), torch.device(device)
        self.model.packed_modules_mapping = PACKED  # type: ignore[assignment]
        parallel = SimpleNamespace(tensor_parallel_size=1, rank=0)
        self.vllm_config = SimpleNamespace(quant_config=quantised, parallel_config=parallel)

    def _checkpoint(self) -> Any:
        self.read += 1
        return iter(self.base.items())

    def update(self, version: Tensors) -> None:
        found = self.ready(version, SCALE)
        assert isinstance(found, AdapterVersion)
        self.put_adapters(found)


@pytest.mark.parametrize(
    ("worker", "said"),
    [(Worker("cpu"), "on cpu, or quantised"), (Worker(quantised="fp8"), "on cuda, or quant")],
)
def test_converted_weights_are_refused_at_the_rendezvous(worker: Worker, said: str) -> None:
    with pytest.raises(PermanentUpdateError, match=f"vLLM's Served .{said}.*set weights.lora=merged"):
        worker.expect_adapters()


def test_a_second_rendezvous_finds_the_start_that_the_first_one_kept() -> None:
    """A new group of the same processes, whose weights have adapters by now."""
    worker = Worker()
    for seed in (1, 2):
        worker.expect_adapters()
        worker.update(adapters(seed))
        assert equal(worker.model, Served(merged(worker.base, adapters(seed))))
    assert worker.read == 1


def test_after_whole_weights_an_engine_takes_no_adapters() -> None:
    """Neither at once nor after another rendezvous, which sees that these are not the start's."""
    worker = Worker()
    worker.expect_adapters()
    worker.update(adapters(1))
    whole = worker.ready(merged(worker.base, adapters(5)), None)
    assert not isinstance(whole, AdapterVersion) and len(whole) == len(worker.base)
    worker.forget_adapters()  # as whoever loads them does; the model now has those of version 1
    with pytest.raises(PermanentUpdateError, match=r"was sent whole weights.*start it again"):
        worker.ready(adapters(2), SCALE)
    worker.expect_adapters()
    with pytest.raises(PermanentUpdateError, match="does not hold model"):
        worker.ready(adapters(2), SCALE)
