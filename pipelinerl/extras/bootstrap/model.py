"""A from-scratch causal language model in the Qwen3 architecture, and the precision of the recipe."""

from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from pipelinerl.config.bootstrap import ShapeConfig

ROPE_THETA = 10_000.0


def build_model(shape: ShapeConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
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
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.02,
    )
    return Qwen3ForCausalLM(config)


def precision(device: torch.device) -> AbstractContextManager[object]:
    """How the recipe computes: bfloat16 under autocast on a GPU, float32 on a CPU.

    On a GPU the attention of a row in float32 goes sequence by sequence, which compiles anew for every row.
    """
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
