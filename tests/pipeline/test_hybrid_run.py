"""A model with gated DeltaNets and a part that sees trains on a CPU, and an interrupted run goes on."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from tests.pipeline.conftest import Start, optimizer_steps
from tests.support.tiny_model import hybrid_lm

PARITY = 2e-5
"""Nats; Qwen3's limit in the engine's tests."""


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    folder = tmp_path / "hybrid"
    texts = (f"guess a number between 1 and 100: {number} is too low, higher" for number in range(1, 101))
    tokenizer = train_tokenizer(texts, 300, [], 512)
    tokenizer.save_pretrained(folder)
    model = hybrid_lm(
        "qwen3_5", len(tokenizer), sees=True, eos=tokenizer.eos_token_id, max_position_embeddings=512
    )
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_hybrid_trains_and_goes_on_from_its_checkpoint(start: Start, hybrid: Path) -> None:
    words = ["+domain=guessing", f"model_path={hybrid}", "finetune.learning_rate=1e-3", "max_lag=64"]
    words += ["finetune.rl.kl_coef=0.1", "finetune.save_checkpoint_steps=1", "weights.parity_every=1"]
    words += ["test_dataset_names=[]", "eval_every_n_versions=0"]
    words += ["dataset_loader_params={count: 6, max_guesses: 2}", "finetune.max_train_steps=4"]
    start(*words, "finetune.interrupt_train_steps=2").trained(steps=2, evaluated=0)
    first = start(*words)
    first.trained(steps=4, evaluated=0)
    steps = optimizer_steps(first.output_dir)
    parities = [step["weights/parity_max_abs"] for step in steps if "weights/parity_max_abs" in step]
    assert parities and max(parities) <= PARITY
    saved = load_file(first.output_dir / "finetune/current/model.safetensors")
    given = load_file(hybrid / "model.safetensors")
    assert saved.keys() == given.keys()
    same = {name: torch.equal(saved[name], given[name]) for name in given}
    assert all(same[name] for name in same if ".visual." in name)
    assert not any(same[name] for name in same if name.endswith(("in_proj_qkv.weight", "conv1d.weight")))
