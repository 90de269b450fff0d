"""A causal LM small enough to train within a test."""

from __future__ import annotations

from transformers import PreTrainedModel

from pipelinerl.modeling.model import prepare_model
from tests.support.tiny_model import causal_lm

VOCAB = 31


def tiny_model(seed: int = 0, tied: bool = True) -> PreTrainedModel:
    """Float32 weights of one seed, ready for the trainer's forward pass; vocabulary of VOCAB ids."""
    return prepare_model(causal_lm(VOCAB, seed=seed, tied=tied))
