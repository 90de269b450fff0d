"""Random models of published shapes, and tiny ones of their kinds, for `benchmarks.gpu.sizes`."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.served import TOKENIZER


class Shape(NamedTuple):
    """Sizes of a decoder."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    keys: int
    """Heads of keys and values."""
    head: int
    tied: bool
    """Whether embedding and output head are one."""
    vocabulary: int = 151_936

    @property
    def sizes(self) -> dict[str, Any]:
        """In the words of transformers."""
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.keys,
            "head_dim": self.head,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "dtype": "bfloat16",
        }


SHAPES = {
    "1.7B": Shape(28, 2048, 6144, 16, 8, 128, True),
    "4B": Shape(36, 2560, 9728, 32, 8, 128, True),
    "8B": Shape(36, 4096, 12288, 32, 8, 128, False),
    # Six layers of Qwen3-30B-A3B, and a dense model of their width.
    "experts": Shape(6, 2048, 6144, 32, 4, 128, False),
    "slice": Shape(6, 2048, 6144, 32, 4, 128, False),
    # Qwen3.5-4B: gated DeltaNets in three of four layers, beside a part that sees. vLLM serves its decoder in
    # no other class; texts alone need no processor of pictures.
    "hybrid": Shape(32, 2560, 9216, 16, 4, 256, True, 248_320),
    # The decoder of Gemma-3-4B: five layers of six look back 1,024 tokens.
    "windows": Shape(34, 2560, 10_240, 8, 4, 256, True, 262_208),
    "llama": Shape(16, 2048, 8192, 32, 8, 64, True, 128_256),
    "mistral": Shape(8, 4096, 14_336, 32, 8, 128, False, 32_000),
    "caps": Shape(26, 2304, 9216, 8, 4, 256, True, 256_000),
    "sinks": Shape(2, 2880, 2880, 64, 8, 64, False, 201_088),
    "latent": Shape(4, 2048, 10_944, 16, 16, 64, False, 102_400),
}
TINY_LAYERS = {"hybrid": 4, "windows": 6}
"""So that each kind of layer is there."""
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}),
    "mistral": ("Mistral", {"sliding_window": 512}),  # shorter than the texts
    "caps": ("Gemma2", {"sliding_window": 512, "query_pre_attn_scalar": 256}),
    "sinks": ("GptOss", {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128}),
    "latent": (
        "DeepseekV3",
        {
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 1408,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_nextn_predict_layers": 0,
            "topk_method": "noaux_tc",  # vLLM knows its router by these
            "scoring_func": "sigmoid",
        },
    ),
}
"""Llama 3.2 1B, eight layers of Mistral 7B, Gemma 2 2B, two layers of gpt-oss-20b in bfloat16, and
four of DeepSeek V3's architecture with the widths of DeepSeek-V2-Lite: what one card of 80 GB trains."""
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}
SIGHT = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 2560,
    "patch_size": 16,
}
TINY: dict[str, dict[str, Any]] = {
    "experts": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "hybrid": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "windows": {"sliding_window": 32, "query_pre_attn_scalar": 32},
    "mistral": {"sliding_window": 32},
    "caps": {"sliding_window": 32, "query_pre_attn_scalar": 32},
    "sinks": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 32},
    "latent": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "num_key_value_heads": 4,
    },
}
TINY_SIGHT = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
}


def model_config(size: str, tiny: bool = False) -> Any:
    """The configuration of one of the shapes, in bfloat16; `tiny`: of the same kind for a rehearsal."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    shape = Shape(TINY_LAYERS.get(size, 2), 64, 128, 4, 2, 32, True, 2048) if tiny else SHAPES[size]
    more = TINY.get(size, {}) if tiny else {}
    if size == "hybrid":
        return _hybrid(shape, more, TINY_SIGHT if tiny else {})
    if size == "windows":
        return _windows(shape, more)
    if size in FAMILIES:
        return _of_family(*FAMILIES[size], shape, more)
    experts = size == "experts"
    kind, name = (Qwen3MoeConfig, "Qwen3Moe") if experts else (Qwen3Config, "Qwen3")
    return kind(
        max_position_embeddings=40960,
        rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
        architectures=[f"{name}ForCausalLM"],
        **(shape.sizes | (EXPERTS if experts else {}) | more),
    )


def _hybrid(shape: Shape, more: dict[str, Any], sight: dict[str, Any]) -> Any:
    from transformers import Qwen3_5Config

    rotated = shape.head // 8  # a quarter of a head, in pairs
    text = {
        "max_position_embeddings": 262_144,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [(rotated + 2 - axis) // 3 for axis in range(3)],
        },
    }
    return Qwen3_5Config(
        text_config=text | shape.sizes | more,
        vision_config={**SIGHT, **sight},
        tie_word_embeddings=shape.tied,
        architectures=["Qwen3_5ForConditionalGeneration"],
        dtype="bfloat16",
    )


def _windows(shape: Shape, more: dict[str, Any]) -> Any:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        max_position_embeddings=131_072,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        },
        architectures=["Gemma3ForCausalLM"],
        **{"sliding_window": 1024, "query_pre_attn_scalar": 256, **shape.sizes, **more},
    )


def _of_family(family: str, own: dict[str, Any], shape: Shape, more: dict[str, Any]) -> Any:
    import transformers

    kind = getattr(transformers, f"{family}Config")
    sizes = {"max_position_embeddings": 8192, **shape.sizes, **own, **more}
    return kind(architectures=[f"{family}ForCausalLM"], **sizes)


def make_model(what: tuple[str, bool], folder: Path) -> None:
    """Random weights with the small tokenizer, in `folder`; `what` are size and tiny of `model_config`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    config = model_config(*what)
    sees = "vision_config" in config.to_dict()
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = auto.from_config(config)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, folder)
