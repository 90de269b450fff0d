"""Advantages, label counting and token columns: tokens per second of one core, beside a row-wise way.

    python benchmarks/advantages.py [--texts 2048] [--tokens 4096] [--check]

The input is given as Python lists, as a foreign writer would send it. `--check` exits with 1 below the floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.finetune.rl.advantages import compute_advantages
from pipelinerl.finetune.rl.text_table import build_table
from pipelinerl.finetune.rl.tokens import count_labels, expand, is_overflow

GOAL_MTOK_S = 15.0
FLOOR_MTOK_S = 5.0
RUNS = 5
RESULTS = Path(__file__).parent / "results" / "advantages.json"


def make_texts(n_texts: int, n_tokens: int, attempts: int = 8, steps: int = 4) -> list[dict[str, Any]]:
    """Groups of `attempts` rollouts with `steps` texts each, half of the tokens labelled."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 32_000, n_tokens).tolist()
    labels = [-100] * (n_tokens // 2) + ids[n_tokens // 2 :]
    texts = []
    for i in range(n_texts):
        group, rest = divmod(i, attempts * steps)
        rollout, step = divmod(rest, steps)
        texts.append(
            {
                "group_id": f"g{group}",
                "reward": float(rng.integers(0, 5)) / 4,
                "input_ids": list(ids),
                "labels": list(labels),
                "finish_reason": "stop",
                "situation": ("plan", "choose")[step % 2] if rollout % 4 else None,
                "metadata": {"rollout_index": rollout, "step_index": step},
            }
        )
    return texts


def vectorised(texts: list[dict[str, Any]], buffer: np.ndarray) -> np.ndarray:
    """Table, advantages with padding and std, label counts, overflow and the five token columns."""
    table = build_table(texts)
    result = compute_advantages(table, True, True, True)
    labels = [count_labels(text["labels"]) for text in texts]
    overflow = [is_overflow(text, 2) for text in texts]
    values = np.array([result.advantage, result.group_tokens, labels, overflow, np.ones(len(texts))])
    return expand(values, table.n_tokens, buffer)


def row_wise(texts: list[dict[str, Any]]) -> list[list[float]]:
    """The straightforward way: lists of tokens, statistics looked up row by row."""
    columns: list[list[float]] = [[], [], [], [], []]
    for text in texts:
        here = [
            other
            for other in texts
            if other["group_id"] == text["group_id"]
            and other["situation"] == text["situation"]
            and other["metadata"]["step_index"] == text["metadata"]["step_index"]
        ]
        rewards = [other["reward"] for other in here]
        baseline = (
            (sum(rewards) - text["reward"]) / (len(rewards) - 1) if len(rewards) > 1 else text["reward"]
        )
        deviation = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        advantage = (text["reward"] - baseline) / (deviation + 1e-4)
        tokens = sum(len(other["input_ids"]) for other in here) / len(here)
        n_labels = sum(label != -100 for label in text["labels"])
        for column, value in zip(columns, (advantage, tokens, n_labels, 0.0, 1.0)):
            column.extend(value for _ in text["input_ids"])
    return columns


def median_seconds(work: Callable[[], Any], runs: int = RUNS) -> float:
    """Median of `runs` after one warm-up."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--check", action="store_true", help=f"fail below {FLOOR_MTOK_S:g} Mtok/s")
    options = parser.parse_args()
    texts = make_texts(options.texts, options.tokens)
    total = options.texts * options.tokens
    buffer = np.empty((5, total), np.float32)
    fast = total / median_seconds(lambda: vectorised(texts, buffer)) / 1e6
    few = texts[: min(128, len(texts))]
    slow_small = sum(len(t["input_ids"]) for t in few) / median_seconds(lambda: row_wise(few), 1) / 1e6
    fast_small = sum(len(t["input_ids"]) for t in few) / median_seconds(lambda: vectorised(few, buffer)) / 1e6
    result = {
        "texts": options.texts,
        "tokens_per_text": options.tokens,
        "mtok_per_s": round(fast, 2),
        "goal_mtok_per_s": GOAL_MTOK_S,
        "row_wise_mtok_per_s_128_texts": round(slow_small, 2),
        "ratio_128_texts": round(fast_small / slow_small, 1),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"advantages: {fast:.1f} Mtok/s (goal {GOAL_MTOK_S:g}); "
        f"row-wise {slow_small:.2f} Mtok/s on 128 texts, ratio {result['ratio_128_texts']}"
    )
    return int(options.check and fast < FLOOR_MTOK_S)


if __name__ == "__main__":
    sys.exit(main())
