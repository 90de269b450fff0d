"""Sizes in configurations as they lie on the hub, with what those leave out left out."""

from typing import Any


def _dense(kind: str, layers: int, hidden: int, mlp: int, heads: int, keys: int, vocabulary: int) -> Any:
    sizes = {"model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocabulary}
    return sizes | {"intermediate_size": mlp, "num_attention_heads": heads, "num_key_value_heads": keys}


_DELTA_NET = {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "full_attention_interval": 4,
    "head_dim": 256,
}
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
_EVERY_OTHER = ["sliding_attention", "full_attention"]

HUB: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-4B": {
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "text_config": _dense("qwen3_5_text", 32, 2560, 9216, 16, 4, 248320)
        | _DELTA_NET
        | {"linear_num_value_heads": 32, "tie_word_embeddings": True},
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 2560,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
    "Qwen/Qwen3.5-35B-A3B": {
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "num_hidden_layers": 40,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "vocab_size": 248320,
            "linear_num_value_heads": 32,
        }
        | _DELTA_NET,
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _dense("qwen3_next", 48, 2048, 5120, 16, 2, 151936)
    | _DELTA_NET
    | {
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "tie_word_embeddings": False,
    },
    "google/gemma-3-4b-it": {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": _SIGLIP,
    },
    "google/gemma-3-1b-it": _dense("gemma3_text", 26, 1152, 6912, 4, 1, 262144)
    | {"head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 6},
    "google/gemma-2-9b": _dense("gemma2", 42, 3584, 14336, 16, 8, 256000)
    | {"head_dim": 256, "sliding_window": 4096},
    "allenai/Olmo-3-1025-7B": _dense("olmo3", 32, 4096, 11008, 32, 32, 100278)
    | {"sliding_window": 4096, "tie_word_embeddings": False},
    "mistralai/Mistral-7B-v0.1": _dense("mistral", 32, 4096, 14336, 32, 8, 32000)
    | {"sliding_window": 4096, "tie_word_embeddings": False},
    "mistralai/Mistral-7B-v0.3": _dense("mistral", 32, 4096, 14336, 32, 8, 32768)
    | {"sliding_window": None, "tie_word_embeddings": False},
    "microsoft/Phi-3-mini-4k-instruct": _dense("phi3", 32, 3072, 8192, 32, 32, 32064)
    | {"sliding_window": 2047, "tie_word_embeddings": False},
    "openai/gpt-oss-20b": _dense("gpt_oss", 24, 2880, 2880, 64, 8, 201088)
    | {
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": 12 * _EVERY_OTHER,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-8B": _dense("qwen3", 36, 4096, 12288, 32, 8, 151936)
    | {
        "head_dim": 128,
        "max_window_layers": 36,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    },
    "mistralai/Mixtral-8x7B-v0.1": _dense("mixtral", 32, 4096, 14336, 32, 8, 32000)
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "bigcode/starcoder2-3b": _dense("starcoder2", 30, 3072, 12288, 24, 2, 49152)
    | {"sliding_window": 4096, "use_bias": True, "tie_word_embeddings": True},
    "EleutherAI/pythia-1.4b": _dense("gpt_neox", 24, 2048, 8192, 16, 16, 50304),
}
