"""Sizes read from a model's `config.json` are those of the model that transformers builds from it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pipelinerl.launcher.decoder_shape import DecoderShape, decoder_shape, has_experts
from pipelinerl.launcher.engine_memory import EngineWork, decode_reads, request_bytes
from pipelinerl.launcher.fitting_weights import misfits
from pipelinerl.modeling.decoder_defaults import DEFAULTS, TEXT_PART
from tests.unit.launcher.hub_configs import HUB

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
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 40,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 20,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
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
    "gemma2": {},
    "gemma3_text": {},
    "olmo3": {"head_dim": 16},
    "mistral": {},
    "phi3": {"head_dim": 16, "sliding_window": 64},
    "starcoder2": {"head_dim": 16},
    "gpt_neox": {"head_dim": 16, "num_key_value_heads": 4},
    "phi": {"head_dim": 16},
    "deepseek_v2": LATENT | {"n_routed_experts": 6, "topk_method": "greedy"},
    "deepseek_v3": LATENT | {"n_routed_experts": 6, "n_group": 1, "topk_group": 1, "q_lora_rank": 24},
    "glm4_moe_lite": LATENT | {"n_routed_experts": 6, "n_group": 1, "topk_group": 1, "q_lora_rank": 24},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 96},
    "qwen3_next": EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 96},
}
STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3,
}
GATED_EXPERTS = ("qwen2_moe", "qwen3_5_moe_text", "qwen3_next")


def described(family: str) -> dict[str, Any]:
    states = STATES if family.startswith(("qwen3_5", "qwen3_next")) else {}
    return AutoConfig.for_model(family, **SIZES | states | FAMILIES[family]).to_dict()


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
    # Qwen's gate of the shared expert, one row of each sparse layer, is all that is left out.
    gates = (shape.layers - shape.dense_layers) * shape.hidden if family in GATED_EXPERTS else 0
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


def test_latent_attention_is_counted_by_hand() -> None:
    """DeepSeek V3: 671 billion weights, of which a token passes through 37, and 70 KB of cache a token."""
    shape = decoder_shape(AutoConfig.for_model("deepseek_v3").to_dict())
    assert shape is not None
    queries = 7168 * 1536 + 1536 * 128 * (128 + 64)
    keys_and_values = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    attention = queries + keys_and_values + 128 * 128 * 7168
    dense, expert = 3 * 7168 * 18432, 3 * 7168 * 2048
    rest = 61 * attention + 3 * dense + 58 * (expert + 256 * 7168) + 2 * 129280 * 7168
    assert shape.parameters == rest + 58 * 256 * expert and round(shape.parameters / 1e9) == 671
    assert shape.active_parameters == rest + 58 * 8 * expert
    for cards in (1, 8):  # what heads share is not divided
        work = EngineWork(max_model_len=4096, cards=cards)
        assert request_bytes(shape, work, tokens=1) == 61 * 576 * 2 == 70_272
    eight = EngineWork(max_model_len=4096, cache_bytes_per_number=1)
    assert decode_reads(shape, eight).token == 61 * 576


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


@pytest.mark.parametrize(
    "family",
    [
        "jamba",
        "longcat_flash",
        "llama4_text",
        "ernie4_5_moe",
        "gemma3n",
        "gemma4",
        "lfm2",
        "bert",
        "olmo_hybrid",
    ],
)
def test_what_is_not_counted_has_no_shape(family: str) -> None:
    assert decoder_shape(AutoConfig.for_model(family).to_dict()) is None


def test_a_mixture_that_does_not_say_how_many_are_active_has_no_shape() -> None:
    config = described("mixtral")
    del config["num_experts_per_tok"]
    assert decoder_shape(config) is None


def numbers(config: dict[str, Any], sees: bool = False) -> int:
    """All numbers of the model that is built, ties once."""
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with torch.device("meta"):
        return sum(p.numel() for p in auto.from_config(AutoConfig.for_model(**config)).parameters())


@pytest.mark.parametrize("name", HUB)
def test_sizes_of_published_configurations_are_those_of_the_model(name: str) -> None:
    config = HUB[name]
    shape = decoder_shape(config)
    assert shape is not None
    # Of a model that also sees trainer and engine load all.
    found = numbers(config, "vision_config" in config)
    assert shape.policy_parameters == shape.served_parameters == pytest.approx(found, rel=0.005)


def misfits_of(model: torch.nn.Module, config: dict[str, Any]) -> list[str]:
    headers = {"model.safetensors": {k: {"shape": list(v.shape)} for k, v in model.state_dict().items()}}
    return list(misfits(Path("MODEL"), config, headers))


@pytest.mark.parametrize(
    ("family", "wanted", "layers"),
    [("llama", "num_hidden_layers", 32), ("gpt_neo", "num_layers", 24), ("qwen3", "num_hidden_layers", 32)],
)
def test_layers_that_a_configuration_does_not_count_are_those_of_its_type(
    family: str, wanted: str, layers: int
) -> None:
    """A model with so many fits, one with a layer less does not."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family))
    given = {"model_type": family}
    assert misfits_of(model, given) == []
    short = {k: v for k, v in model.state_dict().items() if f".{layers - 1}." not in k}
    headers = {"model.safetensors": {k: {"shape": list(v.shape)} for k, v in short.items()}}
    (line,) = misfits(Path("MODEL"), given, headers)
    assert f"weights are of {layers - 1} layers, config.json has no {wanted}, and" in line
    assert f"transformers takes {layers}; set {layers - 1} there" in line
    (line,) = misfits(Path("MODEL"), given | {wanted: layers + 2}, headers)
    assert f"are of {layers - 1} layers, config.json says {wanted}={layers + 2}; set" in line


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_no_type_of_transformers_has_a_wrong_shape(family: str) -> None:
    """At its default sizes each type has the right number of weights, or no shape."""
    try:
        config = AutoConfig.for_model(family)
        shape = decoder_shape(config.to_dict())
        with torch.device("meta"):
            auto = AutoModelForImageTextToText if shape and shape.frozen else AutoModelForCausalLM
            model = auto.from_config(config) if shape else None
    except Exception as error:  # the defaults of some make no model
        pytest.skip(f"{family} cannot be built from its defaults: {error}")
    if shape is not None and model is not None:
        assert shape.policy_parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.005)
        if family == "mllama":  # attends to pictures, and its table has eight ids for them
            return
        for given in (config.to_dict(), config.to_diff_dict(), {"model_type": family}):
            assert misfits_of(model, {"model_type": family, **given}) == []


