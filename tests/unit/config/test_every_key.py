"""Every key of the configuration changes what a process does or gets, or is refused when it is set."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from pydantic import SecretStr

from pipelinerl.config import Config
from pipelinerl.config.compose import Composition
from pipelinerl.config.legacy import WRITTEN_BY_LAUNCHERS
from pipelinerl.launcher.checks.inert import UNREAD
from pipelinerl.observe import wandb_run
from tests.support.key_effects import (
    another_value,
    effects,
    leaves,
    named_in_code,
    value_at,
    with_value,
)

KEYS = dict(leaves())
CPU = {"hardware.kind": "cpu", "engine.kind": "embedded", "weights.transport": "file"}

NEEDED: dict[str, dict[str, Any]] = {
    "streams": {"streams.backend": "redis"},
    "world.reference_start_port": {"world.preprocessor_fraction": 1},
    "actor.domain_mix": {"world.env_replicas": 4},
    "environment_key": {"environment": {"_target_": "package.Maze"}},
    "vllm_config.python": {"vllm_config.version": "0.26.0"},
}
"""What has to be switched on before a key, or a key below it, can have an effect."""

ENVIRONMENTS = {"maze": {"_target_": "package.Maze"}}
VALUES: dict[str, Any] = {
    "environments": {**ENVIRONMENTS, "other": ENVIRONMENTS["maze"]},
    "actor.domain_mix": {"maze": 1.0, "other": 1.0},
    "streams.password": SecretStr("word"),
    "vllm_config.version": "0.26.0",
    "world.actor_fraction": 2,
    "wandb.wandb_workspace_root": "/",
}
"""Where any other value of the type will not do."""

FIXED = {
    "world.replicas": "one possible value",
    "finetune.seq_parallel": "one possible value",
    "fsdp.param_dtype": "refused unless it says what finetune.load_as_bf16 says",
    "fsdp.buffer_dtype": "refused unless fp32",
    "finetune.config_name": "refused unless it is model_path",
    "finetune.attempts": "the tree's `attempts`, which is read, takes its value",
}
"""Keys without an effect of their own, and why none is lost."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    """A run on GPUs and one on a CPU, neither checked."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"vocab_size": 31}))
    given = {"finetune": {"config_name": str(folder)}, "environments": ENVIRONMENTS}
    gpu = Config.model_validate({"model_path": str(folder), **given})
    cpu = gpu
    for key, value in CPU.items():
        cpu = with_value(cpu, key, value)
    return {"gpu": gpu, "cpu": cpu}


@pytest.fixture
def no_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started:
        def __init__(self, **arguments: Any) -> None:
            vars(self).update(arguments)

    monkeypatch.setattr(wandb_run, "WandbRun", Started)


def below(key: str, parents: Any) -> Any:
    return next((parent for parent in parents if key == parent or key.startswith(f"{parent}.")), None)


def has_effect(key: str, run: Config, seen: dict[str, str]) -> bool:
    """Whether another value of the key shows in what processes see; `seen` keeps what they see else."""
    needed = NEEDED.get(below(key, NEEDED) or "", {})
    others = {name: value for name, value in needed.items() if name != key}
    for name, value in others.items():
        run = with_value(run, name, value)
    if (circumstances := repr(others)) not in seen:
        seen[circumstances] = effects(run)
    value = VALUES[key] if key in VALUES else another_value(KEYS[key], value_at(run, key))
    return effects(with_value(run, key, value)) != seen[circumstances]


def is_named(key: str) -> bool:
    """Whether code of the product reads an attribute or item of that name of that group."""
    group, _, name = f".{key}".rpartition(".")
    name = "validate_" if name == "validate" else name
    last = group.rpartition(".")[2]
    owners = (last, *OTHER_NAMES.get(last, ())) if group else ("cfg", "config", "tree", "self")
    return any((owner, name) in named_in_code() for owner in owners)


OTHER_NAMES = {"rl": ("config", "self"), "memory_debug": ("memory",), "finetune": ("self",)}
"""What sections are called in functions that get them as an argument, or in their own properties."""

WITHOUT_EFFECT = {*UNREAD, *FIXED, *WRITTEN_BY_LAUNCHERS}


@pytest.mark.usefixtures("no_wandb")
def test_every_key_reaches_a_process_or_is_read_by_one(runs: dict[str, Config]) -> None:
    silent = [key for key in KEYS if below(key, WITHOUT_EFFECT) is None]
    for run in runs.values():
        seen: dict[str, str] = {}
        silent = [key for key in silent if not has_effect(key, run, seen)]
    unnamed = [key for key in silent if not is_named(key)]
    assert unnamed == []


@pytest.mark.usefixtures("no_wandb")
def test_a_key_that_nothing_reads_would_be_found(runs: dict[str, Config]) -> None:
    for key in UNREAD:
        assert not is_named(key) and not has_effect(key, runs["gpu"], {}), key


@pytest.mark.parametrize("key", sorted({*UNREAD, *FIXED}))
def test_a_key_without_effect_exists_and_says_why_in_one_line(key: str) -> None:
    reason = UNREAD.get(key) or FIXED[key]
    assert key in KEYS and reason and "\n" not in reason


