"""Adapters: trained alone, published merged, saved both ways, resumed exactly."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytest.importorskip("peft")

from pipelinerl.config.finetune import LoraConfig
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.lora import FOLDER, add_adapters
from pipelinerl.modeling.model import distinct_parameters, hidden_states
from tests.support.policy import tiny_model
from tests.support.training import assert_resumes_bit_for_bit, saved, train, trainer

LORA = LoraConfig(enabled=True, r=4, alpha=8.0)


def test_merged_weights_compute_what_base_and_adapters_do() -> None:
    model = tiny_model()
    names = [name for name, _ in distinct_parameters(model)]
    ids = torch.arange(12)[None]
    before = hidden_states(model, ids, ids, None)
    add_adapters(model, LORA)
    torch.testing.assert_close(hidden_states(model, ids, ids, None), before)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.normal_(0, 0.3)
    merged = dict(distinct_parameters(model))
    assert list(merged) == names
    plain = tiny_model()
    plain.load_state_dict(merged, strict=False)
    expected, found = hidden_states(model, ids, ids, None), hidden_states(plain, ids, ids, None)
    assert float((expected - before).detach().abs().max()) > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_only_adapters_change_and_both_forms_are_saved(tmp_path: Path) -> None:
    model = train(tmp_path, lora=LORA).learner.model
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all(is_adapter(name) for name in trained)
    original = dict(tiny_model().named_parameters())
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            torch.testing.assert_close(parameter, original[name.replace(".base_layer", "")])
    current = tmp_path / "finetune/current"
    saved = AutoModelForCausalLM.from_pretrained(current, dtype=torch.float32)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        found = saved.get_decoder()(input_ids=ids).last_hidden_state
        torch.testing.assert_close(found, hidden_states(model, ids, ids, None), atol=1e-4, rtol=1e-4)
    from peft import PeftModel

    again = PeftModel.from_pretrained(tiny_model(), str(current / FOLDER))
    for name, tensor in load_file(current / FOLDER / "adapter_model.safetensors").items():
        part = name.replace(".weight", ".default.weight")
        torch.testing.assert_close(again.get_parameter(part), tensor, check_stride=False)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, bfloat16: bool) -> None:
    folders = assert_resumes_bit_for_bit(tmp_path, lora=LORA, load_as_bf16=bfloat16)
    whole, parts = (saved(folder, f"current/{FOLDER}/adapter_model.safetensors") for folder in folders)
    assert all(float(tensor.abs().max()) > 0 for tensor in whole.values())
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())


def test_layers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"finetune\.lora\.target_modules=nothing: "):
        add_adapters(tiny_model(), LoraConfig(target_modules=["nothing"]))


def test_other_than_linear_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="is of no linear layer"):
        add_adapters(tiny_model(), LoraConfig(target_modules=["embed_tokens"]))


def test_adapters_of_another_shape_are_refused(tmp_path: Path) -> None:
    train(tmp_path, lora=LORA, interrupt_train_steps=2)
    with pytest.raises(ValueError, match=r"set finetune\.lora as before"):
        trainer(tmp_path, lora=LoraConfig(enabled=True, r=2))