@pytest.mark.parametrize("family", DEFAULTS)
def test_what_a_configuration_leaves_out_is_the_default_of_its_type(family: str) -> None:
    """Each key alone: a table with a wrong number would give another shape than transformers' own."""
    whole = AutoConfig.for_model(family).to_dict()
    expected = decoder_shape(whole)
    assert expected is not None and decoder_shape({"model_type": family}) == expected
    for key in DEFAULTS[family].keys() & whole.keys():
        assert whole[key] == DEFAULTS[family][key], key
    nested = {"model_type": "seeing", "text_config": {"model_type": family}}
    assert decoder_shape(nested) == expected
    for outer, inner in TEXT_PART.items():
        if inner == family:
            found = decoder_shape({"model_type": outer, "text_config": {}})
            assert found is not None and found.parameters == expected.parameters


def layers_with_windows(config: dict[str, Any]) -> tuple[int, int]:
    shape = decoder_shape(config)
    assert shape is not None
    return shape.windowed, shape.window


def test_windows_are_counted_as_transformers_completes_a_configuration() -> None:
    for name, windows in {
        "google/gemma-3-4b-it": (29, 1024),
        "google/gemma-2-9b": (21, 4096),
        "allenai/Olmo-3-1025-7B": (24, 4096),
        "mistralai/Mistral-7B-v0.1": (32, 4096),
        "mistralai/Mistral-7B-v0.3": (0, 0),
        "openai/gpt-oss-20b": (12, 128),
        "Qwen/Qwen3-8B": (0, 0),
        "Qwen/Qwen3.5-4B": (0, 0),
    }.items():
        assert layers_with_windows(HUB[name]) == windows, name
    part = described("qwen3") | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}
    assert layers_with_windows(part | {"layer_types": None}) == (1, 64)
    assert layers_with_windows(part | {"layer_types": None, "use_sliding_window": False}) == (0, 0)


def test_a_gated_delta_net_is_counted_by_hand() -> None:
    """One layer of Qwen3.5-4B and the state that a request has in it."""
    shape = decoder_shape(HUB["Qwen/Qwen3.5-4B"])
    assert shape is not None and shape.linear is not None and shape.gated
    assert (shape.linear.layers, shape.attending) == (24, 8)
    inside = 2560 * (2048 + 2048 + 4096) + 2560 * 4096 + 2 * 2560 * 32 + 4 * (2048 + 2048 + 4096)
    assert shape.linear.parameters(2560) == inside + 4096 * 2560
    assert (shape.linear.state, shape.linear.state_bytes_per_number) == (32 * 128 * 128, 4)
