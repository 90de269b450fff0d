"""What `adv/*` says of situations and roles, counted by hand."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.labels import MAX_FAMILIES, TextStatistics, capped_families
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.preprocess.loop import _Reporter
from pipelinerl.preprocess.metrics import PreprocessMetrics
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.builders import group, samples
from tests.support.known_metrics import PREPROCESS, names
from tests.unit.preprocess.conftest import Bench

BUCKETS = RLConfig(step_reward_advantages=True)


def text(rollout: int, step: int, reward: float, **labels: Any) -> dict[str, Any]:
    ids = np.arange(4, dtype=np.int32)
    return {
        "group_id": "g",
        "reward": reward,
        "input_ids": ids,
        "labels": np.where(ids < 2, -100, ids),
        "logprobs": np.zeros(2, np.float32),
        "ref_logprobs": np.zeros(2, np.float32),
        "finish_reason": "stop",
        "metadata": {"rollout_index": rollout, "step_index": step, "model_version": 0},
        **labels,
    }


def summary(texts: list[dict[str, Any]], rl: RLConfig = BUCKETS) -> dict[str, float]:
    metrics = PreprocessMetrics()
    metrics.add_chunk(process_chunk(samples(texts), rl))
    return metrics.summary()


def test_families_have_counts_rewards_advantages_and_buckets() -> None:
    found = summary(
        [
            text(0, 0, 1.0, situation="hop:1:plan"),
            text(1, 0, 0.0, situation="hop:1:plan"),
            text(0, 1, 0.5, situation="hop:2:plan"),  # nobody else got there
            text(0, 2, 0.25),
            text(1, 1, 0.25, situation="choose"),
            text(2, 0, 0.25, situation="choose"),
        ]
    )
    plan = {
        name.rpartition("/")[2]: v for name, v in found.items() if name.startswith("adv/situation/hop:plan/")
    }
    assert plan == {
        "count": 3,
        "mean": 0.0,
        "abs_mean": pytest.approx(2 / 3),
        "reward_mean": 0.5,
        "frac_zero_texts": pytest.approx(1 / 3),
        "frac_singleton_buckets": 0.5,
        "mean_bucket_size": 1.5,
    }
    assert found["adv/situation/choose/frac_zero_texts"] == 1.0
    assert found["adv/situation/none/count"] == found["adv/situation/none/frac_singleton_buckets"] == 1
    assert found["adv/frac_singleton_buckets"] == 0.5 and found["adv/frac_zero_texts"] == pytest.approx(4 / 6)


def test_padding_rows_count_in_bucket_sizes() -> None:
    rl = RLConfig(step_reward_advantages=True, pad_step_rewards_for_advantage=True)
    found = summary([text(0, s, 1.0, situation="s") for s in range(3)] + [text(1, 0, 0.0, situation="s")], rl)
    assert found["adv/situation/s/mean_bucket_size"] == 2.0 and found["adv/padding_rows"] == 2
    assert found["adv/mean_bucket_size_real"] == pytest.approx(4 / 3)


def test_roles_are_described_like_situations() -> None:
    texts = [text(r, 0, float(r), role="policy") for r in range(3)]
    texts += [text(r, 1, 1.0, role="critic", situation="pair") for r in range(2)]
    found = summary(texts)
    assert found["adv/role/policy/count"] == 3 and found["adv/role/policy/reward_mean"] == 1.0
    assert found["adv/role/policy/mean_bucket_size"] == 3 and found["adv/role/critic/mean_bucket_size"] == 2
    assert found["adv/role/critic/frac_zero_texts"] == 1.0 and found["adv/role/critic/abs_mean"] == 0.0


def test_a_record_holds_every_known_name(bench: Bench, tmp_path: Path) -> None:
    stats: list[dict[str, float]] = []
    writer: Any = SimpleNamespace(write=stats.append)
    status: Any = SimpleNamespace(set=lambda **_: None)
    nobody_learns = group(2)
    for record in nobody_learns:
        record["masked"] = True
    with MetricsWriter(tmp_path, "preprocess") as metrics:
        reporter = _Reporter(bench.preprocess, metrics, writer, status)
        reporter.report()
        bench.preprocess.take_groups([group(0, steps=2), group(1), nobody_learns])
        bench.preprocess.write_steps()
        reporter.report()
    lines = (tmp_path / "preprocess/metrics.jsonl").read_text().splitlines()
    empty, found = stats
    assert all(math.isfinite(value) for record in stats for value in record.values())
    assert names(PREPROCESS) <= set(json.loads(lines[1])) and names(PREPROCESS) <= set(found)
    assert "adv/scale_mean" not in empty and found["adv/scale_mean"] == 1.0
    assert {"preprocessor/packing_fill", "adv/frac_singleton_buckets", "adv/texts_per_rollout"} <= set(found)
    assert 0 < found["preprocessor/packing_fill"] <= 1
    assert found["discarded/masked"] == found["preprocessor/total_filtered_out_samples"] == 4


def test_rows_are_filled_with_tokens_that_are_computed(bench: Bench) -> None:
    """Eight texts of eight tokens that all begin with the same seven lie in a row of 24."""
    records = [one for number in range(2) for one in group(number)]
    for last, one in enumerate(records):
        one["input_ids"] = np.array([1, 2, 3, 4, 5, 6, 7, 8 + last], np.int32)
        one["labels"] = np.where(np.arange(8) < 7, MASKED_TOKEN_ID, one["input_ids"])
        one["logprobs"], one["weight_versions"] = np.zeros(1, np.float32) - 1, [[0, 0, 1]]
    bench.preprocess.take_groups([records[:4], records[4:]])
    bench.preprocess.write_steps()
    found = bench.preprocess.metrics.record({})
    assert found["preprocessor/packing_fill"] == pytest.approx(15 / 24)


def test_nothing_is_said_of_labels_that_no_text_has() -> None:
    found = summary([text(0, 0, 1.0), text(1, 0, 0.0)])
    assert not any("/situation/" in name or "/role/" in name for name in found)


def test_at_most_32_families_are_named() -> None:
    metrics = PreprocessMetrics()
    for start in range(0, 60, 20):
        letters = ["".join(chr(97 + int(d)) for d in f"{i:02d}") for i in range(start, start + 20)]
        metrics.add_chunk(
            process_chunk(samples([text(0, i, 1.0, situation=s) for i, s in enumerate(letters)]), BUCKETS)
        )
    found = metrics.summary()
    counts = {name: v for name, v in found.items() if name.endswith("/count")}
    assert len(counts) == MAX_FAMILIES + 1 and sum(counts.values()) == 60
    assert counts["adv/situation/other/count"] == 60 - MAX_FAMILIES
    mixed = [text(0, 0, 1.0, situation="last"), text(0, 1, 1.0)]
    metrics.add_chunk(process_chunk(samples(mixed), BUCKETS))
    assert metrics.summary()["adv/situation/none/count"] == 1

    labels = {f"situation/{i}": TextStatistics(texts=float(i)) for i in range(1, 41)}
    labels["role/policy"] = TextStatistics(texts=5.0)
    capped = capped_families(labels)
    assert len(capped) == MAX_FAMILIES + 2 and capped["role/policy"].texts == 5
    assert capped["situation/other"].texts == sum(range(1, 9)) and "situation/40" in capped
    assert sum(s.texts for s in capped.values()) == sum(s.texts for s in labels.values())
