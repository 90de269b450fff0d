"""Of a model that also sees the part of text is trained; the rest stays as it is and goes along."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

from pipelinerl.config import RLConfig
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.finetune.checkpoints import save_checkpoint
from pipelinerl.finetune.types import TrainingMetrics
from pipelinerl.modeling.loading import left_out, load_causal_lm
from pipelinerl.modeling.lora import add_adapters
from pipelinerl.modeling.model import active_parameters, distinct_parameters, load_model
from tests.support.policy import learner
from tests.support.tiny_model import hybrid_lm

SEES = ("visual.", "vision_tower.", "multi_modal_projector.")


def gemma() -> PreTrainedModel:
    torch.manual_seed(0)
    text: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    text |= {"num_key_value_heads": 1, "intermediate_size": 32, "layer_types": 2 * ["full_attention"]}
    sight: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sight |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    tokens = {"image_token_index": 50, "boi_token_index": 51, "eoi_token_index": 52}
    config = Gemma3Config(text_config=text, vision_config=sight, mm_tokens_per_image=4, **tokens)
    return Gemma3ForConditionalGeneration(config)


MODELS = {
    "qwen3_5": lambda: hybrid_lm("qwen3_5", 60, sees=True),
    "qwen3_5_moe": lambda: hybrid_lm("qwen3_5_moe", 60, sees=True),
    "gemma3": gemma,
}


@pytest.fixture(params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    MODELS[request.param]().save_pretrained(tmp_path)
    return tmp_path


def seeing(name: str) -> bool:
    return any(part in name for part in SEES)


def test_the_class_that_was_saved_is_loaded_and_its_part_of_text_trained(folder: Path) -> None:
    model = load_model(folder)
    assert type(model).__name__.endswith("ForConditionalGeneration")
    named = dict(model.named_parameters())
    assert any(map(seeing, named)) and not all(map(seeing, named))
    assert all(one.requires_grad is not seeing(name) for name, one in named.items())
    total = sum(one.numel() for name, one in named.items() if not seeing(name))
    assert active_parameters(model) <= total


def test_a_step_changes_the_text_and_a_checkpoint_has_all_of_it(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder)
    before = {name: tensor.clone() for name, tensor in distinct_parameters(model)}
    trained = learner(RLConfig(), model, learning_rate=1.0)
    ids = torch.arange(1, 9)[None]
    decoder = model.get_decoder()
    decoder(input_ids=ids, use_cache=False).last_hidden_state.square().sum().backward()
    trained.optimiser.step()
    after = dict(distinct_parameters(model))
    assert {name for name in after if not torch.equal(after[name], before[name])} >= {
        name for name in after if name.endswith(("mlp.down_proj.weight", "A_log"))
    }
    assert all(torch.equal(after[name], before[name]) for name in after if seeing(name))
    model.save_pretrained(tmp_path / "saved")
    saved, first = (load_file(one / "model.safetensors") for one in (tmp_path / "saved", folder))
    assert saved.keys() == first.keys()
    again = dict(distinct_parameters(load_causal_lm(tmp_path / "saved", dtype=torch.float32)))
    assert all(torch.equal(again[name], tensor) for name, tensor in after.items())


def test_a_checkpoint_can_be_given_pictures(folder: Path, tmp_path: Path) -> None:
    """Its processor is that of the model, also in the checkpoint of a run that was resumed from one."""
    files = {
        "preprocessor_config.json": b'{"size": 28}',
        "processor_config.json": b'{"image_seq_length": 4}',
        "video_preprocessor_config.json": b'{"fps": 2}',
        "chat_template.json": b'{"chat_template": "{{ messages }}"}',
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    source = folder
    for _ in range(2):
        trained = learner(RLConfig(), load_model(source))
        save_checkpoint(tmp_path / "root", trained, TrainingMetrics(), {}, tokenizer_from=str(source))
        source = tmp_path / "root/current"
        assert {name: (source / name).read_bytes() for name in files} == files


def with_predictors(folder: Path, prefix: str = "mtp.") -> dict[str, torch.Tensor]:
    """Puts tensors into a folder that transformers passes over, as published ones have."""
    more = {
        f"{prefix}fc.weight": torch.arange(6.0).bfloat16().reshape(2, 3),
        f"{prefix}layers.0.mlp.down_proj.weight": torch.ones(3, dtype=torch.bfloat16),
    }
    file = folder / "model.safetensors"
    save_file(load_file(file) | more, file, {"format": "pt"})
    return more


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_predictors_of_further_tokens_go_from_checkpoint_to_checkpoint(family: str, tmp_path: Path) -> None:
    """The second checkpoint is that of a policy which was loaded from the first, as after a resume."""
    hybrid_lm(family, 60, sees=family != "qwen3_next").save_pretrained(tmp_path / "first")
    more = with_predictors(tmp_path / "first")
    source, names = tmp_path / "first", set(load_file(tmp_path / "first/model.safetensors"))
    for root in (tmp_path / "one", tmp_path / "one"):
        trained = learner(RLConfig(), load_model(source))
        save_checkpoint(root, trained, TrainingMetrics(), {})
        source = root / "current"
        saved = load_file(source / "model.safetensors")
        assert saved.keys() == names
        assert all(
            torch.equal(saved[name], one) and saved[name].dtype == one.dtype for name, one in more.items()
        )


def test_predictors_are_found_in_any_file_of_a_folder(tmp_path: Path) -> None:
    hybrid_lm("qwen3_5", 60, sees=True).save_pretrained(tmp_path)
    more = with_predictors(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    parts = {"a": tensors.keys() - more.keys(), "b": more.keys()}
    for part, names in parts.items():
        save_file({name: tensors[name] for name in names}, tmp_path / f"{part}.safetensors", {"format": "pt"})
    files = {name: f"{part}.safetensors" for part, names in parts.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    found = left_out(load_causal_lm(tmp_path, dtype=torch.float32))
    assert found.keys() == more.keys()


def test_what_is_passed_over_in_a_layer_of_the_model_stays_out(tmp_path: Path) -> None:
    """Old checkpoints of GPT-NeoX have masks there, which transformers ignores as well."""
    config = GPTNeoXConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    masks = {"gpt_neox.layers.0.attention.masked_bias": torch.zeros(1)}
    save_file(load_file(file) | masks, file, {"format": "pt"})
    assert left_out(load_causal_lm(tmp_path, dtype=torch.float32)) == {}


def test_adapters_are_put_into_the_part_of_text(folder: Path) -> None:
    pytest.importorskip("peft")
    model = load_model(folder)
    add_adapters(model, LoraConfig(enabled=True, r=2))
    adapters = [name for name, one in model.named_parameters() if one.requires_grad]
    assert adapters and not any(map(seeing, adapters))
    if "Qwen3_5" in type(model).__name__:
        assert any("linear_attn.in_proj_qkv.lora_A" in name for name in adapters)


def test_an_adapter_of_a_convolution_is_refused() -> None:
    pytest.importorskip("peft")
    chosen = LoraConfig(enabled=True, r=64, target_modules=["conv1d"])
    with pytest.raises(ValueError, match=r"^finetune.lora.target_modules: .*conv1d.* is of no linear layer"):
        add_adapters(hybrid_lm("qwen3_5", 60), chosen)


def test_what_vllm_is_sent_has_the_names_of_the_published_folder() -> None:
    """vLLM serves Qwen3.5 as the class that also sees, whose loader knows the names of its checkpoints."""
    for family in ("qwen3_5", "qwen3_5_moe"):
        names = {name for name, _ in distinct_parameters(hybrid_lm(family, 60, sees=True))}
        assert {name.split(".layers.")[0] for name in names if ".layers." in name} == {"model.language_model"}
        assert "lm_head.weight" in names and "model.visual.pos_embed.weight" in names
