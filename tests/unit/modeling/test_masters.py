"""bfloat16 for computing, float32 for everything that adds up."""

from pathlib import Path

import torch
from torch import nn

from pipelinerl.modeling.masters import MasterWeights
from tests.support.policy import tiny_model
from tests.support.training import assert_resumes_bit_for_bit, saved


def test_ties_stay_and_frozen_parameters_have_no_master() -> None:
    model = tiny_model(tied=True)
    model.model.norm.weight.requires_grad_(False)
    before = len(list(model.parameters()))
    masters = MasterWeights(model)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    kept = masters.master_of().values()
    assert len(kept) == before - 1
    assert {m.dtype for m in kept} == {torch.float32}


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    layer = nn.Linear(1, 1, bias=False)
    master = layer.weight
    MasterWeights(layer)
    layer(torch.full((1, 1), 256.0, dtype=torch.bfloat16)).sum().backward()
    for _ in range(3):
        layer(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
    # In bfloat16 256 + 1 is 256.
    assert float(master.grad) == 259.0
    assert layer.weight.grad is None


def test_steps_too_small_for_bfloat16_are_not_lost() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    original = layer.weight
    masters = MasterWeights(layer)
    optimiser = torch.optim.SGD([original], lr=2.0**-10)
    for _ in range(8):
        layer(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        masters.publish()
    assert float(original.detach()) == 1 - 2.0**-7
    assert float(layer.weight.detach()) == 1 - 2.0**-7


def test_checkpoints_hold_the_masters_and_a_resumed_run_goes_on_exactly(tmp_path: Path) -> None:
    whole, _ = assert_resumes_bit_for_bit(tmp_path, load_as_bf16=True)
    masters = saved(whole).values()
    assert {tensor.dtype for tensor in masters} == {torch.float32}
    assert any(not torch.equal(t, t.bfloat16().float()) for t in masters)
