"""From records to advantages and token columns: tokens per second of one core, beside the row-wise way.

    python -m benchmarks.advantages [--texts 2048] [--tokens 4096] [--runs 7]

With situations, padding and division by the standard deviation. The input is given as Python lists, as a
foreign writer would send it, and as the arrays in which samples travel here; reading and validating the
samples is counted, with all conversions. The row-wise way has the structure of upstream's `populate_rl_data`
without its data frames: a list of token values for every column of every row, statistics looked up from the
row for every token. Upstream itself took 51.8 s for this many tokens on two cores, measured elsewhere: the
ratio to it is an estimate, the ratio to the row-wise way is not.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from benchmarks._figures import Figure, at_least, at_most, command_line, report, seconds_of
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import compute_advantages
from pipelinerl.finetune.rl.sample import Sample, settle_group
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.preprocess.chunk import ChunkResult
from pipelinerl.preprocess.metrics import PreprocessMetrics
from pipelinerl.rollouts import MASKED_TOKEN_ID

UPSTREAM_S, UPSTREAM_TOKENS = 51.8, 2048 * 4096
EOS = 2
RL = RLConfig(step_reward_advantages=True, pad_step_rewards_for_advantage=True, divide_advantage_by_std=True)
ROW_WISE_TEXTS = 128


def make_records(n_samples: int, n_tokens: int, attempts: int = 8, steps: int = 4) -> list[dict[str, Any]]:
    """Groups of `attempts` rollouts with `steps` samples each, half of the tokens labelled; all in lists."""
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 32_000, n_tokens).tolist()
    labels = [MASKED_TOKEN_ID] * (n_tokens // 2) + ids[n_tokens // 2 :]
    records = []
    for i in range(n_samples):
        group, rest = divmod(i, attempts * steps)
        rollout, step = divmod(rest, steps)
        records.append(
            {
                "group_id": f"g{group}",
                "reward": float(rng.integers(0, 5)) / 4,
                "input_ids": list(ids),
                "labels": list(labels),
                "logprobs": [-0.5] * (n_tokens - n_tokens // 2),
                "finish_reason": "stop",
                "situation": ("plan", "choose")[step % 2] if rollout % 4 else None,
                "metadata": {"rollout_index": rollout, "step_index": step, "model_version": 0},
            }
        )
    return records


def as_arrays(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    dtypes = {"input_ids": np.int32, "labels": np.int32, "logprobs": np.float32}
    return [record | {k: np.array(record[k], dtype) for k, dtype in dtypes.items()} for record in records]


def read(records: list[dict[str, Any]]) -> list[Sample]:
    """Records as validated samples of whole groups."""
    samples = [Sample.from_record(record) for record in records]
    for _, group in groupby(samples, key=lambda sample: sample.group_id):
        settle_group(group)
    return samples


def value(samples: list[Sample]) -> np.ndarray:
    """Table, advantages with padding and std, label counts, overflow and the five token columns."""
    table = SampleTable.of(samples)
    result = compute_advantages(table, RL)
    labels = [len(sample.old_logprobs) for sample in samples]
    overflow = [sample.is_cut((EOS,)) for sample in samples]
    values = np.array([result.advantage, result.group_tokens, labels, overflow, np.ones(len(samples))])
    return np.repeat(values.astype(np.float32), table.n_tokens, axis=1)


def row_wise(texts: list[dict[str, Any]]) -> list[dict[str, list[float]]]:
    """Every row by itself, every token by itself; buckets by step, without padding."""
    buckets: dict[Any, list[float]] = defaultdict(list)
    for text in texts:
        buckets[text["group_id"], text["metadata"]["step_index"]].append(text["reward"])
    rows = []
    for text in texts:
        here = buckets[text["group_id"], text["metadata"]["step_index"]]
        row: dict[str, Any] = {"mean": sum(here) / len(here), "count": len(here)}
        row["std"] = statistics.stdev(here) if len(here) > 1 else 0.0
        row["rewards"] = [text["reward"]] * len(text["input_ids"])
        row["advantages"] = [
            (r - (row["mean"] * row["count"] - r) / max(row["count"] - 1, 1)) / (row["std"] + 1e-4)
            for r in row["rewards"]
        ]
        row["group_tokens"] = [float(len(here)) for _ in text["input_ids"]]
        labels = sum(1 for label in text["labels"] if label != MASKED_TOKEN_ID)
        row["num_labels"] = [labels] * len(text["input_ids"])
        row["overflow"] = [0.0 if EOS in text["labels"] else 1.0] * len(text["input_ids"])
        row["loss_weight_scale"] = [1.0 for _ in text["input_ids"]]
        rows.append(row)
    return rows


def main() -> int:
    options = command_line(__doc__)
    records = make_records(options.texts, options.tokens)
    arrays, total = as_arrays(records), options.texts * options.tokens
    samples = read(arrays)
    table = SampleTable.of(samples)
    chunk = ChunkResult(table=table, advantages=compute_advantages(table, RL))
    few = records[: min(ROW_WISE_TEXTS, len(records))]

    def median_s(work: Callable[[], Any], runs: int = options.runs) -> float:
        return statistics.median(seconds_of(work, runs, time.process_time))  # whoever else uses the machine

    lists_s = median_s(lambda: value(read(records)))
    arrays_s = median_s(lambda: value(read(arrays)))
    valued_s = median_s(lambda: value(samples))
    metrics_s = median_s(lambda: PreprocessMetrics().add_chunk(chunk))
    row_s = median_s(lambda: row_wise(few), 3) * len(records) / len(few)
    upstream_s = UPSTREAM_S * total / UPSTREAM_TOKENS
    figures = [
        at_least("from Python lists", total / lists_s / 1e6, "Mtok/s", 15.0),
        Figure("from arrays", total / arrays_s / 1e6, "Mtok/s"),
        Figure("from samples that are read", total / valued_s / 1e6, "Mtok/s"),
        at_most("metrics, share of the time from arrays", 100 * metrics_s / arrays_s, "%", 2.0),
        Figure("row-wise", total / row_s / 1e6, "Mtok/s"),
        at_least("ratio to upstream's 51.8 s, from arrays", upstream_s / arrays_s, "x", 500.0),
        Figure("ratio to upstream's 51.8 s, from lists", upstream_s / lists_s, "x"),
        Figure("ratio to row-wise, from arrays", row_s / arrays_s, "x"),
        Figure("ratio to row-wise, from lists", row_s / lists_s, "x"),
    ]
    report("advantages", figures, vars(options) | {"row_wise_texts": len(few)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
