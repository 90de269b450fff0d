"""The table of refused types is right: every causal LM of transformers, tiny, is tried without the table."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from benchmarks.architectures import EXPERTS, LIMIT, POSITIONS, ROUTED, SIZES, SPREAD, Batch, distance
from pipelinerl.launcher.checks.data import WITH_STATES
from pipelinerl.modeling import model as loading
from pipelinerl.modeling.layer_kinds import REFUSED_TYPES, type_refusal, unknown_kinds
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.policy import Policy

FAST = ("falcon", "bloom", "bart", "roberta", "jamba", "jetmoe", "llama", "gpt2", "biogpt")
WITHOUT_TEXT_DECODER = {
    *("emu3", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "llama4", "mllama", "phi4_multimodal"),
    *("gemma4_assistant", "gemma4_unified_assistant", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "git"),
    *("got_ocr2", "musicgen", "musicgen_melody", "fuyu", "whisper"),
}
"""Models that also see or hear, whose decoder has a type of its own, and drafters."""
NOT_BUILT = {
    "blt",
    "cohere_compass_text",
    "gemma4_text",
    "gemma4_unified_text",
    "qwen4_exp_text",
    "zamba",
    "zamba2",
}
"""Types whose configurations cannot be made this small with the fields below."""
OTHER_NAMES: Mapping[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": POSITIONS,
    "n_inner": 32,
    "n_ctx": POSITIONS,
    "d_model": 16,
    "ffn_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "num_layers": 2,
    "num_heads": 4,
    "dim": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 32,
    "encoder_layers": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_layer_freq": 1,
    "word_embed_proj_dim": 16,
    "embedding_size": 16,
    "ffn_hidden_size": 32,
    "expert_ffn_hidden_size": 16,
    "d_ff": 32,
    "is_decoder": True,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {"num_key_value_heads": 4}
STATES = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"]}
POSITIONED = {"max_position_embeddings": 1024}  # a row is longer than a sample
FIELDS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash"), LATENT),
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "minicpm3", "youtu"), LATENT),
    **dict.fromkeys(("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian"), POSITIONED),
    **dict.fromkeys(("mbart", "pegasus", "plbart"), POSITIONED),
    "bamba": {"attn_layer_indices": [1], **STATES},
    "codegen": {"rotary_dim": 4},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 16},
    },
    "gemma3n_text": {
        **WINDOWS,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": SIZES["vocab_size"],
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["attention", "mamba"], **STATES},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"], "num_dense_layers": 1},
    "mamba2": {"head_dim": 8, "num_heads": 4, "state_size": 8, "n_groups": 1},
    "mimo_v2_flash": {"v_head_dim": 2},
    "ministral": {**WINDOWS, "head_dim": 4},
    "reformer": {"axial_pos_embds": False, "attention_head_size": 4, "attn_layers": ["local", "lsh"]},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}
LEFT_OUT = {
    "bamba": ("layer_types",),
    "falcon": ("head_dim",),
    "falcon_h1": ("layer_types",),
    "prophetnet": ("num_hidden_layers",),
    "xlnet": ("max_position_embeddings",),
    "xlstm": ("v_head_dim",),
}
"""Names that the class has and cannot be given."""


def tiny(kind: str) -> PreTrainedConfig:
    """Of this type; each kind of layer that its default has occurs once at least."""
    base = CONFIG_MAPPING[kind]()
    given = {**OTHER_NAMES, **EXPERTS, **ROUTED} | {
        name: value for name, value in SIZES.items() if value is not None
    }
    fields = {name: value for name, value in given.items() if hasattr(base, name)}
    for name, other in base.attribute_map.items():
        if other in fields:
            fields.pop(name, None)
    if getattr(base, "head_dim", None) is not None or kind.startswith("hunyuan"):
        fields["head_dim"] = 4
    if isinstance(getattr(base, "sliding_window", None), int):
        fields["sliding_window"] = 8
    for name in ("mlp_layer_types", "layer_types"):
        if (kinds := getattr(base, name, None)) and not isinstance(getattr(type(base), name, None), property):
            distinct = list(dict.fromkeys(kinds))
            fields[name] = (distinct * 2)[: max(2, len(distinct))]
    if "layer_types" in fields and "num_hidden_layers" in fields:
        fields["num_hidden_layers"] = len(fields["layer_types"])
    fields |= FIELDS.get(kind, {})
    for name in LEFT_OUT.get(kind, ()):
        fields.pop(name, None)
    return CONFIG_MAPPING[kind](**fields)


def random_model(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = tiny(kind)
    config._attn_implementation = "eager"
    model: PreTrainedModel = getattr(transformers, CLASSES[kind])(config)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn_like(one) * SPREAD if one.ndim > 1 else one + torch.randn_like(one) / 10)
    return model.eval()


def trains(model: PreTrainedModel) -> bool:
    """Whether a packed row is what each sample alone is to transformers."""
    batch = Batch.random()
    expected = batch.alone(model).detach()
    try:
        found = batch.packed(Policy(prepare_model(model)), False).detach()
    except (ValueError, RuntimeError, TypeError):
        return False
    return distance(found, expected) <= LIMIT


def agrees(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "type_refusal", lambda kind: "")
    model = random_model(kind)
    kinds = model.config.get_text_config(decoder=True).to_dict().get("layer_types") or ()
    known = bool(type_refusal(kind)) or bool(unknown_kinds(kinds, kind in WITH_STATES))
    assert trains(model) is not known


@pytest.mark.parametrize("kind", FAST)
def test_a_type_is_in_the_table_exactly_if_it_does_not_train(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(kind, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*CLASSES} - {*FAST} - WITHOUT_TEXT_DECODER - NOT_BUILT))
def test_every_type_is_in_the_table_exactly_if_it_does_not_train(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(kind, monkeypatch)


def test_the_table_names_types_of_transformers() -> None:
    assert {*REFUSED_TYPES} <= {*CLASSES}
