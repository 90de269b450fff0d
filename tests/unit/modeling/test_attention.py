"""Packed rows give what separate rows give."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from pipelinerl.modeling import attention
from pipelinerl.modeling.attention import varlen_attention
from pipelinerl.modeling.model import hidden_states, prepare_model
from pipelinerl.modeling.segments import Segments
from tests.support.tiny_model import causal_lm

LENGTHS = [5, 1, 9, 3]


def packed_row(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, Segments]:
    rng = np.random.default_rng(seed)
    ids = torch.from_numpy(rng.integers(0, 31, (1, sum(LENGTHS))))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    return ids, positions, Segments.from_offsets(np.cumsum([0, *LENGTHS]))


def test_packed_equals_transformers_eager_attention(model: PreTrainedModel) -> None:
    ids, positions, segments = packed_row()
    packed = hidden_states(model, ids, positions, segments)[0, :5]
    model.set_attn_implementation("eager")
    eager = model.get_decoder()(input_ids=ids[:, :5], use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(packed, eager, atol=1e-5, rtol=1e-5)


def test_packed_gradients_equal_unpacked(model: PreTrainedModel) -> None:
    ids, positions, segments = packed_row()
    hidden_states(model, ids, positions, segments).square().sum().backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for chunk in ids.split(LENGTHS, dim=1):
        hidden_states(model, chunk, torch.arange(chunk.shape[1])[None], None).square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(packed[name], parameter.grad, atol=1e-3, rtol=1e-4)


def test_the_kernel_of_a_device_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class KernelUsed(Exception): ...

    def kernel(*_: object) -> torch.Tensor:
        raise KernelUsed

    monkeypatch.setattr(attention, "_has_varlen_kernel", lambda query, value: True)
    monkeypatch.setattr(attention, "_cuda_varlen", kernel)
    with pytest.raises(KernelUsed):
        hidden_states(prepare_model(causal_lm(31)), *packed_row())
    without = hidden_states(prepare_model(causal_lm(31), flash_attention=False), *packed_row())
    monkeypatch.undo()
    torch.testing.assert_close(without, hidden_states(prepare_model(causal_lm(31)), *packed_row()))


def test_right_padding_does_not_change_real_tokens(model: PreTrainedModel) -> None:
    ids, _, _ = packed_row()
    rows = torch.stack([ids[0, :6], ids[0, 6:12]])
    positions = torch.arange(6).expand(2, -1)
    full = hidden_states(model, rows, positions, None)
    changed = rows.clone()
    changed[:, 4:] = 0
    torch.testing.assert_close(hidden_states(model, changed, positions, None)[:, :4], full[:, :4])


def test_masks_dropout_and_broken_offsets_are_refused() -> None:
    q = torch.zeros(1, 2, 3, 4)
    module = torch.nn.Identity()
    with pytest.raises(ValueError, match="not an attention mask"):
        varlen_attention(module, q, q, q, torch.ones(1, 1, 3, 3))
    with pytest.raises(ValueError, match=r"dropout 0\.1"):
        varlen_attention(module, q, q, q, None, dropout=0.1)
    with pytest.raises(ValueError, match="ascend from 0"):
        Segments.from_offsets(np.array([0, 3, 3]))


SMALL: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
SSM: dict[str, Any] = {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1}


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        (
            "Llama",
            {"layer_types": ["sliding_attention", "chunked_attention"]},
            "layers of chunked_attention; only full_attention and sliding_attention can",
        ),
        ("Mamba2", SSM, "layers of linear_attention"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of conv"),
        ("Bloom", {"n_head": 2}, "attention that cannot be replaced"),
        (
            "Bart",
            {"decoder_attention_heads": 2, "d_model": 16},
            "positions that are counted over a whole row",
        ),
        ("Doge", {}, "masks that its layers compute"),
        ("MiMoV2Flash", {}, "sinks beside values"),
        ("Afmoe", {}, "a result that is read in a layout of its own"),
    ],
)
def test_layers_that_would_mix_texts_are_refused(family: str, fields: dict[str, Any], said: str) -> None:
    named = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    config = getattr(transformers, named)(**SMALL | fields)
    with pytest.raises(ValueError, match=f"^{family}ForCausalLM .*{said}.* packed rows$"):
        prepare_model(getattr(transformers, f"{family}ForCausalLM")(config))


@pytest.mark.parametrize(
    ("family", "said"),
    [("Bloom", "cannot be given another attention"), ("Bart", "takes no positions of tokens")],
)
def test_a_type_that_nobody_listed_is_refused_by_what_it_cannot_do(family: str, said: str) -> None:
    """Bart's decoder would run, and count its positions on from sample to sample."""
    config = getattr(transformers, f"{family}Config")(**SMALL | {"n_head": 2, "d_model": 16})
    config.model_type = "unlisted"
    with pytest.raises(ValueError, match=f"^{family}ForCausalLM {said}, .* packed rows$"):
        prepare_model(getattr(transformers, f"{family}ForCausalLM")(config))
