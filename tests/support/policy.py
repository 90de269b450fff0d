"""A causal LM small enough to train within a test, and what takes its steps."""

from copy import deepcopy
from functools import cache

import torch
from transformers import PreTrainedModel

from pipelinerl.config import FinetuneConfig, RLConfig
from pipelinerl.finetune.optimiser import build_scheduler
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.policy import Policy
from tests.support.tiny_model import causal_lm

VOCAB = 31
CONSTANT = FinetuneConfig(lr_scheduler_type="constant")


def tiny_model(seed: int = 0, tied: bool = True) -> PreTrainedModel:
    """Float32 weights of one seed, ready for the trainer's forward pass; vocabulary of VOCAB ids."""
    model, drawn = _made(seed, tied)
    torch.set_rng_state(drawn)
    return deepcopy(model)


@cache
def _made(seed: int, tied: bool) -> tuple[PreTrainedModel, torch.Tensor]:
    """The model, whose copies take a tenth of its time, and the random state that making it leaves."""
    return prepare_model(causal_lm(VOCAB, seed=seed, tied=tied)), torch.get_rng_state()


def learner(
    rl: RLConfig,
    model: PreTrainedModel | None = None,
    learning_rate: float = 0.0,
    value_head: torch.nn.Linear | None = None,
) -> Learner:
    """Plain gradient descent at a constant rate, on the tiny model unless another is given."""
    policy = Policy(tiny_model() if model is None else model, value_head)
    optimiser = torch.optim.SGD(policy.parameters(), lr=learning_rate)
    scheduler = build_scheduler(optimiser, CONSTANT)
    return Learner(policy=policy, optimiser=optimiser, scheduler=scheduler, rl=rl, ranks=Ranks())
