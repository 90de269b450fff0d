"""A checkpoint has the tensors that no optimizer trains, such as the correction biases of a MoE router."""

from pathlib import Path

import pytest
import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedModel

from tests.support.builders import write_steps
from tests.support.policy import VOCAB
from tests.support.training import saved, train
from tests.unit.finetune.test_ranks import SHARDED, start_ranks

NAME = "model.layers.1.mlp.gate.e_score_correction_bias"
BIAS = torch.tensor([0.5, -0.5, 0.3, -0.3])


def router_with_a_bias() -> PreTrainedModel:
    """Four experts in the second of two layers."""
    torch.manual_seed(0)
    config = Glm4MoeConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, max_position_embeddings=64,
    )  # fmt: skip
    model = Glm4MoeForCausalLM(config)
    model.get_buffer(NAME).copy_(BIAS)
    return model


def check(folder: Path) -> None:
    """The bias, and nothing that the model's class computes for itself."""
    found = saved(folder)
    assert torch.equal(found[NAME], BIAS)
    assert not [name for name in found if "inv_freq" in name]


def test_a_run_goes_on_with_the_biases_that_its_model_has(tmp_path: Path) -> None:
    router_with_a_bias().save_pretrained(tmp_path / "model")
    train(tmp_path, interrupt_train_steps=2)
    check(tmp_path)
    model = train(tmp_path).learner.model
    assert torch.equal(model.get_buffer(NAME), BIAS)
    check(tmp_path)


@pytest.mark.slow
def test_shards_save_them_too(tmp_path: Path) -> None:
    router_with_a_bias().save_pretrained(tmp_path / "model")
    write_steps(tmp_path, 4, 6, ranks=2)
    for code, said in start_ranks(tmp_path, 2, **SHARDED, ends=[2, 4]):
        assert code == 0, said[-2000:]
    check(tmp_path)
