"""What the trainer counts beside its own work."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.collect import StaleInQueue, count_batch
from pipelinerl.finetune.metrics import StepStatistics, step_metrics
from pipelinerl.finetune.peaks import Hardware, peak_flops
from pipelinerl.finetune.rl.batch import assemble_step, sentinel_batch
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.run_state.announcements import DiscardedTexts
from pipelinerl.run_state.epochs import completed_epochs, note_problems
from tests.support.builders import ready


def test_texts_too_old_to_be_queued_are_counted_once_also_over_a_restart_of_preprocess(
    tmp_path: Path,
) -> None:
    before = DiscardedTexts(tmp_path)
    before.add("stale", 5)  # of an earlier session
    before.close()
    with StaleInQueue(tmp_path) as queue:
        assert queue.take() == 0
        first = DiscardedTexts(tmp_path)
        first.add("stale", 3)
        first.add("zero_advantage", 7)
        assert queue.take() == 3 and queue.take() == 0
        first.add("stale", 1)
        first.close()
        again = DiscardedTexts(tmp_path)
        again.add("stale", 2)
        again.close()
        assert queue.take() == 3


def test_epochs_count_draws_over_problems(tmp_path: Path) -> None:
    assert completed_epochs(tmp_path, ["0-000007/0"]) == 0, "no actor has said how many problems there are"
    note_problems(tmp_path, 4)
    seen = [["0-000002/7"], ["0-000003/0", "0-000001/0"], [], ["1-000010/0"], ["recorded/0"]]
    assert [completed_epochs(tmp_path, rollouts) for rollouts in seen] == [0, 1, 0, 2, 0]


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_the_peak_of_a_gpu_is_found_by_its_name_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), True) == peak
    assert peak_flops(torch.device("cuda"), False) is None and peak_flops(torch.device("cpu"), True) is None


@pytest.mark.parametrize("peak", [None, 1e6])
def test_throughput_counts_a_shared_token_once_and_as_often_as_it_is_read(peak: float | None) -> None:
    """A row of 24 with five texts of 8 tokens, of which 7 are shared, and another rank's sentinel of 8."""
    ids = [np.array([1, 2, 3, 4, 5, 6, 7, 8 + last], np.int32) for last in range(5)]
    labels = [np.where(np.arange(8) < 7, MASKED_TOKEN_ID, one) for one in ids]
    one = np.zeros(1, np.float32)
    fields: dict[str, Any] = {"old_logprobs": one, "ref_logprobs": one, "weight_versions": [(0, 0, 1)]}
    samples = [ready(n, input_ids=ids[n], labels=labels[n], **fields) for n in range(5)]
    total = StepStatistics(worked_s=2.0, waited_s=2.0)
    for batch in (*assemble_step(samples, 0, 24, share=True)[0], sentinel_batch(0, 5, share=True)):
        count_batch(total, batch, targets_of(batch, RLConfig()))
    found = step_metrics(total, Coefficients(), 2, Hardware(24, 100, peak))
    expected = {
        "tokens_per_step": 40 + 8,
        "unique_tokens_per_step": 12 + 8,
        "tokens_per_unique_token": 48 / 20,
        "row_fill": 20 / 48,
        "tokens_per_sec": 48 / 4,
        "real_tokens_per_sec": 40 / 4,
        "samples_per_sec": 5 / 4,
    }
    if peak is not None:
        expected |= {"mfu": 6 * 100 * 48 / (2 * 2 * 1e6), "mfu_unique": 6 * 100 * 20 / (2 * 2 * 1e6)}
    assert {name: found[f"throughput/{name}"] for name in expected} == pytest.approx(expected)
    assert ("throughput/mfu" in found) == (peak is not None)


@pytest.mark.parametrize("lags", [{0: 5, 64: 2}, {-64: 3, 0: 2, 32: 1}, {-64: 4}])
def test_the_histogram_of_lags_has_every_token_also_those_of_a_recording_that_came_further(
    lags: dict[int, int],
) -> None:
    counts = StepStatistics(lags=Counter(lags))
    found = step_metrics(counts, Coefficients(), 1, Hardware(64, 0, None))["stats/lag_histogram"]
    assert sum(found["counts"]) == sum(lags.values())
    assert found["edges"] == sorted(set(found["edges"])) and found["edges"][0] == min(0, *lags)
