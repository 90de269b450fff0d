"""A from-scratch causal language model of a few million parameters in the Qwen3 architecture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of the model; the defaults give about two million parameters with a vocabulary of 2,048."""

    hidden: int = 192
    layers: int = 5
    heads: int = 6
    kv_heads: int = 3
    head_dim: int = 32
    mlp: int = 512
    max_length: int = 1024
    rope_theta: float = 10_000.0


def build_model(shape: ModelShape, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised model with tied embeddings, float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        max_position_embeddings=shape.max_length,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.02,
    )
    return Qwen3ForCausalLM(config)
