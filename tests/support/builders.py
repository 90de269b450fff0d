"""Groups, samples and settings for tests of trainer and preprocess."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from transformers import PreTrainedModel

from pipelinerl.config import Config, FinetuneConfig, Job, RLConfig
from pipelinerl.config.machine import JobKind, WatchdogConfig
from pipelinerl.finetune.rl.advantages import Advantages, compute_advantages
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.sample import Sample, settle_group
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.streams import StreamRangeSpec, write_to_streams
from tests.support.policy import VOCAB

JOB_KINDS: dict[str, JobKind] = {"preprocess": "preprocessor", "actor": "actor"}


def text(
    rollout: int, step: int, reward: float, group: str = "g", tokens: int = 4, **fields: Any
) -> dict[str, Any]:
    """A record as the advantage functions see it: labels of its situation, a reward and a length."""
    return {
        "group_id": group,
        "reward": reward,
        "input_ids": [1] * tokens,
        "labels": [MASKED_TOKEN_ID] + [1] * (tokens - 1),
        "logprobs": [0.0] * (tokens - 1),
        "metadata": {"rollout_index": rollout, "step_index": step, **fields.pop("metadata", {})},
        **fields,
    }


def samples(records: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Records of whole groups as samples, with the reference that they bring or an unchanged policy."""
    found = []
    for one in records:
        found.append(sample := Sample.from_record(one))
        reference = one.get("ref_logprobs", ())
        sample.ref_logprobs = reference if len(reference) else sample.old_logprobs
    for group_id in {sample.group_id for sample in found}:
        settle_group(sample for sample in found if sample.group_id == group_id)
    return found


def table_of(records: Iterable[Mapping[str, Any]]) -> SampleTable:
    """The columns of those that are not masked."""
    return SampleTable.of([sample for sample in samples(records) if not sample.masked])


def estimate(
    rows: SampleTable | Iterable[Mapping[str, Any]], steps: bool = False, pad: bool = False, std: bool = False
) -> Advantages:
    """Advantages of a table or of records; `steps` compares situations and steps."""
    rl = RLConfig(
        step_reward_advantages=steps, pad_step_rewards_for_advantage=pad, divide_advantage_by_std=std
    )
    return compute_advantages(rows if isinstance(rows, SampleTable) else table_of(rows), rl)


def record(
    group: str, rollout: int, step: int, reward: float, seed: int, version: int = 0, **fields: Any
) -> dict[str, Any]:
    """One sample as a stream record: a few prompt tokens, a few sampled ones."""
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


def ready(seed: int, advantage: float = 1.0, version: int = 0, **fields: Any) -> Sample:
    """A sample that can be packed."""
    (sample,) = samples([record(f"g{seed}", 0, 0, 0.5, seed, version)])
    values = {"advantage": advantage, "group_tokens": 8.0, "ref_logprobs": sample.old_logprobs - 0.1}
    for name, value in (values | fields).items():
        setattr(sample, name, value)
    return sample


def write_steps(
    output_dir: Path,
    steps: int,
    texts_per_step: int,
    seq_length: int = 24,
    ranks: int = 1,
    share: bool = False,
    begin: Sequence[int] = (),
    mixture: bool = False,
) -> None:
    """Record a `training_data` stream of `steps` optimizer steps; every text begins with the ids `begin`.

    Of a `mixture` (`tiny_model.mixture_lm`) with the experts of all tokens but the last of a text.
    """
    with write_to_streams(StreamRangeSpec(output_dir, "training_data", 0, (0, ranks))) as stream:
        for step in range(steps):
            first = step * texts_per_step
            chosen = [ready(first + i, (-1.0) ** i, first) for i in range(texts_per_step)]
            for sample in chosen:
                sample.input_ids = np.concatenate([np.array(begin, np.int32), sample.input_ids])
                masked = np.full(len(begin), MASKED_TOKEN_ID, np.int32)
                sample.labels = np.concatenate([masked, sample.labels])
                if mixture:
                    sample.routed_experts = some_routes(len(sample.input_ids) - 1, len(sample.input_ids))
            for rank, batches in enumerate(assemble_step(chosen, step, seq_length, ranks, share=share)):
                for batch in batches:
                    stream.write(batch.to_record(), rank)


