"""Packed rows give what separate rows give."""

import numpy as np
import pytest
import torch
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
