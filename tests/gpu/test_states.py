"""Layers with a state on a CUDA device, with the kernel of flash-linear-attention. Skipped without either."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.config.finetune import Checkpointing
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.delta_net import convolution_width, kernel_missing
from pipelinerl.modeling.model import hidden_states, prepare_model
from pipelinerl.modeling.row import Row
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.gpu.test_trainer import distance, learner
from tests.support.builders import ready
from tests.support.policy import VOCAB
from tests.support.tiny_model import hybrid_lm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(kernel_missing() is not None, reason="needs a CUDA device and flash-linear-attention"),
]


def hybrid_model() -> PreTrainedModel:
    """Qwen3.5 with heads that the kernels of a GPU take, attending in one of four layers."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    heads: dict[str, Any] = {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
    return hybrid_lm("qwen3_5", VOCAB, max_position_embeddings=1024, **sizes, **heads)


def branches(rows: str) -> list[PipelineBatchEncoding]:
    """Texts of 300 tokens and less, in a tree of four levels some of whose nodes are short.

    rows: `shared`, `packed` or `alone`, one text a row.
    """
    drawn, samples = np.random.default_rng(0), list[Sample]()

    def grow(begin: np.ndarray, *lengths: int) -> None:
        for length in (lengths[0], lengths[0] + 3):
            ids = np.concatenate([begin, drawn.integers(0, VOCAB, length)]).astype(np.int32)
            if lengths[1:]:
                grow(ids, *lengths[1:])
            else:
                labels = ids.copy()
                labels[: len(begin)] = MASKED_TOKEN_ID
                number, old = len(samples), -3 - drawn.random(length).astype(np.float32)
                samples.append(
                    ready(
                        number,
                        (-1.0) ** number,
                        input_ids=ids,
                        labels=labels,
                        old_logprobs=old,
                        ref_logprobs=old,
                        weight_versions=[(0, 0, length)],
                    )
                )

    for lengths in ((130, 70, 66, 2), (70, 2, 65, 40), (1, 1, 20)):
        grow(np.zeros(0, np.int32), *lengths)
    share = rows == "shared"
    found = assemble_step(samples, 0, 8192, packing=rows != "alone", share=share)[0]
    assert not share or sum(one.n_computed for one in found) < 0.5 * sum(one.n_tokens for one in found)
    return found


def summed(one: Learner, batches: list[PipelineBatchEncoding]) -> dict[str, torch.Tensor]:
    """Gradients by name."""
    for batch in batches:
        one.accumulate(batch, targets_of(batch, one.rl), Coefficients(0.1, 0.01))
    return {
        name: holder.grad.float().cpu()
        for name, holder in zip(
            (name for name, p in one.policy.named_parameters() if p.requires_grad),
            (p for group in one.optimiser.param_groups for p in group["params"]),
            strict=True,
        )
        if holder.grad is not None
    }


def test_a_row_whose_branches_go_on_from_states_is_its_texts_alone() -> None:
    """In bfloat16 with the kernel: outputs and each gradient, as far from float32 as each text alone is."""
    model = hybrid_model()
    exact, fast = prepare_model(copy.deepcopy(model)), prepare_model(model, "cuda").bfloat16()
    (shared,) = branches("shared")
    prefixes = shared.prefixes
    assert prefixes is not None
    row = Row.of(shared.input_ids[0], shared.position_ids[0], shared.seq_boundaries, prefixes)
    weights = torch.randn(shared.n_tokens, 256, generator=torch.Generator().manual_seed(0))

    def computed(one: PreTrainedModel, told: Row) -> dict[str, torch.Tensor]:
        one.zero_grad()
        device, kernel = one.device, convolution_width(one)
        ids, positions = (torch.from_numpy(x).to(device) for x in (told.input_ids, told.position_ids))
        states = hidden_states(one, ids, positions, told.segments(device, kernel=kernel))[0]
        at = torch.from_numpy(told.computed(np.arange(shared.n_tokens))).to(device)
        (states[at].float() * weights.to(device)).sum().backward()
        gradients = {name: p.grad.clone() for name, p in one.named_parameters() if p.grad is not None}
        return gradients | {"outputs": states.detach()[at]}

    apart = Row.of(shared.input_ids[0], shared.position_ids[0], shared.seq_boundaries)
    wanted, alone, found = computed(exact, apart), computed(fast, apart), computed(fast, row)
    assert wanted.keys() == alone.keys() == found.keys()
    assert distance(found["outputs"], alone["outputs"]) < 0.02
    for name, expected in wanted.items():
        rounding = distance(alone[name], expected)
        assert distance(found[name], expected) < 1.5 * rounding + 0.01, name


@pytest.mark.parametrize(
    ("mode", "compiled"), [(False, False), (True, False), (False, True), (True, True), ("selective", True)]
)
def test_gradients_of_branches_with_states_match_float32_on_the_cpu(
    tmp_path: Path, mode: Checkpointing, compiled: bool
) -> None:
    model = hybrid_model()
    expected = summed(learner(tmp_path, prepare_model(copy.deepcopy(model))), branches("alone"))
    found = {}
    for rows in ("packed", "shared"):
        fast = prepare_model(copy.deepcopy(model), "cuda", mode, compile=compiled)
        one = learner(tmp_path / rows, fast, load_as_bf16=True, hardware={"kind": "gpu"})
        found[rows] = summed(one, branches(rows))
    assert expected.keys() == found["packed"].keys() == found["shared"].keys()
    for name, gradient in expected.items():
        rounding = distance(found["packed"][name], gradient)
        assert distance(found["shared"][name], gradient) < 1.5 * rounding + 0.01, name
