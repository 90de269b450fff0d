"""Advantages of a data set of samples, by the name and in the form that programs written for upstream know.

A run does not come here: preprocess makes samples of its stream (`preprocess/chunk.py`) and expands them to
tokens while packing. Both use the same samples, tables, estimators and scales.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import groupby
from typing import Any

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import compute_advantages
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.sample import Sample, settle_group
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.situations import LARGEST, absent, read_labels

REQUIRED = ("group_id", "rollout_index", "step_index", "input_ids", "labels", "rewards")
COLUMNS = ("advantages", "group_tokens", "overflow", "num_labels", "loss_weight_scale")

Row = Mapping[str, Any]


def populate_rl_data(dataset: Any, eos_token_id: int, config: RLConfig) -> Any:
    """Add upstream's columns to the samples of whole groups: lists of numbers, one per token of `input_ids`.

    `dataset` is a list of dicts, which get the columns in place as upstream's do, or a dict of columns or a
    `datasets.Dataset`, of which a copy has them. Kind, order and the other columns stay, and no sample is
    left out. Each sample needs `group_id`, `rollout_index`, `step_index`, and per token `input_ids`,
    `labels` and `rewards`. What it says of its situation, typed or in `metadata`, of `finish_reason` and of
    `finished` is read too.

    `advantages` are the estimator's of `config`, `group_tokens` the tokens of a rollout of the group,
    `overflow` is 1 for a sample that was cut, `num_labels` counts its labelled tokens. `loss_weight_scale` is
    taken over the data set; it is 0 for samples that are masked or only in a baseline. Raises TypeError for
    another kind of data set, ValueError naming the sample for a missing column and for samples that
    contradict each other or cannot be compared.
    """
    rows = list(_rows(dataset))
    samples = [_sample(row, number) for number, row in enumerate(rows)]
    for name, count in Counter(sample.name for sample in samples).items():
        if count > 1:
            raise ValueError(f"sample {name}: {count} samples have this group, rollout and step")
    for _, group in groupby(sorted(samples, key=lambda one: one.group_id), lambda one: one.group_id):
        settle_group(group)
    _score(samples, eos_token_id, config)
    found: dict[str, list[list[float]]] = {name: [] for name in COLUMNS}
    for row, sample in zip(rows, samples, strict=True):
        n_tokens = len(sample.input_ids)
        found["advantages"].append(_per_token(row, sample, config))
        found["group_tokens"].append([sample.group_tokens] * n_tokens)
        found["overflow"].append([float(sample.overflow)] * n_tokens)
        found["num_labels"].append([len(sample.old_logprobs)] * n_tokens)
        found["loss_weight_scale"].append([sample.loss_weight_scale] * n_tokens)
    return _with_columns(dataset, found)


def _score(samples: list[Sample], eos_token_id: int, config: RLConfig) -> None:
    """Write advantage, group_tokens, overflow and scale into the samples."""
    compared = [sample for sample in samples if not sample.masked]
    for sample in samples:
        sample.overflow = sample.is_cut((eos_token_id,))
        sample.loss_weight_scale = 0.0
    if not compared:
        return
    found = compute_advantages(SampleTable.of(compared), config)
    for sample, advantage, tokens in zip(compared, found.advantage.tolist(), found.group_tokens.tolist()):
        sample.advantage, sample.group_tokens = advantage, tokens
    apply_scales([sample for sample in compared if sample.loss_weight > 0], config)


def _rows(dataset: Any) -> Iterator[Row]:
    if isinstance(dataset, list):
        yield from dataset
        return
    columns = dataset if isinstance(dataset, Mapping) else None
    if _is_dataset(dataset):
        columns = dataset.to_dict()
    if columns is None:
        raise TypeError(
            f"populate_rl_data: a {type(dataset).__name__} is no data set; give a list of dicts, a dict of "
            "columns or a datasets.Dataset"
        )
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values))


def _is_dataset(dataset: Any) -> bool:
    """By its methods: the package `datasets` is not needed for the others."""
    return all(hasattr(dataset, name) for name in ("to_dict", "column_names", "remove_columns", "add_column"))


def _with_columns(dataset: Any, found: Mapping[str, list[list[float]]]) -> Any:
    if isinstance(dataset, list):
        for number, row in enumerate(dataset):
            added: MutableMapping[str, Any] = row
            added.update({name: values[number] for name, values in found.items()})
        return dataset
    if isinstance(dataset, Mapping):
        return {**dataset, **found}
    dataset = dataset.remove_columns([name for name in COLUMNS if name in dataset.column_names])
    for name, values in found.items():
        dataset = dataset.add_column(name, values)
    return dataset


def _sample(row: Row, number: int) -> Sample:
    """A sample as the estimators see it."""
    missing = [name for name in REQUIRED if row.get(name) is None]
    if missing:
        raise ValueError(f"populate_rl_data: sample {number} has no {missing[0]}")
    place = str(row["group_id"]), int(row["rollout_index"]), int(row["step_index"])
    name = "/".join(map(str, place))
    ids, labels = np.asarray(row["input_ids"], np.int32), np.asarray(row["labels"], np.int32)
    if not len(ids) == len(labels) == len(row["rewards"]) > 0:
        raise ValueError(
            f"sample {name}: {len(ids)} input_ids, {len(labels)} labels and {len(row['rewards'])} rewards; "
            "all need one number per token"
        )
    if not (np.abs(np.asarray(row["rewards"], np.float64)) <= LARGEST).all():
        raise ValueError(f"sample {name}: a reward is not finite, or beyond {LARGEST:g} in size")
    metadata = row.get("metadata")
    reason = row.get("finish_reason")
    return Sample(
        group_id=place[0],
        rollout_index=place[1],
        step_index=place[2],
        input_ids=ids,
        labels=labels,
        # Only their number is used here: log-probabilities of upstream's samples lie over all tokens.
        old_logprobs=np.zeros(np.count_nonzero(labels != MASKED_TOKEN_ID), np.float32),
        weight_versions=[],
        reward=float(row["rewards"][0]),
        finished=bool(row.get("finished")),
        finish_reason=None if absent(reason) else str(reason),
        **read_labels(row, metadata if isinstance(metadata, Mapping) else {}, name),
    )


def _per_token(row: Row, sample: Sample, config: RLConfig) -> list[float]:
    """The advantage, with each token's own reward in place of the first one's."""
    rewards = np.asarray(row["rewards"], np.float64)
    if (rewards == rewards[0]).all():
        return [sample.advantage] * len(rewards)
    if config.divide_advantage_by_std:
        raise ValueError(
            f"sample {sample.name}: rewards differ between tokens; set divide_advantage_by_std=false, which "
            "has one divisor per sample only"
        )
    advantages: list[float] = (sample.advantage + (rewards - rewards[0])).tolist()
    return advantages