DEFAULTS = yaml.safe_load("""
seed: 42
model_path: Qwen/Qwen2.5-7B
fp32_layer_prefix: lm_head
eval_every_n_versions: 78000
force_restart: false
pop_old_data: true
max_lag: null
train_subset: null
environment: null
accelerate_config: null
use_deepspeed: false
deepspeed_config: deepspeed_stage3_bf16
use_fsdp: false
fsdp: {param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}
actor: {llm_max_rollouts: 64, rollout_workers: 1, discount_factor: 1, problem_queue_size: 64,
  result_queue_size: 64, throughput_window_size: 50, max_rollout_retries: 8, rollout_retry_initial_delay_s: 1,
  rollout_retry_max_delay_s: 30, rollout_deadline_s: 3600, on_rollout_error: drop_rollout}
preprocess: {input: actor, output: training_data, n_workers: 8, chunk_n_groups: 2, raw_queue_size: 8,
  input_queue_size: 32, output_queue_size: 32, dataset_buffer_size: 0, ring_buffer_size: 128,
  max_ready_samples_per_lead: 64, log_every_n_samples: 128}
llm: {parameters: {max_tokens: 8192, temperature: 1.0}}
test_llm: {parameters: {max_tokens: 8192, temperature: 1.0, top_p: 0.95, top_k: 50}}
vllm_config:
  vllm_kwargs: {dtype: bfloat16, gpu-memory-utilization: 0.9, max-num-seqs: 64, max-num-batched-tokens: 1024,
    logprobs-mode: processed_logprobs, enable-prefix-caching: false, async-scheduling: false,
    enable-chunked-prefill: "", return-tokens-as-token-ids: "", tensor-parallel-size: 1,
    pipeline-parallel-size: 1, generation-config: vllm, max_model_len: 10000}
world: {actor_fraction: 4, preprocessor_fraction: 0, finetune_fraction: 4, env_replicas: 1,
  actor_group_port: 9000, environment_start_port: 7777}
finetune:
  model_class: causal-language-modeling
  optim: adamw_torch
  load_as_bf16: true
  use_flash_attention: true
  train_batch_size: 1
  gradient_accumulation_passes: 1024
  learning_rate: 1.0e-6
  weight_decay: 0.01
  gradient_clipping_threshold: 0.3
  lr_scheduler_type: cosine
  num_warmup_steps: 50
  max_train_steps: 100000
  interrupt_train_steps: -1
  gradient_checkpointing: true
  reentrant_checkpointing: false
  seq_length: 12000
  seq_packing: true
  seq_parallel: 1
  save_checkpoint_steps: 100
  also_save_steps: []
  keep_intermediate_checkpoints: true
  save_final_training_state: true
  use_safetensors: true
  trust_remote_code: false
  cuda_empty_cache: false
  log_each_n_steps: 1
  send_weight_updates: true
  weight_update_interval: 1
  attempts: 8
  input: training_data
  rl: {policy_loss: reinforce, epsilon_low: 0.02, epsilon_high: 0.02, use_advantages: true,
    divide_advantage_by_std: false, kl_coef: 0, final_kl_coef: 0, entropy_bonus: 0, final_entropy_bonus: 0,
    relu_log_p_weights: false, clamp_log_ratio_ref_new_value: 5, group_normalization: false,
    overlong_filtering: false, filter_zero_advantage_groups: false, value_loss_coef: 0,
    step_reward_advantages: false, temperature: 1.0}
rewards: {correct_answer_finished: 1, correct_answer_not_finished: 1, wrong_answer_finished: 0,
  wrong_answer_not_finished: 0, no_answer_finished: 0, no_answer_not_finished: 0, unparsable_finished: 0,
  unparsable_not_finished: 0}
streams: {backend: files, port: 11000, save: "3600 1"}
wandb: {use_wandb: true, wandb_project_name: pipeline-rl, wandb_resume: always, wandb_workspace_root: results,
  tags: []}
debug: {mode: "", use_existing_llms: false, place_inference_workers: true}
attempts: 8
""")
"""What a run on GPUs uses where its user says nothing: published figures were made with these."""


def test_the_defaults_of_a_run_are_the_known_ones(composed: Callable[..., Composition]) -> None:
    tree = OmegaConf.to_container(composed("hardware=gpu").tree, resolve=True)
    known = dict(leaves_of(DEFAULTS))
    assert len(known) > 120
    assert {key: value for key, value in leaves_of(tree) if key in known} == known


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ("grpo", {"rl.policy_loss": "ppo", "attempts": 8}),
        ("ppo", {"rl.policy_loss": "ppo", "attempts": 1, "rl.value_loss_coef": 0.1}),
        ("actor_critic", {"rl.policy_loss": "reinforce", "attempts": 1, "rl.value_loss_coef": 0.1}),
    ],
)
def test_an_overlay_changes_what_its_name_says(
    composed: Callable[..., Composition], overlay: str, expected: dict[str, Any]
) -> None:
    tree = composed("hardware=gpu", f"finetune={overlay}").tree
    assert {key: OmegaConf.select(tree.finetune, key) for key in expected} == expected
    head = tree.finetune.model_class.endswith("with-value-head")
    assert head == ("rl.value_loss_coef" in expected)


def leaves_of(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
