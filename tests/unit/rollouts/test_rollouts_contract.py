"""What texts, prompts and results of rollouts do; their names and defaults: test_public_interface.py."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from pipelinerl import rollouts
from pipelinerl.base.line_file import DamagedLine
from pipelinerl.finetune.data import load_samples, save_samples
from pipelinerl.rollouts import RolloutResult, TrainingText, TrainingTextSummary


def text(output: str = "42", **fields) -> TrainingText:
    return TrainingText(text="say:" + output, n_predicted=len(output), **fields)


def test_prompt_and_output_are_split_also_when_nothing_was_predicted():
    assert (text().prompt_text, text().output_text) == ("say:", "42")
    assert (text("").prompt_text, text("").output_text) == ("say:", "")


def test_lists_are_stored_as_arrays_also_when_assigned():
    made = text(input_ids=[1, 2, 3], labels=[-100, 2, 3], logprobs=[-0.5, -1])
    assert (made.input_ids.dtype, made.logprobs.dtype) == (np.int32, np.float32)
    made.logprobs = [-1.0]
    assert made.logprobs.dtype == np.float32
    with pytest.raises(ValidationError, match="expected integers"):
        made.input_ids = [0.5]
    with pytest.raises(ValidationError, match="one dimension"):
        made.labels = [[1]]


def test_reward_overflow_and_summary_are_over_all_texts():
    texts = [text(finished=True, prompt_tokens=3, output_tokens=2), text(prompt_tokens=4, output_tokens=5)]
    assert rollouts.apply_rollout_reward(texts, 0.5) == texts, "as in upstream, whose policies use it"
    assert [t.reward for t in texts] == [0.5, 0.5]
    assert rollouts.rollout_has_overflow(texts) and not rollouts.rollout_has_overflow(texts[:1])
    assert rollouts.summarize_training_texts(texts) == TrainingTextSummary([3, 4], [2, 5], True, 2)


def test_a_rollout_without_metrics_must_say_that_it_failed():
    with pytest.raises(ValidationError, match="metrics are missing"):
        RolloutResult(training_texts=[], latency=0.0)
    assert RolloutResult(training_texts=[], latency=0.0, failed="no sandbox").failed == "no sandbox"
    with pytest.raises(ValidationError, match="1 samples, expected 0"):
        RolloutResult(training_texts=[text()], latency=0.0, failed="no sandbox")


def test_a_record_gives_the_text_back():
    made = text(input_ids=[1, 2], labels=[-100, 2], logprobs=[-0.25], weight_versions=[(3, 0, 1)])
    made.metadata["tuple"] = (1, np.int64(2), {"x": None})
    record = made.to_record()
    assert record["weight_versions"] == [[3, 0, 1]] and record["metadata"]["tuple"] == [1, 2, {"x": None}]
    again = TrainingText.from_record(record)
    assert again.weight_versions == [(3, 0, 1)] and again.logprobs.tolist() == [-0.25]


OF_UPSTREAM = (
    '{"text":"say:42","n_predicted":2,"reward":1.0,"logprobs":[-0.25],"ref_logprobs":[],"input_ids":[1,2],'
    '"labels":[-100,2],"group_id":"g","finished":true,"prompt_tokens":1,"output_tokens":1,'
    '"visual_features":null,"metadata":{"rollout_index":0}}\n'
)
"""A line that its `save_samples` writes: pydantic's JSON of a text."""


def test_a_file_of_samples_holds_texts_as_upstreams_functions_do(tmp_path: Path):
    path = tmp_path / "samples.jsonl"
    path.write_text(OF_UPSTREAM)
    (theirs,) = load_samples(path)
    assert (theirs.reward, theirs.output_text, theirs.labels.tolist()) == (1.0, "42", [-100, 2])
    made = text(input_ids=[1, 2], labels=[-100, 2], logprobs=[-0.25], weight_versions=[(3, 0, 1)])
    made.metadata["seen"] = np.arange(2)
    made.routed_experts = np.full((1, 2, 2), 300, np.uint16)
    assert save_samples([theirs, made], path) == 2
    first, again = load_samples(path)
    assert first.to_record()["metadata"] == theirs.metadata and first.logprobs.tolist() == [-0.25]
    assert again.weight_versions == [(3, 0, 1)] and again.metadata == {"seen": [0, 1]}
    assert again.routed_experts is not None and again.routed_experts.dtype == np.uint16


def test_a_missing_or_damaged_file_of_samples_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        load_samples(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text(OF_UPSTREAM + "{}\n")
    with pytest.raises(DamagedLine, match=r"bad\.jsonl:2"):
        load_samples(tmp_path / "bad.jsonl")


def test_metadata_that_no_record_can_hold_is_refused_by_name():
    made = text()
    made.metadata["deep"] = [{"socket": object()}]
    with pytest.raises(ValueError, match=r"metadata\.deep\[0\]\.socket is a object"):
        made.to_record()
