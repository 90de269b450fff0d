"""What share of their cards' limit engines reached: the formula, the sentence, and where there is none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelinerl.config.card_limit import EngineReads, mean_context, nominal_speed
from pipelinerl.config.files import config_path
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.report import markdown, report_sections
from pipelinerl.observe.summary import summarise

READS = {"card": "NVIDIA H200", "weights": 4.0e9, "token": 100_000.0}


def test_a_step_reads_the_weights_once_and_every_context() -> None:
    """256 requests at 1,000 tokens: 4 GB of weights and 25.6 GB of keys and values are 29.6 ms at 1 TB/s."""
    reads = EngineReads.model_validate(READS)
    step_s = (4.0e9 + 256 * 1000 * 100_000) / 1e12
    assert reads.tokens_per_second(256, 1000, 1e12) == pytest.approx(256 / step_s)


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({"copies": 2}, 2 * 29.6 / (4.0 + 12.8) / 2),  # each copy has half of the requests and its own card
        ({"sharing": 2}, 1 / 2),
        ({"windowed": 50_000.0, "window": 100}, 29.6 / (29.6 + 256 * 100 * 50_000 / 1e9)),
        ({"windowed": 50_000.0, "window": 4000}, 29.6 / (29.6 + 256 * 1000 * 50_000 / 1e9)),
        ({"state": 1.0e6}, 29.6 / (29.6 + 0.256)),
    ],
)
def test_copies_windows_states_and_neighbours_count(more: dict[str, Any], factor: float) -> None:
    alone, other = EngineReads.model_validate(READS), EngineReads.model_validate(READS | more)
    ratio = other.tokens_per_second(256, 1000, 1e12) / alone.tokens_per_second(256, 1000, 1e12)
    assert ratio == pytest.approx(factor)


def test_the_mean_context_is_that_of_all_sampled_tokens() -> None:
    each = [518 + before for before in range(512)]
    assert mean_context(518, 512) == pytest.approx(sum(each) / len(each))


def test_bandwidths_are_those_of_the_named_card() -> None:
    names = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA L40S": 0.864e12}
    found = {name: nominal_speed(name) for name in (*names, "NVIDIA L4")}
    assert {name: speed and speed.bandwidth for name, speed in found.items()} == names | {"NVIDIA L4": 0.3e12}
    assert nominal_speed("Radeon") is None


def run(folder: Path, reads: dict[str, Any] | None, copied: float | None = None) -> Path:
    """A run of two engines that sampled 20,000 tokens a second with 256 requests at each."""
    path = config_path(folder)
    path.parent.mkdir(parents=True)
    jobs = [{"kind": kind} for kind in ("actor_llm", "actor_llm", "actor", "finetune")]
    path.write_text(yaml.safe_dump({"jobs": jobs, "derived": {"engine_reads": reads}}))
    with MetricsWriter(folder, "actor") as actor, MetricsWriter(folder, "finetune") as trainer:
        for step in range(1, 4):
            said = {"output_tokens_per_second": 20_000.0, "context_tokens": 1000.0}
            said["requests/engine_running"] = 256.0
            actor.log({f"actor/{name}": value for name, value in said.items()}, step)
            if copied is not None:
                trainer.log({"throughput/copy_bytes_per_sec": copied}, step)
    return folder


def test_the_report_says_the_share_and_where_the_bandwidth_is_from(tmp_path: Path) -> None:
    measured = summarise(run(tmp_path / "measured", READS | {"trainer_alike": True}, copied=4.0e12))
    assert measured.limit is not None and measured.limit.measured
    # Two engines, 256 tokens in 29.6 GB / 4 TB/s = 7.4 ms each: 69,189 tokens/s.
    assert measured.limit.limit == pytest.approx(2 * 256 / 7.4e-3)
    text = markdown("", report_sections(measured, []), {})
    assert "The engines sampled 29% of their cards' limit: 20,000 of the 69,189 tokens/s" in text
    assert "4.00 TB/s (a copy on the trainer's card reached)" in text
    assert measured.to_json()["card_limit"]["share"] == pytest.approx(20_000 / (2 * 256 / 7.4e-3))
    other = summarise(run(tmp_path / "nominal", READS, copied=4.0e12))
    assert "4.80 TB/s (its data sheet says, nominal)" in str(other.limit), "the trainer's card is another"


@pytest.mark.parametrize("reads", [None, READS | {"card": "Radeon"}])
def test_nothing_is_said_where_nothing_is_known(tmp_path: Path, reads: dict[str, Any] | None) -> None:
    found = summarise(run(tmp_path / "run", reads, copied=4.0e12))
    assert found.limit is None and found.to_json()["card_limit"] is None
    assert "limit" not in markdown("", report_sections(found, []), {})
