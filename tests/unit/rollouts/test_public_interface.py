"""Every public name that domains written for upstream import: its place, parameters, types and defaults."""

import importlib
import inspect
from typing import Any, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from pipelinerl.llm import LLMCall, LLMOutput, Prompt, TokenLogprob, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText

REQUIRED = inspect.Parameter.empty
ANY = object()
"""A default that differs from object to object (an id, a time, what the environment holds)."""

# Class -> field -> (default, a value of the stated type).
FIELDS: dict[type[BaseModel], dict[str, tuple[Any, Any]]] = {
    TrainingText: {
        "text": (REQUIRED, "2+2=4"),
        "n_predicted": (REQUIRED, 1),
        "reward": (0.0, 0.5),
        "logprobs": ([], [-0.5]),
        "ref_logprobs": ([], [-0.25]),
        "input_ids": ([], [1, 2]),
        "labels": ([], [-100, 2]),
        "group_id": (None, "g"),
        "finished": (False, True),
        "prompt_tokens": (0, 3),
        "output_tokens": (0, 4),
        "visual_features": (None, {"pixel_values": np.zeros(2, np.float32)}),
        "metadata": ({}, {"model_version": 3}),
        "weight_versions": ([], [(0, 0, 1), (8, 1, 2)]),
        "situation": (None, "turn 1"),
        "position": ("end", "pool"),
        "role": (None, "critic"),
        "loss_weight": (1.0, 0.5),
        "masked": (False, True),
        "padding_value": (None, 0.5),
        "padding_reward": (None, -1.0),
        "finish_reason": (None, "length"),
    },
    BaseMetrics: {
        "reward": (REQUIRED, 1.0),
        "success": (REQUIRED, True),
        "no_error": (REQUIRED, True),
        "no_answer": (REQUIRED, False),
    },
    RolloutResult: {
        "training_texts": (REQUIRED, [TrainingText(text="a", n_predicted=1)]),
        "metrics": (None, BaseMetrics(reward=1.0, success=True, no_error=True, no_answer=False)),
        "latency": (0.0, 1.5),
        "model_version": (None, 12),
        "dataset_name": (None, "train"),
        "group_id": (None, "g"),
        "domain": (None, "math"),
        "failed": (None, None),
    },
    Prompt: {
        "id": (ANY, "1"),
        "tools": (None, [{"type": "function"}]),
        "messages": ([], [{"role": "user", "content": "hi"}]),
        "token_ids": ([], [5, 6]),
        "response_format": (None, {"type": "json_object"}),
    },
    TokenLogprob: {"logprob": (REQUIRED, -0.5), "token_id": (REQUIRED, 7)},
    LLMCall: {
        "timestamp": (ANY, "2026-01-01T00:00:00"),
        "prompt": (REQUIRED, Prompt()),
        "output": (REQUIRED, LLMOutput(content="a")),
        "prompt_length_tokens": (-1, 3),
        "output_length_tokens": (-1, 4),
        "cached": (False, True),
        "llm_info": ({}, {"finish_reason": "stop"}),
        "cost": (0, 0.1),
        "logprobs": ([], [TokenLogprob(logprob=-0.5, token_id=7)]),
        "prompt_token_ids": ([], [1, 2]),
        "weight_versions": ([], [(0, 0, 1)]),
    },
    LLMOutput: {
        "role": ("assistant", "assistant"),
        "content": (None, "hello"),
        "tool_calls": (None, None),
    },
    TrainableLLM: {
        "model_name": ("", "m"),
        "parameters": ({}, {"temperature": 0.7}),
        "context_size": (32000, 100),
        "tokenizer_name": ("", "t"),
        "tokenizer": (None, None),
        "base_url": ("", "http://127.0.0.1:1"),
        "api_token": (ANY, "secret"),
        "collect_logprobs": (False, True),
        "max_parallel_requests": (32, 4),
        "max_retries": (5, 2),
        "base_delay": (0.5, 1.0),
        "chat_template_kwargs": ({}, {"enable_thinking": False}),
    },
}
CASES = [(model, name, *row) for model, fields in FIELDS.items() for name, row in fields.items()]


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(
    ("model", "name", "default", "value"), CASES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_field_has_its_default_and_takes_its_type(
    model: type[BaseModel], name: str, default: Any, value: Any
) -> None:
    field = model.model_fields[name]
    assert field.is_required() == (default is REQUIRED)
    if default is not REQUIRED and default is not ANY:
        assert plain(field.get_default(call_default_factory=True)) == default
    required = {n: example for n, (d, example) in FIELDS[model].items() if d is REQUIRED}
    if model is RolloutResult:
        required |= {"metrics": FIELDS[model]["metrics"][1]}
    made = model(**{**required, name: value})
    assert plain(getattr(made, name)) == value


@pytest.mark.parametrize(
    ("model", "name"),
    [(model, name) for model, name, *_ in CASES if name != "tokenizer"],  # a tokenizer is of no one class
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_field_takes_nothing_but_its_type(model: type[BaseModel], name: str) -> None:
    required = {n: example for n, (default, example) in FIELDS[model].items() if default is REQUIRED}
    with pytest.raises(ValidationError, match=name):
        model(**{**required, name: object()})


# Dotted name -> parameters with their defaults.
SIGNATURES = {
    "pipelinerl.rollouts.apply_rollout_reward": "training_texts, reward",
    "pipelinerl.rollouts.rollout_has_overflow": "training_texts",
    "pipelinerl.rollouts.summarize_training_texts": "training_texts",
    "pipelinerl.async_llm.llm_async_generate": "llm, prompt, session, max_tokens_override=None, live=None",
    "pipelinerl.async_llm.make_training_text": "llm, llm_call",
    "pipelinerl.async_llm.make_training_text_with_tools": "llm, llm_call",
    "pipelinerl.async_llm.make_training_texts_from_llm_calls": "llm, llm_calls, reward=None",
    "pipelinerl.domain_sampling.DomainWeightedSampler": "samples, weights, rng=None, adaptive=True",
    "pipelinerl.llm.Prompt.from_user_message": "content",
    "pipelinerl.llm.TrainableLLM.load_tokenizer": "",
    "pipelinerl.llm.TrainableLLM.count_tokens": "messages",
    "pipelinerl.llm.TrainableLLM.get_base_url": "",
    "pipelinerl.llm.TrainableLLM.get_info": "",
    "pipelinerl.llm.TrainableLLM.get_stats": "",
    "pipelinerl.llm.TrainableLLM.generate": "prompt",
    "pipelinerl.llm.TrainableLLM.agenerate": "prompt, session",
    "pipelinerl.llm.TrainableLLM.quick_response": "text",
    "pipelinerl.llm.TrainableLLM.log_output": (
        "prompt, output, cached=False, count_tokens=True, prompt_length_tokens=-1, output_length_tokens=-1"
    ),
    "pipelinerl.llm.TrainableLLM.get_logprobs": "prompt, output",
    "pipelinerl.llm.TrainableLLM.get_logprobs_complete": "prompt, output",
    "pipelinerl.llm.TrainableLLM.get_logprobs_chat_complete": "prompt, output",
    "pipelinerl.llm.TrainableLLM.get_logprobs_token_ids": "prompt_token_ids, completion_token_ids",
    "pipelinerl.llm.TrainableLLM.get_batch_logprobs_token_ids": "prompt_token_ids, completion_token_ids",
    "pipelinerl.finetune.data.save_samples": "samples, path",
    "pipelinerl.finetune.data.load_samples": "path",
    "pipelinerl.streams.SingleStreamSpec": "exp_path, topic, instance=0, partition=0",
    "pipelinerl.streams.StreamRangeSpec": "exp_path, topic, instance=0, partition_range=(0, 1)",
    "pipelinerl.streams.write_to_streams": "spec, mode='a'",
    "pipelinerl.streams.StreamWriter.write": "data, partition=None",
    "pipelinerl.utils.get_environment_jobs": "cfg, key=None",
    "pipelinerl.utils.resolve_environment_key": "cfg, default=None",
    "pipelinerl.domains.math.get_reward": "answer_status, finished, reward_table",
    "pipelinerl.domains.math.length_penalty": "max_length, sequence_length, buffer_tokens",
    "pipelinerl.domains.math.verify_answer_rpc": (
        "session, host, port, prediction, gold, strict=True, max_prediction_length=1000"
    ),
    "pipelinerl.domains.dispatcher.register_domain_rollout": "domain, target",
    "pipelinerl.domains.dispatcher.generate_multidomain_rollout": "cfg, llm, problem, session",
}


def resolve(path: str) -> Any:
    """The object at a dotted path, through classes as well."""
    parts = path.split(".")
    module = parts[: 3 if parts[1] in ("domains", "finetune") else 2]
    found: Any = importlib.import_module(".".join(module))
    for name in parts[len(module) :]:
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_function_has_its_parameters_and_defaults(path: str) -> None:
    parameters = inspect.signature(resolve(path)).parameters
    shown = [name if p.default is REQUIRED else f"{name}={p.default!r}" for name, p in parameters.items()]
    assert ", ".join(parameter for parameter in shown if parameter != "self") == SIGNATURES[path]


NAMES = {
    "pipelinerl.rollouts": ["TrainingTextSummary", "MASKED_TOKEN_ID"],
    "pipelinerl.llm": ["LLMStream", "LLMEvent", "LLMOutput", "TokenLogprob"],
    "pipelinerl.async_llm": ["RetryableAbortedCompletionError"],
    "pipelinerl.finetune.data": ["MASKED_TOKEN_ID"],
    "pipelinerl.streams": ["set_streams_backend", "read_stream"],
    "pipelinerl.state": ["TrainerState"],
    "pipelinerl.world": ["Job"],
    "pipelinerl.domains": ["generate_multidomain_rollout", "register_domain_rollout"],
    "pipelinerl.domains.math": ["load_datasets", "MathEnvironment", "RewardTable", "verify_answer_rpc"],
    "pipelinerl.domains.math.rollouts": ["RewardTable", "length_penalty", "get_reward"],
    "pipelinerl.domains.math.load_datasets": ["load_datasets"],
    "pipelinerl.domains.guessing.guessing": ["load_problems", "generate_guessing_rollout"],
    "pipelinerl.utils": ["get_environment_jobs", "resolve_environment_key"],
}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in NAMES.items() for n in names])
def test_a_name_is_where_it_is_looked_for(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


# Plain classes and typed records -> the field names upstream has.
RECORDS = {
    "pipelinerl.rollouts.TrainingTextSummary": "prompt_tokens output_tokens overflow num_turns",
    "pipelinerl.finetune.types.TrainingMetrics": (
        "epoch passes completed_steps samples tokens last_broadcasted_version samples_too_old_to_queue "
        "samples_too_old_to_train train_loss grad_norm lr max_actor_version min_actor_version "
        "time_waiting_for_data"
    ),
    "pipelinerl.finetune.types.PipelineBatchEncoding": (
        "input_ids attention_mask labels rewards advantages ref_logprobs old_logprobs group_tokens "
        "num_labels overflow position_ids segment_ids seq_boundaries model_version sentinel padding "
        "is_packed pixel_values image_grid_thw token_versions loss_weight_scale kl_weight_scale text_ids"
    ),
    "pipelinerl.finetune.rl.RLConfig": (
        "policy_loss epsilon_low epsilon_high use_advantages divide_advantage_by_std kl_coef final_kl_coef "
        "entropy_bonus final_entropy_bonus relu_log_p_weights clamp_log_ratio_ref_new_value "
        "group_normalization overlong_filtering filter_zero_advantage_groups value_loss_coef "
        "step_reward_advantages temperature"
    ),
    "pipelinerl.domains.math.RewardTable": (
        "wrong_answer_not_finished wrong_answer_finished no_answer_not_finished no_answer_finished "
        "unparsable_not_finished unparsable_finished correct_answer_not_finished correct_answer_finished "
        "buffer_tokens"
    ),
    "pipelinerl.world.Job": (
        "kind idx replica_idx local_idx node_rank hostname port gpus url environment_key environment_index"
    ),
}


@pytest.mark.parametrize("path", RECORDS)
def test_a_record_has_the_stated_fields(path: str) -> None:
    assert set(RECORDS[path].split()) <= set(get_type_hints(resolve(path)))


def test_the_state_of_the_trainer_has_its_properties() -> None:
    state = resolve("pipelinerl.state.TrainerState")
    for name in ("propagated_weight_version", "samples_processed", "training_done"):
        assert isinstance(inspect.getattr_static(state, name), property)


def test_an_aborted_completion_can_be_caught_as_a_timeout() -> None:
    assert issubclass(resolve("pipelinerl.async_llm.RetryableAbortedCompletionError"), TimeoutError)


def test_secrets_and_log_probabilities_are_left_out_of_dumps() -> None:
    assert "api_token" not in TrainableLLM(api_token="secret").model_dump()
    assert "secret" not in repr(TrainableLLM(api_token="secret"))
    call = LLMCall(prompt=Prompt(), output=LLMOutput(), logprobs=[TokenLogprob(logprob=0.0, token_id=1)])
    assert "logprobs" not in call.model_dump()


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({"PIPELINERL_LLM_TOKEN": "mine", "OPENAI_API_KEY": "theirs"}, "mine"),
        ({"OPENAI_API_KEY": "theirs"}, "theirs"),
        ({}, ""),
    ],
)
def test_the_token_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], token: str
) -> None:
    for name in ("PIPELINERL_LLM_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert TrainableLLM().api_token == token


def test_a_summary_cannot_be_changed_and_a_copy_is_independent() -> None:
    summary = resolve("pipelinerl.rollouts.TrainingTextSummary")([1], [2], False, 1)
    with pytest.raises(AttributeError):
        summary.num_turns = 2
    llm = TrainableLLM(parameters={"temperature": 1.0})
    assert llm.model_copy(update={"context_size": 5}).context_size == 5 and llm.context_size == 32000


def test_prompts_are_false_when_empty_and_have_ids_of_their_own() -> None:
    assert not Prompt() and Prompt.from_user_message("a") and Prompt(token_ids=[1])
    assert Prompt().id != Prompt().id