def some_routes(tokens: int, seed: int, layers: int = 4) -> np.ndarray:
    """Two of eight experts for each token and layer, uint8 `[tokens, layers, 2]`."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(8)[:2] for _ in range(tokens * layers)]
    return np.array(rows, np.uint8).reshape(tokens, layers, 2)


VALUE_HEAD = "causal-language-modeling-with-value-head"


def _watchdog(seconds: float) -> WatchdogConfig:
    """A watchdog whose `input_deadline_s` is shorter than a run may configure."""
    return WatchdogConfig.model_construct(progress_deadline_s=seconds - 60.0)


def preprocess_config(
    output_dir: Path, texts_per_step: int = 8, data_deadline_s: float = 200.0, **changes: Any
) -> Config:
    """A placed run for preprocess: groups of four, rows of 24 tokens, a trainer of one rank."""
    defaults = {
        "output_dir": str(output_dir),
        "model_path": str(output_dir / "model"),
        "attempts": 4,
        "finetune": {"seq_length": 24, "max_train_steps": 100},
        "jobs": [{"kind": "finetune", "idx": 0, "name": "finetune"}],
        "derived": {
            "trainer_ranks": 1,
            "texts_per_step": texts_per_step,
            "texts_per_update": texts_per_step,
        },
    }
    tree: Any = OmegaConf.to_container(OmegaConf.merge(defaults, OmegaConf.create(changes)))
    return Config.model_validate(tree | {"watchdog": _watchdog(data_deadline_s)})


def trainer_config(output_dir: Path, model: PreTrainedModel, **fields: Any) -> Config:
    """Save `model` below `output_dir` and describe a short float32 run from it on the CPU.

    A field belongs to the section of that name that has it: `derived` (texts_per_step, texts_per_update,
    whole_on_host), `finetune`, or the top level. `follows_preprocess` adds that role, `data_deadline_s` is
    the watchdog's.
    """
    path = output_dir / "model"
    if not path.exists():
        model.save_pretrained(path)
    finetune: dict[str, Any] = {
        "rl": RLConfig(epsilon_high=4.0),
        "max_train_steps": 4,
        "learning_rate": 1e-2,
        "num_warmup_steps": 1,
        "save_checkpoint_steps": 2,
        "keep_intermediate_checkpoints": False,
        "load_as_bf16": False,
        "gradient_checkpointing": False,
    }
    derived: dict[str, Any] = {"trainer_ranks": 1, "texts_per_step": 6, "texts_per_update": 1}
    derived |= {"whole_on_host": False}
    roles = fields.pop("roles", ("preprocess",) if fields.pop("follows_preprocess", False) else ())
    top: dict[str, Any] = {
        "output_dir": str(output_dir),
        "model_path": str(path),
        "hardware": {"kind": "cpu"},
        "engine": {"kind": "embedded"},
        "watchdog": _watchdog(fields.pop("data_deadline_s", 200.0)),
        "jobs": [Job(kind=JOB_KINDS[name], idx=index, name=name) for index, name in enumerate(roles)],
    }
    for name, value in fields.items():
        section = derived if name in derived else finetune if name in FinetuneConfig.model_fields else top
        section[name] = value
    derived["compile"] = finetune.pop("compile", False)
    for key in ("gradient_checkpointing", "compiled_checkpointing"):
        derived[key] = finetune["gradient_checkpointing"]
    return Config.model_validate(top | {"finetune": finetune, "derived": derived})


def make_task(folder: Path) -> None:
    """A task of one document, as a retrieval server reads it."""
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "note.md").write_text("cold chain audit")
