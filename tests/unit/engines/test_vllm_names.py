"""Names of experts and of an output head for vLLM, against the checkpoint that transformers itself writes."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from pipelinerl.engines.vllm.weight_names import ENDINGS, SINGLE, vllm_names
from pipelinerl.modeling.model import distinct_parameters, persistent_buffers

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
LATENT = {
    "n_routed_experts": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "num_key_value_heads": 2,
}
MORE: dict[str, dict[str, Any]] = {
    "ernie4_5_moe": {"moe_num_experts": 3, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_end_index": 1},
    "laguna": {
        "num_experts": 3,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "head_dim": 8,
        "mlp_layer_types": ["dense", "sparse"],
        "num_attention_heads_per_layer": [2, 2],
        "layer_types": ["full_attention"] * 2,
    },
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "glm4_moe_lite": LATENT | {"mlp_layer_types": ["dense", "sparse"]},
    "hunyuan_v1_moe": {"num_experts": 3, "head_dim": 8},
}
PARTS = {"w1": ("w13", 0), "w3": ("w13", 1), "w2": ("w2", 0)}
NAMED = {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0)}
"""What one expert's tensor is called, that of all experts, and its place there."""


def built(family: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES | MORE.get(family, {})))


def together(saved: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors, those of single experts in one tensor for all."""
    found: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
    rest = {}
    for name, tensor in saved.items():
        if one := re.fullmatch(r"(.*\.experts\.)(\d+)\.(\w+)\.weight", name):
            part, place = {**PARTS, **NAMED}[one[3]]
            found.setdefault(one[1] + part, {})[int(one[2]), place] = tensor
        else:
            rest[name] = tensor
    for name, parts in found.items():
        places = range(1 + max(place for _, place in parts))
        rest[name] = torch.stack([torch.cat([parts[e, place] for place in places]) for e in range(3)])
    return rest


@pytest.mark.parametrize("family", [*ENDINGS, *SINGLE])
def test_names_and_tensors_are_those_of_the_checkpoint_that_vllm_loads(family: str, tmp_path: Path) -> None:
    """vLLM takes a checkpoint's names; of some types also one tensor for all experts of a layer."""
    model = built(family)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    buffers = [tensor for _, tensor in persistent_buffers(model)]
    sent = dict(vllm_names(family, distinct_parameters(model)))
    expected = saved if family in SINGLE else together(saved)
    for name in expected.keys() - sent.keys() if buffers else ():
        assert name.endswith("e_score_correction_bias"), "buffers are in a checkpoint, and in no version"
        del expected[name]
    assert sent.keys() == expected.keys()
    assert all(torch.equal(sent[name], expected[name]) for name in expected)
    assert family == "gpt_neox" or any("experts" in name or "input_linear" in name for name in sent)


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
