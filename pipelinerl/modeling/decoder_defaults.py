"""Sizes that a `config.json` may leave out: the defaults of its model type, as transformers has them.

Configurations on the hub are saved without what equals the default of their class: Gemma 3's 4B says neither
how many heads it has nor how large they are, and may not say its vocabulary. Launcher and preprocess
read this table because they import no torch, which transformers' own classes do; a test compares each number
with them.
"""

from collections.abc import Mapping
from typing import Any

_DELTA_NET = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "head_dim": 256,
    "tie_word_embeddings": False,
}
_GEMMA = {"head_dim": 256, "tie_word_embeddings": True, "vocab_size": 256000}
_GEMMA_2B = _GEMMA | {
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 9216,
    "sliding_window": 4096,
}
_QWEN_MOE = _DELTA_NET | {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": _GEMMA
    | {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 24576,
    },
    "gemma2": _GEMMA_2B | {"sliding_window_pattern": 2},
    "gemma3_text": _GEMMA_2B | {"vocab_size": 262208, "sliding_window_pattern": 6},
    "cohere2": {
        "hidden_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "intermediate_size": 22528,
        "vocab_size": 256000,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "gpt_oss": {
        "hidden_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
    },
    "mistral": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "sliding_window": 4096,
    },
    "olmo3": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 50304,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "qwen3": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "intermediate_size": 22016,
        "vocab_size": 151936,
    },
    "qwen3_5_text": _DELTA_NET
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "intermediate_size": 12288,
        "vocab_size": 248320,
    },
    "qwen3_5_moe_text": _QWEN_MOE
    | {"num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8, "vocab_size": 248320},
    "qwen3_next": _QWEN_MOE
    | {
        "num_hidden_layers": 48,
        "intermediate_size": 5632,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "vocab_size": 151936,
    },
}
"""By model type. `sliding_window_pattern` and `full_attention_interval` say that every so many layers one
attends to all tokens, where `layer_types` is left out; without a pattern all layers have the window."""

TEXT_PART = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Types of models that also see, and the type of the decoder in their `text_config`."""
POLICY_SEES = ("gemma3", "mistral3", "qwen3_5", "qwen3_5_moe")
"""Of those the ones for which the trainer loads the part that sees as well, frozen."""
FOUR_NORMS = ("gemma2", "gemma3_text")
"""Types whose layers normalise what goes into attention and MLP, and what comes out of both."""
UNGATED = ("apertus", "arcee", "gpt_neox", "jais2", "nemotron", "persimmon", "phi", "starcoder2")
"""Types whose MLPs have two matrices, not three."""
UNCOUNTED = (
    "afmoe",
    "bert-generation",
    "biogpt",
    "doge",
    "exaone_moe",
    "fuyu",
    "git",
    "got_ocr2",
    "hrm_text",
    "hy_v3",
    "jetmoe",
    "laguna",
    "lfm2",
    "lfm2_moe",
    "mimo_v2_flash",
    "nanochat",
    "phi4_multimodal",
    "recurrent_gemma",
)
"""Types with the usual keys whose weights lie otherwise."""
SIGLIP = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "patch_size": 16,
    "image_size": 224,
    "num_channels": 3,
}
QWEN_VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}


def decoder_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that describes the text decoder; models that also see have several.

    What it leaves out are the defaults of its type.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        return {**DEFAULTS.get(str(config.get("model_type")), {}), **config}
    kind = text.get("model_type") or TEXT_PART.get(str(config.get("model_type")))
    key = "tie_word_embeddings"  # may be said for the whole model
    above = {key: config[key]} if key in config else {}
    return {**DEFAULTS.get(str(kind), {}), **above, **text, "model_type": kind}
