"""Parameters that a token passes through, counted on the modules of mixtures and by hand."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from pipelinerl.modeling.model import active_parameters, distinct_parameters
from tests.support.tiny_model import causal_lm

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 100,
    "pad_token_id": 0,
}
ATTENTION = 16 * 16 + 2 * 16 * 8 + 16 * 16  # queries, keys and values of 2 heads of 4, output
NORMS = 2 * 16  # before attention, before the MLP
ENDS = 2 * 100 * 16 + 16  # embedding, head, last norm


def mixture(family: str, **fields: Any) -> nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES | fields))


def test_a_dense_model_is_passed_as_a_whole() -> None:
    for tied in (True, False):
        model = causal_lm(64, tied=tied)
        assert active_parameters(model) == sum(one.numel() for _, one in distinct_parameters(model))


def test_qwen3_moe() -> None:
    model = mixture("qwen3_moe", head_dim=4, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=5)
    layer = ATTENTION + NORMS + 2 * 4 + 8 * 16  # norms of queries and keys, router
    assert active_parameters(model) == ENDS + 2 * (layer + 3 * 3 * 16 * 5)
    whole = sum(one.numel() for _, one in distinct_parameters(model))
    assert whole == ENDS + 2 * (layer + 8 * 3 * 16 * 5)


def test_only_some_layers_have_experts() -> None:
    fields = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 5, "mlp_only_layers": [0]}
    layer = ATTENTION + NORMS + 2 * 4
    dense, sparse = 3 * 16 * 40, 8 * 16 + 3 * 3 * 16 * 5
    assert active_parameters(mixture("qwen3_moe", head_dim=4, **fields)) == ENDS + 2 * layer + dense + sparse


def test_mixtral() -> None:
    model = mixture("mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert active_parameters(model) == ENDS + 2 * (ATTENTION + NORMS + 8 * 16 + 2 * 3 * 16 * 40)


def test_shared_experts_are_passed_by_every_token() -> None:
    fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
    model = mixture("qwen2_moe", shared_expert_intermediate_size=7, qkv_bias=False, **fields)
    shared = 3 * 16 * 7 + 16  # and its gate
    assert active_parameters(model) == ENDS + 2 * (ATTENTION + NORMS + 8 * 16 + shared + 2 * 3 * 16 * 5)


def test_a_configuration_that_calls_the_experts_of_a_token_otherwise() -> None:
    fields = {"enable_moe_block": True, "num_experts": 8, "moe_intermediate_size": 5}
    sizes = {"head_dim": 4, "global_head_dim": 4, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    models = [mixture("gemma4_text", top_k_experts=active, **fields, **sizes) for active in (2, 3)]
    two, three = map(active_parameters, models)
    assert three - two == 2 * 3 * 16 * 5  # one expert more in each of two layers


@pytest.mark.parametrize(("chosen", "expected"), [(2, 30 + 2 * 12), (None, 30 + 4 * 12)])
def test_experts_that_are_modules_of_their_own(chosen: int | None, expected: int) -> None:
    model: Any = nn.Module()
    model.mlp = nn.Module()
    model.mlp.experts = nn.ModuleList(nn.Linear(3, 4, bias=False) for _ in range(4))
    model.mlp.shared_experts = nn.Linear(5, 6, bias=False)
    config = AutoConfig.for_model("qwen3")
    if chosen:
        config.num_experts_per_tok = chosen
    model.config = config
    assert active_parameters(model) == expected


def test_a_window_changes_nothing_of_the_work_that_is_counted() -> None:
    """Products of queries and keys are not counted, so a shorter window is no lower utilisation."""
    fields = {"head_dim": 4, "layer_types": ["sliding_attention", "full_attention"]}
    counts = {active_parameters(mixture("gemma3_text", sliding_window=w, **fields)) for w in (4, 4096)}
    full = mixture("gemma3_text", head_dim=4, layer_types=2 * ["full_attention"])
    assert counts == {active_parameters(full)}
