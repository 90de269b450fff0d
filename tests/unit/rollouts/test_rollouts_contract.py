"""Names, types and defaults that domain authors rely on."""

import inspect

import numpy as np
import pytest
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from pipelinerl import async_llm, llm, rollouts
from pipelinerl.domain_sampling import DomainWeightedSampler
from pipelinerl.llm import LLMCall, Prompt, TokenLogprob, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText, TrainingTextSummary

REQUIRED = "<required>"
TRAINING_TEXT = {
    "text": REQUIRED,
    "n_predicted": REQUIRED,
    "reward": 0.0,
    "logprobs": [],
    "ref_logprobs": [],
    "input_ids": [],
    "labels": [],
    "group_id": None,
    "finished": False,
    "prompt_tokens": 0,
    "output_tokens": 0,
    "visual_features": None,
    "metadata": {},
    "weight_versions": [],
    "situation": None,
    "position": "end",
    "role": None,
    "loss_weight": 1.0,
    "masked": False,
    "padding_value": None,
    "padding_reward": None,
    "finish_reason": None,
}
FIELDS = {
    TrainingText: TRAINING_TEXT,
    BaseMetrics: dict.fromkeys(["reward", "success", "no_error", "no_answer"], REQUIRED),
    Prompt: {"tools": None, "messages": [], "token_ids": [], "response_format": None},
    TokenLogprob: {"logprob": REQUIRED, "token_id": REQUIRED},
    LLMCall: {
        "prompt": REQUIRED,
        "output": REQUIRED,
        "prompt_length_tokens": -1,
        "output_length_tokens": -1,
        "llm_info": {},
        "cost": 0,
        "logprobs": [],
        "prompt_token_ids": [],
        "weight_versions": [],
    },
    TrainableLLM: {
        "model_name": "",
        "parameters": {},
        "context_size": 32000,
        "tokenizer_name": "",
        "tokenizer": None,
        "base_url": "",
        "collect_logprobs": False,
        "max_parallel_requests": 32,
        "max_retries": 5,
        "base_delay": 0.5,
        "chat_template_kwargs": {},
    },
    RolloutResult: dict.fromkeys(["model_version", "dataset_name", "group_id", "domain", "failed"]),
}
CASES = [(model, name, value) for model, fields in FIELDS.items() for name, value in fields.items()]


@pytest.mark.parametrize(("model", "name", "default"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_field_has_the_stated_default(model, name, default):
    field = model.model_fields[name]
    if default is REQUIRED:
        assert field.is_required()
        return
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    assert (value.tolist() if isinstance(value, np.ndarray) else value) == default


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (rollouts.apply_rollout_reward, ["training_texts", "reward"]),
        (rollouts.rollout_has_overflow, ["training_texts"]),
        (rollouts.summarize_training_texts, ["training_texts"]),
        (async_llm.llm_async_generate, ["llm", "prompt", "session", "max_tokens_override"]),
        (async_llm.make_training_text, ["llm", "llm_call"]),
        (async_llm.make_training_texts_from_llm_calls, ["llm", "llm_calls", "reward"]),
        (DomainWeightedSampler, ["samples", "weights", "rng", "adaptive"]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_function_has_the_stated_parameters(function, parameters):
    assert list(inspect.signature(function).parameters) == parameters


def test_methods_and_names_exist():
    for name in ("load_tokenizer", "count_tokens", "get_base_url", "get_info", "model_copy", "get_stats"):
        assert callable(getattr(TrainableLLM, name))
    for name in ("generate", "agenerate", "quick_response", "log_output"):
        assert callable(getattr(TrainableLLM, name))
    assert issubclass(async_llm.RetryableAbortedCompletionError, TimeoutError)
    assert {"LLMStream", "LLMEvent", "LLMOutput"} <= set(vars(llm))
    assert rollouts.MASKED_TOKEN_ID == -100


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
    rollouts.apply_rollout_reward(texts, 0.5)
    assert [t.reward for t in texts] == [0.5, 0.5]
    assert rollouts.rollout_has_overflow(texts) and not rollouts.rollout_has_overflow(texts[:1])
    assert rollouts.summarize_training_texts(texts) == TrainingTextSummary([3, 4], [2, 5], True, 2)


def test_a_rollout_without_metrics_must_say_that_it_failed():
    with pytest.raises(ValidationError, match="metrics are missing"):
        RolloutResult(training_texts=[], latency=0.0)
    assert RolloutResult(training_texts=[], latency=0.0, failed="no sandbox").failed == "no sandbox"
    with pytest.raises(ValidationError, match="1 texts, expected 0"):
        RolloutResult(training_texts=[text()], latency=0.0, failed="no sandbox")


def test_a_record_gives_the_text_back():
    made = text(input_ids=[1, 2], labels=[-100, 2], logprobs=[-0.25], weight_versions=[(3, 0, 1)])
    made.metadata["tuple"] = (1, np.int64(2), {"x": None})
    record = made.to_record()
    assert record["weight_versions"] == [[3, 0, 1]] and record["metadata"]["tuple"] == [1, 2, {"x": None}]
    again = TrainingText.from_record(record)
    assert again.weight_versions == [(3, 0, 1)] and again.logprobs.tolist() == [-0.25]


def test_metadata_that_no_record_can_hold_is_refused_by_name():
    made = text()
    made.metadata["deep"] = [{"socket": object()}]
    with pytest.raises(ValueError, match=r"metadata\.deep\[0\]\.socket is a object"):
        made.to_record()
