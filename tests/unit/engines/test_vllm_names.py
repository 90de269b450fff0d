"""Names of experts and of an output head for vLLM, against the checkpoint that transformers itself writes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from pipelinerl.engines.vllm.weight_names import ENDINGS, vllm_names
from pipelinerl.modeling.model import distinct_parameters

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "vocab_size": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
STACKED = ("mixtral", "phimoe")


def built(family: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES))


@pytest.mark.parametrize("family", ENDINGS)
def test_names_and_tensors_are_those_of_the_checkpoint_that_vllm_loads(family: str, tmp_path: Path) -> None:
    """vLLM takes a checkpoint's names; of Mixtral and Phi-MoE also `w13` and `w2` of all experts at once."""
    model = built(family)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    sent = dict(vllm_names(family, distinct_parameters(model)))
    for number in range(2) if family in STACKED else ():
        start = f"model.layers.{number}.block_sparse_moe.experts."
        one = {(e, k): saved.pop(f"{start}{e}.w{k}.weight") for e in range(3) for k in (1, 2, 3)}
        saved[f"{start}w13"] = torch.stack([torch.cat([one[e, 1], one[e, 3]]) for e in range(3)])
        saved[f"{start}w2"] = torch.stack([one[e, 2] for e in range(3)])
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)
    inside = [name for name in sent if "block_sparse_moe" in name]
    assert len(inside) == (0 if family == "gpt_neox" else 2 * 3)  # two tensors of experts, and the router


def test_other_types_keep_their_names() -> None:
    sizes = SIZES | {"num_experts": 3, "moe_intermediate_size": 8}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **sizes))
    expected = dict(distinct_parameters(model))
    assert "model.layers.0.mlp.experts.gate_up_proj" in expected
    assert dict(vllm_names("qwen3_moe", distinct_parameters(model))).keys() == expected.keys()


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts.scale", "model.layers.0.mlp.router.bias"])
def test_an_expert_tensor_of_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: no name of mixtral's experts that vLLM"):
        list(vllm_names("mixtral", [(name, torch.zeros(1))]))
