"""A policy in training computes what engines compute: dropout and jitter of its architecture are off."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from pipelinerl.config.finetune import LoraConfig
from pipelinerl.modeling.lora import add_adapters
from pipelinerl.modeling.model import prepare_model
from tests.unit.modeling.test_logit_scale import SMALL, random_model

PHI = {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attention_dropout": 0.3}
OPT = {"word_embed_proj_dim": 16, "ffn_dim": 32, "max_position_embeddings": 64, "dropout": 0.3}
HIDDEN = {"hidden_dropout": 0.3, "attention_dropout": 0.3}
FAMILIES: list[tuple[str, dict[str, Any], str]] = [
    ("Phi", PHI, "resid_pdrop=0.3, embd_pdrop=0.3, attention_dropout=0.3"),
    ("Phi3", PHI, "resid_pdrop=0.3, embd_pdrop=0.3, attention_dropout=0.3"),
    ("GPTNeoX", HIDDEN, "attention_dropout=0.3, hidden_dropout=0.3"),
    ("StableLm", HIDDEN, "hidden_dropout=0.3, attention_dropout=0.3"),
    ("OPT", OPT | {"layerdrop": 0.5, "attention_dropout": 0.0}, "dropout=0.3, layerdrop=0.5"),
    (
        "Persimmon",
        HIDDEN,
        "hidden_dropout=0.3, attention_dropout=0.3",
    ),  # reads its configuration in a forward
    ("Starcoder2", {"residual_dropout": 0.3, "sliding_window": None}, "residual_dropout=0.3"),
    ("Mixtral", {"router_jitter_noise": 0.3, "sliding_window": None}, "router_jitter_noise=0.3"),
    # As in Phi-3.5-MoE; its other jitter is a threshold in evaluation, and stays.
    ("Phimoe", {"input_jitter_noise": 0.3, "router_jitter_noise": 0.1}, "input_jitter_noise=0.3"),
    ("Llama", {"attention_dropout": 0.3}, "attention_dropout=0.3"),
    ("BioGpt", {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.0}, "hidden_dropout_prob=0.3"),
]
IDS = torch.arange(20)[None]


@pytest.mark.parametrize(("family", "fields", "said"), FAMILIES, ids=[case[0] for case in FAMILIES])
def test_a_policy_in_training_computes_what_it_computes_in_evaluation(
    family: str, fields: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    reference = random_model(family, **fields)
    expected = copy.deepcopy(reference)(input_ids=IDS).logits
    reference.train()
    assert not torch.equal(reference(input_ids=IDS).logits, reference(input_ids=IDS).logits)
    policy = prepare_model(reference)
    assert policy.training
    first, second = (policy(input_ids=IDS, use_cache=False).logits for _ in range(2))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, atol=1e-4, rtol=1e-4)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f": {said} " in line


def test_a_model_without_dropout_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model("Llama")
    before = model.config.to_dict()
    prepare_model(model)
    kept = {"_attn_implementation"}
    assert {k: v for k, v in model.config.to_dict().items() if k not in kept} == {
        k: v for k, v in before.items() if k not in kept
    }
    assert not caplog.records


def test_dropout_of_adapters_is_the_users() -> None:
    pytest.importorskip("peft")
    model = prepare_model(random_model("Phi", **PHI))
    add_adapters(model, LoraConfig(enabled=True, dropout=0.25))
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0, 0.25}


class Forgetful(transformers.LlamaForCausalLM):
    """Drops units without an attribute or a key that says so."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = nn.functional.dropout(output.logits, 0.5, self.training)
        return output


def test_what_cannot_be_turned_off_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Forgetful computes other logits in training") as told:
        prepare_model(Forgetful(transformers.LlamaConfig(**SMALL)))
    assert "\n" not in str(told.value)


class Skipping(transformers.LlamaForCausalLM):
    """Changes something in one forward of five, as stochastic depth does, and no name says so."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if self.training and torch.rand([]) < 0.2:
            output.logits = output.logits * 2
        return output


def test_what_is_skipped_rarely_is_refused() -> None:
    model = Skipping(transformers.LlamaConfig(**SMALL))
    torch.manual_seed(0)
    assert torch.rand([]) > 0.2, "the first forward shows nothing"
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"^Skipping computes other logits in training"):
        prepare_model(model)
    assert torch.equal(torch.get_rng_state(), state), "a resume draws what a run drew"


def test_a_model_that_draws_and_skips_nothing_is_trained() -> None:
    model = prepare_model(random_model("OPT", **OPT | {"dropout": 0.0, "attention_dropout": 0.0}))
    assert model.training
