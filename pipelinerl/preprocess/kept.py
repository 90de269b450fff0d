"""The stream `rollouts`: whole groups for people, where what the actor wrote does not stay.

With redis, or where streams are trimmed, groups are gone as soon as they are read. Preprocess then writes
some of them to disk, for the page of rollouts: all at the beginning and at the end of training and a few of
each weight version in between, so that the size is bounded. Records are of two kinds: `texts` of a group as
the actor wrote them, and `samples` of an optimizer step, with what training made of those samples.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pipelinerl.base.closing import Closing
from pipelinerl.config import Config
from pipelinerl.finetune.rl.sample import Sample, metadata_of
from pipelinerl.preprocess.reading import Record
from pipelinerl.streams import KEPT_TOPIC, SingleStreamSpec, StreamWriter, write_to_streams
from pipelinerl.streams.kind import streams_kind

ENDS = 0.05
"""Share of the run's samples at either end of which every group is kept."""


class KeptRollouts(Closing):
    """Chooses groups and writes them; writes nothing where all of them stay."""

    def __init__(self, cfg: Config, output_dir: Path) -> None:
        self._per_version, self.total = cfg.observe.rollouts_per_version, cfg.total_texts()
        self._stream: StreamWriter | None = None
        if self._per_version and (cfg.streams.trim or not streams_kind(cfg.streams).on_disk):
            self._stream = write_to_streams(SingleStreamSpec(output_dir, KEPT_TOPIC))
        self._of_version = Counter[int]()
        self._ids: set[str] = set()

    def groups(self, groups: Iterable[Sequence[Record]], published: int) -> None:
        """Write those of the groups that are kept; `published` samples went to the trainer before."""
        if self._stream is None:
            return
        share = published / self.total
        for texts in groups:
            version = min((metadata_of(text).get("model_version", 0) for text in texts), default=0)
            if texts and (not ENDS <= share < 1 - ENDS or self._of_version[version] < self._per_version):
                self._of_version[version] += 1
                self._ids.add(str(texts[0].get("group_id")))
                # Nobody reads a token's experts.
                shown = [{k: v for k, v in text.items() if k != "routed_experts"} for text in texts]
                self._stream.write({"texts": shown})

    def step(self, step: int, published: int, samples: Iterable[Sample]) -> None:
        """Write what an optimizer step made of the samples that were kept."""
        if self._stream is None:
            return
        rows = [
            [
                [sample.group_id, sample.rollout_index, sample.step_index],
                sample.advantage,
                sample.loss_weight_scale,
                None if np.array_equal(sample.ref_logprobs, sample.old_logprobs) else sample.ref_logprobs,
            ]
            for sample in samples
            if sample.group_id in self._ids
        ]
        if rows:
            self._stream.write({"step": step, "version": published, "samples": rows})

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
