"""The models that every engine of this folder serves, as the trainer holds them."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from tests.support.engine_harness import full_logprobs
from tests.support.text_model import byte_tokenizer
from tests.support.tiny_model import causal_lm

CONTEXT = 2048
TOKENIZER = byte_tokenizer()
END = int(TOKENIZER.eos_token_id)
VOCABULARY = len(TOKENIZER)


@cache
def model(tied: bool, seed: int) -> PreTrainedModel:
    """Random weights of one shape; large enough that the distributions are far from uniform."""
    shape = {"hidden": 64, "heads": 2, "kv_heads": 1, "positions": CONTEXT}
    return causal_lm(VOCABULARY, **shape, spread=0.15, tied=tied, eos=END, seed=seed).eval()


def save(folder: Path, tied: bool) -> Path:
    """Weights, tokeniser and chat template, as an engine loads them."""
    model(tied, 0).save_pretrained(folder)
    TOKENIZER.save_pretrained(str(folder))
    return folder


def prompt(length: int, seed: int = 0) -> list[int]:
    """Ids that are no special tokens."""
    return np.random.default_rng(seed).integers(2, VOCABULARY, length).tolist()


@torch.no_grad()
def logprobs_over_an_update(
    old: PreTrainedModel, new: PreTrainedModel, ids: np.ndarray, cut: int
) -> np.ndarray:
    """float32 [len(ids) - cut - 1]: of ids cut + 1 …, by `new` on the cache of `old` for ids[:cut]."""
    rows = torch.as_tensor(ids[None].astype(np.int64))
    cache = old(rows[:, :cut], use_cache=True).past_key_values
    logprobs = new(rows[:, cut:-1], past_key_values=cache).logits[0].log_softmax(-1)
    return logprobs.gather(1, rows[0, cut + 1 :, None])[:, 0].numpy()


def score_rows(scored: PreTrainedModel, rows: np.ndarray) -> np.ndarray:
    """float32 [N, P - 1] for ids [N, P]."""
    return np.stack([full_logprobs(scored, row) for row in rows])
