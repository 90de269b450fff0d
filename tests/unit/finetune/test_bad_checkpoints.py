"""Damaged models and checkpoints, given to the launcher, an engine and the trainer: one line each."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from pipelinerl.base import role
from pipelinerl.base.digests import digests
from pipelinerl.config import Job, save
from pipelinerl.engines.cpu.__main__ import main as engine_main
from pipelinerl.engines.serving.backend import eos_ids
from pipelinerl.finetune import __main__ as trainer
from pipelinerl.finetune.build import learner_of
from pipelinerl.finetune.checkpoints import save_checkpoint
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.types import TrainingMetrics
from pipelinerl.launch import main as launch
from pipelinerl.modeling.model import load_model
from pipelinerl.streams import SingleStreamSpec, write_to_streams
from tests.support.builders import trainer_config
from tests.support.one_line import check_one_line
from tests.support.tiny_model import build_tokenizer, causal_lm

Spoil = Callable[[Path], None]
WEIGHTS = "model.safetensors"
TENSOR = "model.layers.1.mlp.up_proj.weight"


def cut(name: str, lost: int) -> Spoil:
    """Lose the last bytes of a file."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-lost])  # type: ignore[func-returns-value,return-value]


def put(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)  # type: ignore[func-returns-value,return-value]


def remove(*names: str) -> Spoil:
    def spoil(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def rename(old: str, new: str) -> Spoil:
    return lambda folder: (folder / old).rename(folder / new)  # type: ignore[func-returns-value,return-value]


def entries(name: str, **values: Any) -> Spoil:
    """Change entries of a JSON file; None removes one."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], Any], name: str = WEIGHTS) -> Spoil:
    def spoil(folder: Path) -> None:
        held = load_file(folder / name)
        change(held)
        save_file({k: v.contiguous() for k, v in held.items()}, folder / name, {"format": "pt"})

    return spoil


def without_an_end(folder: Path, tokenizer: bool = False) -> None:
    for name in ("config.json", "generation_config.json"):
        entries(name, eos_token_id=None)(folder)
    if not tokenizer:
        entries("tokenizer_config.json", eos_token=None)(folder)


INDEX = "model.safetensors.index.json"
LAUNCHER: dict[str, tuple[Spoil, str]] = {
    "weights cut": (cut(WEIGHTS, 100), WEIGHTS),
    "weights cut to nothing": (put(WEIGHTS, b""), "has 0 bytes and no header"),
    "weights are no safetensors": (
        put(WEIGHTS, b"PK\x03\x04 a zip archive"),
        "no header of a safetensors file",
    ),
    "a damaged header": (put(WEIGHTS, (9).to_bytes(8, "little") + b'{"a": {}}'), "has a damaged header"),
    "bytes behind the last tensor": (
        lambda folder: (folder / WEIGHTS).open("ab").write(b"more") and None,
        WEIGHTS,
    ),
    "config is no JSON": (put("config.json", b"{"), "config.json is not valid JSON"),
    "config is a list": (put("config.json", b"[]"), "config.json holds a list"),
    "no config": (remove("config.json"), "no config.json in it"),
    "an adapter alone": (
        rename("config.json", "adapter_config.json"),
        "no config.json in it; it has an adapter: save the model with it merged",
    ),
    "no tokenizer": (remove("tokenizer.json", "tokenizer_config.json"), "no tokenizer.json in it"),
    "tokenizer is no JSON": (put("tokenizer.json", b"\xff\xfe"), "tokenizer.json is not valid JSON"),
    "generation settings are no JSON": (
        put("generation_config.json", b"nope"),
        "generation_config.json is not",
    ),
    "a shard is missing": (
        put(INDEX, json.dumps({"weight_map": {"a": WEIGHTS, "b": "model-2.safetensors"}}).encode()),
        "1 of 2 shards are missing, first model-2.safetensors",
    ),
    "an index without shards": (put(INDEX, b'{"metadata": {}}'), f"{INDEX} names no shards"),
    "fewer positions than the engine's": (
        entries("config.json", max_position_embeddings=64),
        "engine.max_model_len=256: the model has 64 positions",
    ),
    "nothing that ends an answer": (
        without_an_end,
        "so no answer would end; add one, or set llm.parameters.stop_token_ids",
    ),
    "settings of the tokenizer are no JSON": (
        put("tokenizer_config.json", b"{"),
        "tokenizer_config.json is not valid JSON",
    ),
    "fewer layers than the weights": (
        entries("config.json", num_hidden_layers=1, layer_types=None),
        "its weights are of 2 layers, config.json says num_hidden_layers=1",
    ),
    "more layers than the weights": (
        entries("config.json", num_hidden_layers=3, layer_types=None),
        "its weights are of 2 layers, config.json says num_hidden_layers=3; set 2 there",
    ),
    "no number of layers": (
        entries("config.json", num_hidden_layers=None, layer_types=None),
        "of 2 layers, config.json has no num_hidden_layers, and transformers takes 32; set 2 there",
    ),
    "a number of layers in quotes": (
        entries("config.json", num_hidden_layers="2"),
        'config.json says num_hidden_layers="2", which has to be a whole number; correct it',
    ),
    "kinds of layers for another number": (
        entries("config.json", layer_types=["full_attention"] * 3),
        "config.json has 3 layer_types for num_hidden_layers=2; correct one",
    ),
    "an MLP of another width": (
        entries("config.json", intermediate_size=8),
        "layers.0.mlp.down_proj.weight of model.safetensors has shape [16, 32], config.json wants [16, 8]",
    ),
    "another number of heads": (
        entries("config.json", num_attention_heads=4, num_key_value_heads=4, head_dim=8),
        "self_attn.k_proj.weight of model.safetensors has shape [8, 16], config.json wants [32, 16]",
    ),
    "a head that the weights lack": (
        entries("config.json", tie_word_embeddings=False),
        "no lm_head.weight in its weights, config.json says tie_word_embeddings=false",
    ),
}

LOADED: dict[str, tuple[Spoil, str]] = {
    "weights cut": (cut(WEIGHTS, 100), "SafetensorError"),
    "no weights": (remove(WEIGHTS), "no file named model.safetensors"),
    "a tensor is missing": (
        tensors(lambda held: held.pop(TENSOR)),
        f"{TENSOR} is missing (1 tensors in all)",
    ),
    "a tensor of another shape": (
        tensors(lambda held: held.update({TENSOR: held[TENSOR][:5]})),
        f"{TENSOR} has shape [5, 16], config.json wants [32, 16]",
    ),
    "another model's config": (entries("config.json", hidden_size=32), "belong to different models"),
    "a smaller vocabulary": (entries("config.json", vocab_size=10), "config.json wants [10, 16]"),
    "another number of layers": (entries("config.json", num_hidden_layers=3), "num_hidden_layers"),
    "fewer layers than the weights": (
        entries("config.json", num_hidden_layers=1, layer_types=None),
        "its weights are of 2 layers, config.json says num_hidden_layers=1",
    ),
    "an unknown architecture": (entries("config.json", model_type="abacus"), "abacus"),
    "no architecture": (entries("config.json", model_type=None), "model_type"),
}

STATE, MODEL = "finetune/training_state", "finetune/current"


def upstreams_state(folder: Path) -> None:
    """Its trainer writes one file, or a folder of DeepSpeed's, and no markers."""
    remove(f"{MODEL}/checkpoint.json", STATE)(folder)
    (folder / STATE).mkdir()
    put(f"{STATE}/training_state.pt", b"PK")(folder)


RESUMED: dict[str, tuple[Spoil, str]] = {
    "weights of the checkpoint cut": (cut(f"{MODEL}/{WEIGHTS}", 50), MODEL),
    "a tensor of the checkpoint missing": (
        tensors(lambda held: held.pop(TENSOR), f"{MODEL}/{WEIGHTS}"),
        f"{TENSOR} is missing",
    ),
    "optimizer state cut": (cut(f"{STATE}/tensors.safetensors", 50), "damaged"),
    "optimizer state missing": (remove(f"{STATE}/tensors.safetensors"), "damaged"),
    "no random state": (
        tensors(lambda held: held.pop("rng.cpu"), f"{STATE}/tensors.safetensors"),
        "has no rng.cpu",
    ),
    "state is no JSON": (put(f"{STATE}/state.json", b"{"), "damaged"),
    "state without counters": (entries(f"{STATE}/state.json", counters=None), "has no counters"),
    "an empty state": (
        put(f"{STATE}/state.json", b"{}"),
        "has no optimiser and no completed_schedule_steps and no counters and no extra, so another version",
    ),
    "unknown counters": (entries(f"{STATE}/state.json", counters={"spam": 1}), "unknown counters: spam"),
    "another optimizer": (
        entries(f"{STATE}/state.json", optimiser="Lion over 3 tensors"),
        "saved with Lion over 3 tensors",
    ),
    "steps that differ": (
        entries(f"{STATE}/checkpoint.json", step=3),
        "current is of step 2, training_state is of step 3",
    ),
    "a step that is a word": (
        entries(f"{MODEL}/checkpoint.json", step="two"),
        "current has a damaged checkpoint.json",
    ),
    "a step that is missing": (
        put(f"{MODEL}/checkpoint.json", b"{}"),
        "current has a damaged checkpoint.json ('{}')",
    ),
    "a marker that is a list": (put(f"{STATE}/checkpoint.json", b"[2]"), "training_state has a damaged"),
    "no digests": (put(f"{STATE}/checkpoint.json", b'{"step": 2}'), "damaged, it is not what was saved"),
    "no training state": (remove(STATE), "training_state is missing; put back both"),
    "no marker": (remove(f"{STATE}/checkpoint.json"), "training_state is not complete"),
    "no markers": (
        remove(f"{MODEL}/checkpoint.json", f"{STATE}/checkpoint.json"),
        "current is not complete, training_state is not complete",
    ),
    "upstream's model": (remove(f"{MODEL}/checkpoint.json", STATE), "was written by another program"),
    "upstream's state": (upstreams_state, "; choose another output_dir, and give model_path="),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(str(folder))
    causal_lm(len(tokenizer), positions=256, eos=tokenizer.eos_token_id).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", LAUNCHER)
def test_the_launcher_refuses_a_damaged_model(
    case: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    spoil, value = LAUNCHER[case]
    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    spoil(damaged)
    status = launch(
        ["+domain=guessing", f"model_path={damaged}", f"output_dir={tmp_path / 'run'}", "validate=true"]
    )
    assert status == 2
    check_one_line(capsys.readouterr().err, value, case)


@pytest.mark.parametrize("case", LOADED)
def test_an_engine_refuses_a_damaged_model(
    case: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, value = LOADED[case]
    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    spoil(damaged)
    assert engine_main(["--model", str(damaged), "--port", "0", "--max-model-len", "64"]) == 2
    check_one_line(capfd.readouterr().err, value, case)


def test_an_engine_ends_answers_as_the_tokenizer_says_where_the_configuration_does_not(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    without_an_end(folder, tokenizer=True)
    config = AutoConfig.from_pretrained(folder)
    assert config.eos_token_id is None
    assert eos_ids(folder, config) == {build_tokenizer().eos_token_id}
    assert eos_ids(model, AutoConfig.from_pretrained(model)) == {build_tokenizer().eos_token_id}


def test_a_predictor_behind_the_last_layer_is_no_further_layer(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a decoder's layer and more, as that of GLM 4.5 has: the model without it is whole."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    held = load_file(folder / WEIGHTS)
    further = {name.replace(".1.", ".2."): one.clone() for name, one in held.items() if ".layers.1." in name}
    further["model.layers.2.eh_proj.weight"] = torch.zeros(16, 32)
    save_file({**held, **further}, folder / WEIGHTS, {"format": "pt"})
    given = ["+domain=guessing", f"model_path={folder}", f"output_dir={tmp_path / 'run'}", "validate=true"]
    assert launch(given) == 0
    load_model(folder)
    (said,) = [record for record in caplog.records if "tensors are not used" in record.getMessage()]
    assert f"{len(further)} tensors are not used, first model.layers.2.eh_proj.weight" in said.getMessage()
    assert said.__dict__["remark"], "the launcher prints it"


def test_a_validation_refuses_the_folder_of_another_program_as_the_start_does(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = ["+domain=guessing", f"model_path={model}", f"output_dir={tmp_path / 'run'}"]
    monkeypatch.setenv("DRY_RUN", "1")
    assert launch(given) == 0  # writes the tree with which a resume is compared
    monkeypatch.delenv("DRY_RUN")
    shutil.copytree(model, tmp_path / "run" / MODEL)
    capsys.readouterr()
    for further in ("validate=true", "validate=false"):
        assert launch([*given, further]) == 2
        check_one_line(capsys.readouterr().err, "was written by another program", further)
    assert launch([*given, "validate=true", "force_restart=true"]) == 0


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A run that has saved step 2 and has a recording to go on with."""
    folder = tmp_path_factory.mktemp("run")
    with write_to_streams(SingleStreamSpec(folder / "recorded", "training_data")):
        pass
    policy = load_model(model)
    cfg = trainer_config(
        folder,
        policy,
        train_batch_size=2,
        gradient_accumulation_passes=1,
        max_train_steps=5,
        texts_per_step=2,
        texts_per_update=2,
        data_deadline_s=600,
        debug={"mode": "finetune", "streams_from": str(folder / "recorded")},
        wandb={"use_wandb": False},
        jobs=[Job(kind="finetune", idx=0, name="finetune")],
    )
    save(OmegaConf.create(cfg.model_dump(mode="json", by_alias=True)), folder)
    learner = learner_of(policy, cfg, Ranks())
    counters = TrainingMetrics(completed_steps=2, samples=4)
    save_checkpoint(folder / "finetune", learner, counters, {"positions": {}}, str(model))
    return folder


def noted_anew(folder: Path) -> None:
    """The digests of what is there now, so that damage is found by what the files say."""
    for half in (folder / MODEL, folder / STATE):
        marker = half / "checkpoint.json"
        if marker.is_file() and "files" in (noted := json.loads(marker.read_text())):
            marker.unlink()
            marker.write_text(json.dumps(noted | {"files": digests(half)}))


def train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The trainer's command in this process, without what it does to the process itself."""
    monkeypatch.setattr(trainer, "setup_logging", lambda *_: None)
    monkeypatch.setattr(role, "start_heartbeat", lambda *_: None)
    monkeypatch.setattr(role.log, "exception", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["finetune", str(folder), "--job", "0"])
    return trainer.main()


@pytest.mark.parametrize("case", RESUMED)
def test_the_trainer_refuses_a_damaged_checkpoint(
    case: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spoil, value = RESUMED[case]
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    spoil(folder)
    noted_anew(folder)
    assert train(folder, monkeypatch) == 1
    check_one_line(capfd.readouterr().err, value, case)


def test_the_trainer_refuses_a_checkpoint_of_which_any_file_changed(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    halves = [run_folder / MODEL, run_folder / STATE]
    files = [path.relative_to(run_folder) for half in halves for path in half.iterdir()]
    assert len(files) >= 6
    for name in files:
        folder = tmp_path / name.parent.name / name.name
        shutil.copytree(run_folder, folder)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        assert train(folder, monkeypatch) == 1
        check_one_line(capfd.readouterr().err, "finetune", str(name))


def test_the_same_trainer_goes_on_from_a_whole_checkpoint(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    assert train(tmp_path / "run", monkeypatch) == 0, capfd.readouterr().err


def test_whoever_can_read_a_checkpoint_can_read_its_weights(run_folder: Path) -> None:
    for half in (run_folder / MODEL, run_folder / STATE):
        modes = {path.name: path.stat().st_mode for path in half.rglob("*") if path.is_file()}
        assert set(modes.values()) == {modes["checkpoint.json"]}, modes
