"""The tables of metrics say of each what the code does."""

from collections import Counter

import numpy as np
import torch

from pipelinerl.finetune.metrics import METRICS, Reducer
from pipelinerl.finetune.ratios import ratio_histogram, ratio_quantiles
from pipelinerl.preprocess.metrics import PreprocessMetrics
from tests.support.metric_tables import rows, undocumented

WORDS = {
    Reducer.SUM: "sum",
    Reducer.TEXT_MEAN: "mean",
    Reducer.MAX: "maximum",
    Reducer.MIN: "minimum",
}


def test_every_row_is_complete_and_there_once():
    table = rows()
    assert len(table) > 100
    assert all(row.unit and row.reducer and row.definition for row in table)
    assert [name for name, n in Counter((row.role, row.name) for row in table).items() if n > 1] == []


def test_reducers_of_the_trainer_are_those_of_the_code():
    said = {row.name: row.reducer for row in rows() if row.role == "finetune"}
    assert sorted(metric.name for metric in METRICS if metric.name not in said) == []
    measured = {metric.name: WORDS[metric.reducer] for metric in METRICS if metric.reducer in WORDS}
    assert {name: said[name] for name in measured} == measured


def test_a_name_outside_the_tables_is_found():
    assert undocumented("finetune", ["rl/ess", "rl/surprise", "rl/role/critic/kl"]) == ["rl/surprise"]


def test_nothing_is_reported_of_nothing():
    summary = PreprocessMetrics().record({})
    assert not any("mean" in name or "frac" in name or "fill" in name for name in summary)
    assert ratio_quantiles(np.zeros(241)) == {}


def test_quantiles_of_the_ratio_are_those_of_the_tokens():
    log_ratio = np.random.default_rng(0).normal(0.05, 0.2, 50_000)
    counts = ratio_histogram(torch.tensor(log_ratio, dtype=torch.float32)).double().numpy()
    assert counts.sum() == 50_000
    for name, value in ratio_quantiles(counts).items():
        assert abs(value / np.exp(np.quantile(log_ratio, int(name[-2:]) / 100)) - 1) < 0.01
    same = ratio_quantiles(ratio_histogram(torch.zeros(7)).double().numpy())
    assert all(abs(value - 1) < 2e-5 for value in same.values())
