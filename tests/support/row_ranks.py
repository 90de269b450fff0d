"""One of several ranks that compute rows together; started by test_seq_parallel: `row_ranks.py FOLDER JSON`.

JSON has `cases`, names of CASES, and `size`, the ranks of a row. Of each case FOLDER gets this rank's
gradients as they reached the optimizer, and what the micro-batches of its row measured.
"""

import json
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pipelinerl.config import Config, RLConfig
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.ranks import Ranks, join_ranks
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, sentinel_batch
from pipelinerl.finetune.rl.losses import LOSSES, Coefficients, declared
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner, MicroStatistics
from pipelinerl.modeling import activations
from pipelinerl.modeling.sharding import whole
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.builders import VALUE_HEAD, ready, trainer_config
from tests.support.policy import VOCAB
from tests.support.tiny_model import causal_lm, mixture_lm

TEXTS = 8
ROW = 33
"""Tokens of a row: no multiple of 2 or 4, so that samples cross ranks and slices have to be filled up."""
BEGIN = (1, 2, 3, 4, 5, 6, 7)


def _loss(name: str) -> dict[str, Any]:
    clip = {"epsilon_high": 0.3, "epsilon_low": 0.1}
    clip = {key: value for key, value in clip.items() if key not in declared(name).ignores}
    return {"rl": {"policy_loss": name, "temperature": 0.8, **clip}}


def _with_values(fields: dict[str, Any]) -> dict[str, Any]:
    return {"rl": {**fields["rl"], "value_loss_coef": 0.5}, "model_class": VALUE_HEAD}


CASES: dict[str, dict[str, Any]] = {
    **{name: _loss(name) for name in LOSSES},
    "sharded": _loss("gspo") | {"use_fsdp": True},
    "value head": _with_values(_loss("ppo")),
    "adapters": _loss("ppo") | {"lora": {"enabled": True, "r": 4}},
    "shared prefixes": _loss("gspo") | {"share_prefixes": True},
    "recomputed": _loss("ppo") | {"gradient_checkpointing": True},
    "in host memory": _loss("ppo") | {"gradient_checkpointing": "offload"},
    "compiled": _loss("ppo") | {"compile": True},
    "compiled, in host memory": _loss("ppo") | {"compile": True, "gradient_checkpointing": "offload"},
    "bfloat16": _loss("ppo") | {"load_as_bf16": True},
    "experts": _loss("ppo"),
    "windows and caps": _loss("gspo") | {"share_prefixes": True},
    "sinks": _loss("ppo"),
    "layers that are told of the row": _loss("ppo"),
    "one key head": _loss("ppo"),
    "one label": _loss("ppo"),
}
"""Fields of `trainer_config`."""

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "windows and caps": ("gemma2", {"sliding_window": 3}),
    "sinks": ("gpt_oss", {"sliding_window": 3, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "layers that are told of the row": ("stablelm", {}),
}
"""Types of other models than the tiny Qwen, and what their configurations have of their own."""


@cache
def model_of(case: str) -> PreTrainedModel:
    if case == "experts":
        return mixture_lm(VOCAB)
    if case in OTHERS:
        torch.manual_seed(0)
        kind, more = OTHERS[case]
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8}
        config = AutoConfig.for_model(
            kind, vocab_size=VOCAB, num_hidden_layers=2, num_key_value_heads=2, **sizes, **more
        )
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-any-return]
    key_heads = 1 if case == "one key head" else 2
    # What a loss makes of a layer's results does not depend on how many there were.
    return causal_lm(VOCAB, hidden=32, heads=4, kv_heads=key_heads, layers=1 if case in LOSSES else 2)


def config_of(case: str, folder: Path) -> Config:
    fields = dict(CASES[case])
    rl = RLConfig(**fields.pop("rl"))
    return trainer_config(folder, model_of(case), rl=rl, **fields)


def _text(case: str, seed: int) -> Sample:
    text = ready(seed, (-1.0) ** seed * (1 + seed % 3))
    if CASES[case].get("share_prefixes"):
        begin = np.array(BEGIN[: 4 + seed % 4], np.int32)
        text.input_ids = np.concatenate([begin, text.input_ids])
        text.labels = np.concatenate([np.full(len(begin), MASKED_TOKEN_ID, np.int32), text.labels])
    return text


def step_of(case: str, rows_at_once: int) -> list[list[PipelineBatchEncoding]]:
    """By group of ranks the micro-batches of one step, of the same texts whatever the groups."""
    texts = [_text(case, seed) for seed in range(TEXTS)]
    plan = assemble_step(texts, 0, ROW, rows_at_once, share=bool(CASES[case].get("share_prefixes")))
    if case == "one label":  # all ranks but one have nothing to score
        for batches in plan:
            batches[:] = [_last_label(batch) for batch in batches]
    return plan


def _last_label(batch: PipelineBatchEncoding) -> PipelineBatchEncoding:
    labels = batch.labels.copy()
    labels[0, :-1] = MASKED_TOKEN_ID
    return replace(batch, labels=labels)


def run(
    learner: Learner, batches: list[PipelineBatchEncoding], most: int
) -> tuple[dict[str, torch.Tensor], list[MicroStatistics]]:
    """Gradients by place in the optimizer, and what was measured; `most` micro-batches with shards."""
    found: list[MicroStatistics] = []
    fillers = [sentinel_batch(0, TEXTS, batches[0].shared is not None)] * (most - len(batches))
    for batch in [*batches, *(fillers if learner.sharded else [])]:
        micro = learner.accumulate(batch, targets_of(batch, learner.rl), Coefficients(0.1, 0.01))
        found += [micro] if micro is not None else []
    gradients: dict[str, torch.Tensor] = {}
    holders = [p for group in learner.optimiser.param_groups for p in group["params"]]

    def keep() -> None:
        for index, holder in enumerate(holders):
            gradient = torch.zeros_like(holder) if holder.grad is None else holder.grad
            gradients[str(index)] = whole(gradient).clone()

    learner.optimiser.step = keep  # type: ignore[method-assign]
    learner.gradient_clipping_threshold = None
    learner.apply()
    return gradients, found


def learner_of(case: str, folder: Path, ranks: Ranks) -> Learner:
    cfg = config_of(case, folder)
    torch.manual_seed(0)
    # What a C compiler makes of the layers plays no part; that each is one graph does.
    quick = partial(torch.compile, backend="aot_eager", fullgraph=True)
    with patch.object(activations, "compiled", lambda function, dynamic: quick(function, dynamic=dynamic)):
        learner = build_learner(cfg, ranks, folder / "model")
    for name, parameter in learner.policy.named_parameters():
        if "lora_B" in name or "value_head" in name:  # both begin at 0, where gradients of others vanish
            torch.nn.init.constant_(parameter, 0.05)
    return learner


if __name__ == "__main__":
    torch.set_num_threads(1)
    options = json.loads(sys.argv[2])
    ranks = join_ranks(True, False, options["size"])
    for case in options["cases"]:
        folder = Path(sys.argv[1]) / case
        learner = learner_of(case, folder, ranks)
        plan = step_of(case, ranks.count // options["size"])
        gradients, found = run(learner, plan[ranks.partition], max(map(len, plan)))
        save_file(gradients, folder / f"{ranks.index}.safetensors")
        measured = [[one.vector.tolist(), one.texts_3S.tolist()] for one in found]
        (folder / f"{ranks.index}.json").write_text(json.dumps(measured))
    ranks.close()
