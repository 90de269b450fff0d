"""What an architecture does to its logits behind the output head: the same here, or refused at the start."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from pipelinerl.modeling.model import logit_scale, prepare_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.segments import Segments

VOCAB, TEMPERATURE = 31, 0.7
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# As in Granite 3: the other multipliers are inside of the decoder.
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125}
SCALED: list[tuple[str, dict[str, Any], float]] = [
    ("Granite", {"logits_scaling": 6.0, **GRANITE}, 1 / 6),
    ("GraniteMoe", {"logits_scaling": 4.0, "num_local_experts": 2, **GRANITE}, 1 / 4),
    ("Cohere", {"logit_scale": 0.25}, 0.25),
    ("NanoChat", {"final_logit_softcapping": 2.0}, 1.0),
    ("Gemma2", {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 4.0, "head_dim": 8}, 1.0),
    ("Llama", {}, 1.0),
]


def random_model(family: str, **fields: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL | fields)
    config._attn_implementation = "eager"  # of transformers' others not every one caps
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config)
    return model.eval()


def own_logprobs(model: PreTrainedModel, text: torch.Tensor) -> torch.Tensor:
    """Of tokens 1.. of one text, from the logits that the model itself returns."""
    logits = model(input_ids=text[None], use_cache=False).logits[0, :-1] / TEMPERATURE
    return logits.log_softmax(-1).gather(1, text[1:, None])[:, 0]


@pytest.mark.parametrize(("family", "fields", "scale"), SCALED)
def test_scores_and_their_gradients_are_those_of_the_models_own_logits(
    family: str, fields: dict[str, Any], scale: float
) -> None:
    reference = random_model(family, **fields)
    policy = Policy(prepare_model(copy.deepcopy(reference)))
    assert logit_scale(policy.model) == pytest.approx(scale)
    texts = [torch.randint(VOCAB, (length,)) for length in (5, 9)]
    ids, positions = torch.cat(texts)[None], torch.cat([torch.arange(len(text)) for text in texts])[None]
    segments = Segments.from_offsets(np.array([0, 5, 14]))
    predictors = torch.tensor([*range(4), *range(5, 13)])
    scores, _ = policy(ids, positions, segments, predictors, ids[0, predictors + 1], TEMPERATURE)
    expected = torch.cat([own_logprobs(reference, text) for text in texts])
    torch.testing.assert_close(scores.logprobs, expected, atol=2e-5, rtol=1e-5)
    scores.logprobs.sum().backward()
    expected.sum().backward()
    wanted = dict(reference.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted[name].grad, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("family", "fields", "scale"), SCALED)
def test_tokens_are_drawn_from_the_models_own_logits(
    family: str, fields: dict[str, Any], scale: float
) -> None:
    reference = random_model(family, **fields)
    policy = Policy(prepare_model(copy.deepcopy(reference)))
    rows = torch.randint(VOCAB, (64, 3))
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(64, VOCAB))).float()
    with torch.no_grad():
        expected = (reference(input_ids=rows, use_cache=False).logits[:, -1] + noise).argmax(-1)
        assert torch.equal(policy.next_tokens(rows, noise), expected)


class Uncapped(transformers.LlamaForCausalLM):
    """Its configuration names a cap that its logits, which are large, have not."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 10
        return output


def test_a_cap_that_is_not_the_models_own_is_refused() -> None:
    config = transformers.LlamaConfig(**SMALL, final_logit_softcapping=0.5, logits_scaling=0.1)
    with pytest.raises(ValueError, match=r"^Uncapped does more to its logits than is known"):
        prepare_model(Uncapped(config))


class Louder(transformers.LlamaForCausalLM):
    """Multiplies its logits, and no key of its configuration says so."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 1.01
        return output


def test_an_unknown_change_of_the_logits_is_refused() -> None:
    config = transformers.LlamaConfig(**SMALL)
    with pytest.raises(ValueError, match=r"^Louder does more to its logits than is known") as told:
        prepare_model(Louder(config))
    assert "\n" not in str(told.value)


def test_the_look_at_the_logits_draws_no_number_and_leaves_the_model_in_training() -> None:
    """A model with dropout would differ from itself, and a run from one that was resumed."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.5, "attention_dropout": 0.0}
    config = transformers.OPTConfig(vocab_size=VOCAB, **sizes, **heads)
    model = transformers.OPTForCausalLM(config).train()
    state = torch.get_rng_state()
    prepare_model(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_named_as_such(value: float) -> None:
    model = random_model("Llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(ValueError, match=r"its weights are damaged; give another folder") as refused:
        prepare_model(model)
    assert "architecture" not in str(refused.value)
