"""Runs on a CPU with sliding windows shorter than the texts: trainer and engine compute the same model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM

from tests.pipeline.conftest import Start, optimizer_steps
from tests.support.tiny_model import build_tokenizer

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
SIZES |= {"num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": 1024}
SIZES |= {"sliding_window": 12, "bos_token_id": None, "pad_token_id": None, "initializer_range": 0.2}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_run_with_a_window_shorter_than_its_texts_ends_well(
    start: Start, tmp_path: Path, kind: str
) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(str(tmp_path / kind))
    sizes = SIZES | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    made: Any = (
        MistralForCausalLM(MistralConfig(**sizes))
        if kind == "mistral"
        else Gemma3ForCausalLM(Gemma3TextConfig(**sizes | LAYERS))
    )
    made.save_pretrained(tmp_path / kind)
    run = start(
        "+domain=guessing",
        f"model_path={tmp_path / kind}",
        "max_lag=64",
        "dataset_loader_params={count: 6, max_guesses: 2}",
        "finetune.max_train_steps=3",
    )
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 3
    compared = [one for one in optimizer_steps(run.output_dir) if "weights/parity_max_abs" in one]
    assert compared and max(one["weights/parity_max_abs"] for one in compared) <= 2e-5
