"""Groups, ready texts and settings for tests of trainer and preprocess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.settings import TrainerSettings
from pipelinerl.preprocess.assemble import assemble_step
from pipelinerl.preprocess.ready import ReadyText
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.streams import StreamRangeSpec, write_to_streams
from tests.support.policy import VOCAB


def text(
    rollout: int, step: int, reward: float, group: str = "g", tokens: int = 4, **fields: Any
) -> dict[str, Any]:
    """A text as the advantage functions see it: labels of its situation, a reward and a length."""
    return {
        "group_id": group,
        "reward": reward,
        "input_ids": [1] * tokens,
        "metadata": {"rollout_index": rollout, "step_index": step, **fields.pop("metadata", {})},
        **fields,
    }


def record(
    group: str, rollout: int, step: int, reward: float, seed: int, version: int = 0, **fields: Any
) -> dict[str, Any]:
    """One training text as a stream record: a few prompt tokens, a few sampled ones."""
    rng = np.random.default_rng(seed)
    prompt, output = (int(n) for n in rng.integers(2, 7, 2))
    ids = rng.integers(1, VOCAB, prompt + output).astype(np.int32)
    labels = ids.copy()
    labels[:prompt] = MASKED_TOKEN_ID
    return {
        "group_id": group,
        "reward": reward,
        "input_ids": ids,
        "labels": labels,
        "logprobs": -rng.random(output).astype(np.float32) - 1,
        "ref_logprobs": np.zeros(0, np.float32),
        "weight_versions": [[version, 0, output]],
        "finished": True,
        "metadata": {"rollout_index": rollout, "step_index": step, "model_version": version},
        **fields,
    }


def group(number: int, attempts: int = 4, steps: int = 1, version: int = 0) -> list[dict[str, Any]]:
    return [
        record(f"g{number}", r, s, float((r + number) % 2), 1000 * number + 10 * r + s, version)
        for r in range(attempts)
        for s in range(steps)
    ]


def ready(seed: int, advantage: float = 1.0, version: int = 0, **fields: Any) -> ReadyText:
    text = record(f"g{seed}", 0, 0, 0.5, seed, version)
    values: dict[str, Any] = {
        "group_id": text["group_id"],
        "rollout_index": 0,
        "step_index": 0,
        "input_ids": text["input_ids"],
        "labels": text["labels"],
        "logprobs": text["logprobs"],
        "ref_logprobs": text["logprobs"] - 0.1,
        "versions": np.full(len(text["logprobs"]), version, np.int32),
        "reward": 0.5,
        "advantage": advantage,
        "group_tokens": 8.0,
        "overflow": False,
        "loss_weight": 1.0,
        "role": None,
        "situation": None,
    }
    return ReadyText(**values | fields)


def write_steps(
    output_dir: Path, steps: int, texts_per_step: int, seq_length: int = 24, ranks: int = 1
) -> None:
    """Record a `training_data` stream of `steps` optimizer steps."""
    with write_to_streams(StreamRangeSpec(output_dir, "training_data", 0, (0, ranks))) as stream:
        for step in range(steps):
            first = step * texts_per_step
            texts = [ready(first + i, (-1.0) ** i, first) for i in range(texts_per_step)]
            for rank, batches in enumerate(assemble_step(texts, step, seq_length, ranks)):
                for batch in batches:
                    stream.write(batch.to_record(), rank)


def settings(output_dir: Path, model: PreTrainedModel, **fields: Any) -> TrainerSettings:
    """Save `model` below `output_dir` and describe a short run from it."""
    path = output_dir / "model"
    if not path.exists():
        model.save_pretrained(path)
    defaults: dict[str, Any] = {
        "output_dir": output_dir,
        "model_path": str(path),
        "rl": RLConfig(epsilon_high=4.0),
        "texts_per_step": 6,
        "last_step": 4,
        "max_train_steps": 4,
        "learning_rate": 1e-2,
        "num_warmup_steps": 1,
        "save_checkpoint_steps": 2,
        "keep_intermediate_checkpoints": False,
        "follows_preprocess": False,
        "data_deadline_s": 30.0,
    }
    return TrainerSettings(**defaults | fields)
