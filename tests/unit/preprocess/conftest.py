"""A preprocess without processes, and the tiny model of the trainer's tests."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.config import Config
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.preprocess.accounting import SampleAccounting
from pipelinerl.preprocess.kept import KeptRollouts
from pipelinerl.preprocess.loop import Preprocess
from pipelinerl.preprocess.reading import Vocabulary
from pipelinerl.preprocess.snapshots import Keeper
from pipelinerl.run_state.accounting import RolloutLog
from pipelinerl.run_state.announcements import DiscardedTexts
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import SingleStreamSpec, StreamWriter, read_stream, write_to_streams
from tests.support.builders import preprocess_config
from tests.support.policy import VOCAB
from tests.unit.finetune.conftest import model, one_thread

__all__ = ["Bench", "bench", "make", "model", "one_thread"]


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

    def ends(self) -> Counter[tuple[str, str]]:
        lines = (self.folder / "accounting/preprocess.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return Counter((e["outcome"], e["reason"]) for e in entries for _ in e["rollouts"])


@pytest.fixture
def bench(tmp_path: Path, request: Any) -> Iterator[Bench]:
    cfg = preprocess_config(tmp_path, **getattr(request, "param", {}))
    trainer, discarded = FakeTrainer(), DiscardedTexts(tmp_path)
    with (
        RolloutLog(tmp_path, "preprocess") as rollout_log,
        write_to_streams(SingleStreamSpec(tmp_path, "training_data")) as out,
    ):
        preprocess = make(cfg, trainer, SampleAccounting(rollout_log, discarded), ResumePoint(0, 0), out)
        yield Bench(tmp_path, preprocess, trainer, discarded)
    discarded.close()


def make(
    cfg: Config,
    trainer: FakeTrainer,
    accounting: SampleAccounting,
    session: ResumePoint,
    training_data: StreamWriter,
) -> Preprocess:
    """A preprocess of the small model, without a reference."""
    keeper = Keeper(cfg, Path(str(cfg.output_dir)), session)
    return Preprocess(
        cfg,
        keeper,
        trainer,  # type: ignore[arg-type]
        accounting,
        session,
        training_data,
        Vocabulary(VOCAB),
        KeptRollouts(cfg, Path(str(cfg.output_dir))),
    )
