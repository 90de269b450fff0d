"""A preprocess without processes, and the tiny model of the trainer's tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.preprocess.books import Books
from pipelinerl.preprocess.loop import Preprocess
from pipelinerl.preprocess.settings import PreprocessSettings
from pipelinerl.preprocess.validate import Limits
from pipelinerl.run_state.accounting import RolloutLog
from pipelinerl.run_state.announcements import DiscardedTexts
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import SingleStreamSpec, read_stream, write_to_streams
from tests.support.policy import VOCAB
from tests.unit.finetune.conftest import model, one_thread

__all__ = ["Bench", "bench", "model", "one_thread"]


@dataclass
class FakeTrainer:
    samples_processed: int = 0
    propagated_weight_version: int = 0


@dataclass
class Bench:
    """A preprocess without processes: feed groups in, look at what was written."""

    folder: Path
    preprocess: Preprocess
    trainer: FakeTrainer
    discarded: DiscardedTexts

    def batches(self) -> list[PipelineBatchEncoding]:
        with read_stream(SingleStreamSpec(self.folder, "training_data")) as stream:
            return [PipelineBatchEncoding.from_record(r) for r in stream.read_available()]

    def ledger(self) -> Counter[tuple[str, str]]:
        lines = (self.folder / "accounting/preprocess.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return Counter((e["outcome"], e["reason"]) for e in entries for _ in e["rollouts"])


@pytest.fixture
def bench(tmp_path: Path, request: Any) -> Iterator[Bench]:
    options = dict(getattr(request, "param", {}))
    rl = RLConfig(**options.pop("rl", {}))
    defaults: dict[str, Any] = {
        "output_dir": tmp_path,
        "model_path": "",
        "rl": rl,
        "limits": Limits(VOCAB, 24, 4),
        "texts_per_step": 8,
        "last_step": 100,
    }
    settings = PreprocessSettings(**defaults | options)
    trainer, discarded = FakeTrainer(), DiscardedTexts(tmp_path, "preprocess")
    with (
        RolloutLog(tmp_path, "preprocess") as ledger,
        write_to_streams(SingleStreamSpec(tmp_path, "training_data")) as out,
    ):
        books = Books(ledger, discarded)
        preprocess = Preprocess(settings, trainer, books, ResumePoint(0, 0), out)  # type: ignore[arg-type]
        yield Bench(tmp_path, preprocess, trainer, discarded)
    discarded.close()
