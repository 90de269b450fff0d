"""Engine and trainer on one GPU: what is chosen, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import save_file

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import Composition, compose
from pipelinerl.config.files import typed
from pipelinerl.domain import load_domain
from pipelinerl.launcher.cards import GIB, Card, CardOf
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.memory_choice import choose_memory
from pipelinerl.launcher.placement import place
from pipelinerl.launcher.sharing import engine_share, model_parameters
from tests.support.one_host import one_host

CARD = Card(total=141 * GIB, free=140 * GIB)


@pytest.fixture
def small_model(model: Path) -> Path:
    save_file({"a": torch.zeros(100, 20), "b": torch.zeros(3)}, model / "model.safetensors")
    return model


def share_one_device(
    made: Composition, devices: list[str], dry_run: bool = False, memory_of: CardOf = lambda device: CARD
) -> DictConfig:
    return choose_memory(made, one_host(len(devices)), dry_run, memory_of).tree


def composition(model: Path, *overrides: str) -> Composition:
    given = ["hardware=gpu", f"model_path={model}", "world.share_device=true", *overrides]
    return compose(["+domain=guessing", *given])


def test_parameters_are_counted_from_the_headers(small_model: Path, tmp_path: Path) -> None:
    assert model_parameters(small_model) == 2003
    assert model_parameters(tmp_path / "nowhere") is None


def test_weights_that_a_folder_holds_twice_are_counted_once(model: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for number, name in enumerate(shards):
        save_file({f"layer{number}": torch.zeros(50)}, model / name)
    save_file({"layer0": torch.zeros(50), "layer1": torch.zeros(50)}, model / "consolidated.safetensors")
    index = {"weight_map": {f"layer{number}": name for number, name in enumerate(shards)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_parameters(model) == 100
    for name in (*shards, "model.safetensors.index.json"):
        (model / name).unlink()
    save_file({"layers": torch.zeros(100)}, model / "model.safetensors")
    assert model_parameters(model) == 100


@pytest.mark.parametrize("left", [0, 5, 20, -1])
def test_a_cut_model_file_is_named_before_its_size_is_asked_for(small_model: Path, left: int) -> None:
    path = small_model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    assert model_parameters(small_model) is None
    with pytest.raises(
        ConfigError, match=r"^model_path=.*: model\.safetensors has .*; copy or save it again$"
    ):
        share_one_device(composition(small_model), ["0"], memory_of=lambda device: CARD)


def test_a_shard_that_is_absent_is_named(small_model: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}
    (small_model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"1 of 2 shards are missing, first gone\.safetensors"):
        share_one_device(composition(small_model), ["0"], memory_of=lambda device: CARD)


@pytest.mark.parametrize("billions", [0.05, 0.6, 1.7, 4.0])
def test_both_fit_into_the_card(monkeypatch: pytest.MonkeyPatch, billions: float) -> None:
    parameters = int(billions * 1e9)
    monkeypatch.setattr("pipelinerl.launcher.sharing.model_parameters", lambda model: parameters)
    share = engine_share(CARD, Path("anything"))
    trainer = 16 * parameters + 0.12 * CARD.total
    assert 0 < share <= 0.9
    assert share * CARD.total + trainer <= CARD.free
    assert share * CARD.total > 2 * parameters


def test_a_model_too_large_for_both_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelinerl.launcher.sharing.model_parameters", lambda model: int(8e9))
    with pytest.raises(ConfigError, match=r"do not fit into 140 GiB free; use a smaller model or two GPUs"):
        engine_share(CARD, Path("anything"))


def test_a_shared_card_uses_files_and_leaves_the_trainer_its_part(small_model: Path) -> None:
    tree = share_one_device(composition(small_model), ["0"], memory_of=lambda device: CARD)
    assert tree.weights.transport == "file"
    assert tree.vllm_config.vllm_kwargs["gpu-memory-utilization"] == engine_share(CARD, small_model)


def test_what_the_user_gave_stays(small_model: Path) -> None:
    made = composition(small_model, "vllm_config.vllm_kwargs.gpu-memory-utilization=0.2")
    tree = share_one_device(made, ["0"], memory_of=lambda device: None)
    assert tree.vllm_config.vllm_kwargs["gpu-memory-utilization"] == 0.2
    dry = share_one_device(composition(small_model), ["0"], True, lambda device: None)
    assert dry.weights.transport == "file"
    with pytest.raises(ConfigError, match="NCCL does not connect processes on one GPU; set file"):
        share_one_device(
            composition(small_model, "weights.transport=nccl"), ["0"], memory_of=lambda device: CARD
        )


@pytest.mark.parametrize(
    ("overrides", "devices"),
    [(("world.share_device=false",), ["0"]), ((), ["0", "1"]), (("debug.mode=actor",), ["0"])],
)
def test_elsewhere_nothing_changes(small_model: Path, overrides: tuple[str, ...], devices: list[str]) -> None:
    tree = share_one_device(composition(small_model, *overrides), devices, memory_of=lambda device: CARD)
    assert tree.weights.transport == "nccl"
    assert tree.vllm_config.vllm_kwargs["gpu-memory-utilization"] == 0.9


def test_what_cannot_be_read_has_to_be_given(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"the size of .* cannot be read; set vllm_config.*such as 0\.3"):
        share_one_device(composition(model), ["0"], memory_of=lambda device: CARD)
    with pytest.raises(ConfigError, match="the card's memory cannot be read"):
        share_one_device(composition(model), ["0"], memory_of=lambda device: None)


@pytest.mark.parametrize(
    ("devices", "running", "waits"), [(1, "false", ("actor_vllm_0",)), (1, "true", ()), (2, "false", ())]
)
def test_on_a_shared_card_the_trainer_starts_behind_the_engine_that_is_started_with_it(
    small_model: Path, tmp_path: Path, devices: int, running: str, waits: tuple[str, ...]
) -> None:
    share = f"world.share_device={str(devices == 1).lower()}"
    cfg = typed(composition(small_model, f"debug.use_existing_llms={running}", share).tree)
    cfg = cfg.model_copy(update={"jobs": place(cfg, one_host(devices), [], lambda host, port: True)})
    specs = commands(cfg, tmp_path, [], one_host(devices), None)
    assert next(spec.depends for spec in specs if spec.name == "finetune") == waits
    assert load_domain(cfg.domain_hooks) is not None
