"""Groups that stay on disk for people where the streams do not keep them."""

import numpy as np
import pytest

from pipelinerl.streams import KEPT_TOPIC, SingleStreamSpec, read_stream
from tests.support.builders import group
from tests.unit.preprocess.conftest import Bench


def kept(bench: Bench) -> tuple[list[str], dict[int, list[list[object]]]]:
    """Groups in the stream, and its samples by step."""
    with read_stream(SingleStreamSpec(bench.folder, KEPT_TOPIC)) as stream:
        records = stream.read_available()
    groups = [record["texts"][0]["group_id"] for record in records if "texts" in record]
    return groups, {record["step"]: record["samples"] for record in records if "samples" in record}


@pytest.mark.parametrize("bench", [{"streams": {"trim": True}}], indirect=True)
def test_some_groups_of_each_version_stay_with_what_training_made_of_them(bench: Bench) -> None:
    sent = [group(number, version=8 * (number // 30)) for number in range(60)]
    for texts in sent:
        bench.preprocess.take_groups([texts])
        bench.trainer.samples_processed = bench.preprocess.published
        bench.preprocess.write_steps()
    total = bench.preprocess.cfg.total_texts()
    groups, steps = kept(bench)
    first = [texts[0]["group_id"] for texts in sent]
    ends = [name for at, name in enumerate(first) if 4 * at < 0.05 * total]
    assert groups[: len(ends)] == ends
    assert len([name for name in groups if name in first[30:]]) == 4
    trained = {
        tuple(ids): batch.advantages[0, batch.seq_boundaries[at]]
        for batch in bench.batches()
        for at, ids in enumerate(batch.text_ids)
        if ids[0] in groups
    }
    written = {tuple(row[0]): row[1] for rows in steps.values() for row in rows}  # type: ignore[arg-type]
    assert written.keys() == trained.keys()
    assert all(np.isclose(written[name], advantage) for name, advantage in trained.items())


def test_nothing_is_written_twice_where_streams_stay(bench: Bench) -> None:
    bench.preprocess.take_groups([group(0)])
    assert not (bench.folder / "streams" / KEPT_TOPIC).exists()


@pytest.mark.parametrize(
    "bench", [{"streams": {"trim": True}, "observe": {"rollouts_per_version": 0}}], indirect=True
)
def test_none_are_kept_if_none_are_asked_for(bench: Bench) -> None:
    bench.preprocess.take_groups([group(0)])
    assert not (bench.folder / "streams" / KEPT_TOPIC).exists()
