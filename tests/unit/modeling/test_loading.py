"""What is computed with weights does not depend on where in which file they lie."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipelinerl.modeling.loading import ALIGNMENT, load_causal_lm
from tests.support.tiny_model import causal_lm

VOCAB = 73


def save_behind(folder: Path, shift: int, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors into a file whose first one lies `shift` bytes behind a multiple of ALIGNMENT."""
    for padding in range(ALIGNMENT):
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", "padding": " " * padding})
        (length,) = struct.unpack("<Q", (folder / "model.safetensors").read_bytes()[:8])
        if (8 + length) % ALIGNMENT == shift:
            return
    raise AssertionError(f"no header ends {shift} bytes behind a multiple of {ALIGNMENT}")


def computed(model: Any) -> list[torch.Tensor]:
    """Log-probabilities of one row and of several, and the gradients of the latter."""
    rows = torch.arange(12).view(1, -1) % VOCAB
    one, many = (model(rows[:, :length]).logits.log_softmax(-1) for length in (1, 12))
    many[0, :, 5].sum().backward()
    return [one, many, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shift", [8, 16, 32])
def test_equal_weights_of_two_files_give_equal_bits(tmp_path: Path, tied: bool, shift: int) -> None:
    """As a model in bfloat16 and its checkpoint in float32: only the former is converted, not mapped."""
    model = causal_lm(VOCAB, hidden=32, tied=tied, eos=0).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    model.float().save_pretrained(tmp_path / "checkpoint")
    save_behind(tmp_path / "checkpoint", shift, dict(model.named_parameters()))
    expected, found = (
        load_causal_lm(tmp_path / name, dtype=torch.float32, local_files_only=True)
        for name in ("model", "checkpoint")
    )
    assert (found.get_input_embeddings().weight is found.get_output_embeddings().weight) == tied
    for name, one in found.named_parameters():
        assert torch.equal(one, expected.get_parameter(name)), name
        assert one.data_ptr() % ALIGNMENT == 0, name
    for one, other in zip(computed(found), computed(expected), strict=True):
        assert torch.equal(one, other)
