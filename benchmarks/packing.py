"""Packing: how full rows are and how even ranks, beside first fit in arrival order.

python benchmarks/packing.py [--texts 1024] [--capacity 12000] [--ranks 8]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from pipelinerl.finetune.packing import pack

RESULTS = Path(__file__).parent / "results" / "packing.json"


def first_fit_in_order(lengths: np.ndarray, capacity: int, ranks: int) -> list[list[list[int]]]:
    """The naive way: equal numbers of texts per rank, each rank fills rows in arrival order."""
    plan: list[list[list[int]]] = []
    for part in np.array_split(np.arange(len(lengths)), ranks):
        rows: list[list[int]] = [[]]
        used = 0
        for item in part.tolist():
            if used + lengths[item] > capacity:
                rows.append([])
                used = 0
            rows[-1].append(item)
            used += int(lengths[item])
        plan.append(rows)
    return plan


def quality(plan: list[list[list[int]]], lengths: np.ndarray, capacity: int) -> tuple[float, float]:
    """(share of row capacity that holds tokens, load of the busiest rank over the mean)."""
    rows = sum(len(rank) for rank in plan)
    loads = [sum(int(lengths[row].sum()) for row in rank) for rank in plan]
    return float(lengths.sum()) / (rows * capacity), max(loads) / (sum(loads) / len(loads))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--capacity", type=int, default=12_000)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(7.0, 1.0, options.texts), 8, options.capacity).astype(np.int64)
    start = time.perf_counter()
    ours = pack(lengths, options.capacity, options.ranks)
    seconds = time.perf_counter() - start
    naive = first_fit_in_order(lengths, options.capacity, options.ranks)
    fill, imbalance = quality(ours, lengths, options.capacity)
    naive_fill, naive_imbalance = quality(naive, lengths, options.capacity)
    result = {
        "texts": options.texts,
        "capacity": options.capacity,
        "ranks": options.ranks,
        "fill": round(fill, 4),
        "imbalance": round(imbalance, 4),
        "milliseconds": round(seconds * 1e3, 2),
        "naive_fill": round(naive_fill, 4),
        "naive_imbalance": round(naive_imbalance, 4),
        "fill_ratio": round(fill / naive_fill, 3),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"packing: {fill:.1%} full, busiest rank {imbalance:.3f} x mean, {seconds * 1e3:.1f} ms; "
        f"arrival order {naive_fill:.1%}, {naive_imbalance:.3f} x; ratio of fill {result['fill_ratio']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
