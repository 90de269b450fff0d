"""Sizes read from a model's `config.json` are those of the model that transformers builds from it."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pipelinerl.launcher.decoder_shape import DecoderShape, decoder_shape, has_experts

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 160,
    "vocab_size": 512,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"tie_word_embeddings": True},
    "llama": {},
    "gemma": {},
    "cohere": {},
    "qwen3_moe": EXPERTS | {"num_experts": 8, "decoder_sparse_step": 2},
    "qwen2_moe": EXPERTS
    | {"num_experts": 8, "shared_expert_intermediate_size": 96, "mlp_only_layers": [1], "head_dim": 16},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16},
    "granitemoeshared": {"num_local_experts": 8, "shared_intermediate_size": 80, "head_dim": 16},
    "glm4_moe": EXPERTS | {"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "gpt_oss": {"num_local_experts": 8},
}


def described(family: str) -> dict[str, Any]:
    return AutoConfig.for_model(family, **SIZES | FAMILIES[family]).to_dict()


def matrices(config: dict[str, Any]) -> int:
    """Numbers in the matrices of the model, ties once, counted on its modules."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    # Biases of stacked experts are matrices too, by their shape; those of gpt-oss.
    return sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "bias" not in name)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_weights_are_those_of_the_model(family: str) -> None:
    config = described(family)
    shape = decoder_shape(config)
    assert shape is not None
    # Qwen 2's gate of the shared expert, one row of each sparse layer, is all that is left out.
    gates = (shape.layers - shape.dense_layers) * shape.hidden if family == "qwen2_moe" else 0
    assert shape.parameters == matrices(config) - gates
    assert has_experts(config) is (shape.experts > 0)


def test_a_token_passes_through_its_own_experts_only() -> None:
    """Qwen3-30B-A3B, counted by hand; its name says 3B active ones."""
    sizes = {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    }
    shape = decoder_shape(sizes)
    assert shape is not None and shape.dense_layers == 0
    attention = 2048 * (4096 + 512 + 512 + 4096)  # queries, keys, values, output
    expert, router, ends = 3 * 2048 * 768, 2048 * 128, 2 * 151936 * 2048
    assert shape.parameters == 48 * (attention + router + 128 * expert) + ends == 30_531_911_680
    assert shape.active_parameters == 48 * (attention + router + 8 * expert) + ends == 3_352_821_760


def test_dense_and_shared_parts_are_passed_by_every_token() -> None:
    shape = DecoderShape(
        layers=3,
        hidden=10,
        mlp=7,
        queries=4,
        keys=2,
        vocabulary=100,
        tied=True,
        dense_layers=1,
        experts=6,
        active_experts=2,
        expert_mlp=5,
        shared_mlp=9,
    )
    rest = 3 * 10 * (4 + 2 + 2 + 4) + 3 * 10 * 7 + 100 * 10 + 2 * (10 * 6 + 3 * 10 * 9)
    assert shape.parameters == rest + 2 * 6 * 3 * 10 * 5
    assert shape.active_parameters == rest + 2 * 2 * 3 * 10 * 5


def test_a_decoder_that_also_sees_is_described_by_its_text_part() -> None:
    text = described("qwen3_moe") | {"tie_word_embeddings": True}
    tied = decoder_shape({"text_config": {k: v for k, v in text.items() if k != "tie_word_embeddings"}})
    assert tied is not None and not tied.tied
    assert decoder_shape({"model_type": "seeing", "text_config": text}) == decoder_shape(text)
    del text["tie_word_embeddings"]
    above = decoder_shape({"tie_word_embeddings": True, "text_config": text})
    assert above is not None and above.tied
    assert has_experts({"text_config": text})


def test_ties_that_a_configuration_leaves_out() -> None:
    for family, tied in (("gemma", True), ("cohere", True), ("llama", False)):
        config = described(family)
        assert config.pop("tie_word_embeddings") is tied
        shape = decoder_shape(config)
        assert shape is not None and shape.tied is tied


@pytest.mark.parametrize("family", ["deepseek_v3", "jamba", "qwen3_next", "llama4_text", "ernie4_5_moe"])
def test_what_is_not_counted_has_no_shape(family: str) -> None:
    assert decoder_shape(AutoConfig.for_model(family).to_dict()) is None


def test_a_mixture_that_does_not_say_how_many_are_active_has_no_shape() -> None:
    config = described("mixtral")
    del config["num_experts_per_tok"]
    assert decoder_shape(config) is None
