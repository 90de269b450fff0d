"""From the moment a sample leaves the actor its tokens are arrays: no list grows with their number."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.preprocess.reading import SampleLimits, read_group
from pipelinerl.rollouts import RolloutOrigin, TrainingText
from pipelinerl.streams.records import decode_record, encode_record

TOKENS, LEARNED = 500, 300
MOST_IN_A_LIST = 20
TEXT_COLUMNS = {"input_ids": np.int32, "labels": np.int32, "logprobs": np.float32}


def sampled_text(reward: float) -> TrainingText:
    """As a foreign domain may build it: with Python lists."""
    ids = list(range(TOKENS))
    return TrainingText(
        text="text",
        n_predicted=2,
        reward=reward,
        input_ids=ids,
        labels=[-100] * (TOKENS - LEARNED) + ids[-LEARNED:],
        logprobs=[-0.5] * LEARNED,
        finished=True,
        weight_versions=[(0, 0, 100), (8, 100, LEARNED)],
    )


def lists_in(tree: Any) -> Iterator[list[Any]]:
    if isinstance(tree, dict):
        for value in tree.values():
            yield from lists_in(value)
    elif isinstance(tree, list):
        yield tree
        for value in tree:
            yield from lists_in(value)


def assert_arrays(record: dict[str, Any], dtypes: dict[str, type]) -> None:
    for name, dtype in dtypes.items():
        assert isinstance(record[name], np.ndarray) and record[name].dtype == dtype, name
    assert max((len(found) for found in lists_in(record)), default=0) <= MOST_IN_A_LIST


def test_tokens_are_arrays_on_the_whole_way_from_the_actor_to_the_trainer() -> None:
    group: list[dict[str, Any]] = []
    for rollout in range(4):
        origin = RolloutOrigin("g", rollout, version=0, training=True)
        group += [sample.to_record() for sample in samples_of([sampled_text(rollout / 4)], origin)]
    for record in group:
        assert_arrays(record, TEXT_COLUMNS)

    read = decode_record(encode_record(group))
    for record in read:
        assert_arrays(record, TEXT_COLUMNS)
        assert not record["input_ids"].flags.owndata  # a view of what was read, not a copy
    kept = read_group(read, SampleLimits(vocab_size=1000, seq_length=2000, attempts=4)).samples
    assert len(kept) == 4 and all(one.input_ids is source["input_ids"] for one, source in zip(kept, read))
    for sample in kept:
        sample.ref_logprobs = sample.old_logprobs

    ready = process_chunk(kept, RLConfig()).ready
    assert all(one is source for one, source in zip(ready, kept, strict=True))

    (batches,) = assemble_step(ready, 0, 2000)
    record = decode_record(encode_record(batches[0].to_record()))
    columns = {
        "input_ids": np.int32,
        "labels": np.int32,
        "position_ids": np.int32,
        "segment_ids": np.int32,
        "token_versions": np.int32,
        "advantages": np.float32,
        "old_logprobs": np.float32,
        "ref_logprobs": np.float32,
        "loss_weight_scale": np.float32,
    }
    assert_arrays(record, columns)
    targets = targets_of(PipelineBatchEncoding.from_record(record), RLConfig(), 8)
    assert len(targets.positions) == 4 * LEARNED and set(targets.lag.tolist()) == {0, 8}
