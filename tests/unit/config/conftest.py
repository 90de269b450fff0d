"""Trees composed the way the launcher does it, on a machine without a GPU."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipelinerl.config import Config, ConfigError
from pipelinerl.config.compose import Composition, compose
from pipelinerl.domain import BaseDomain
from pipelinerl.launcher.validate import checked
from tests.support.one_host import one_host


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a model with 4096 positions."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "olmo2", "vocab_size": 100, "max_position_embeddings": 4096})
    )
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # whole, and empty
    return folder


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Composition]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*overrides: str, **options: object) -> Composition:
        return compose(list(overrides), **options)  # type: ignore[arg-type]

    return run


SIZES = (
    "max_lag=512",
    "finetune.gradient_accumulation_passes=64",
    "finetune.max_train_steps=20",
    "finetune.rl.step_reward_advantages=false",
)
"""Fixed here, so that tuning the example does not change what its contradictions are."""


@pytest.fixture
def validated(composed: Callable[..., Composition], model: Path) -> Callable[..., Config]:
    """Composes the guessing domain with a small model and validates the core's keys."""

    def run(*overrides: str) -> Config:
        composition = composed("+domain=guessing", f"model_path={model}", *SIZES, *overrides)
        return checked(composition.tree, BaseDomain(), one_host())

    return run


@pytest.fixture
def refusal(validated: Callable[..., Config]) -> Callable[..., str]:
    """The only problem that these overrides cause."""

    def run(*overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            validated(*overrides)
        assert all("\n" not in line for line in caught.value.problems)
        return "\n".join(caught.value.problems)

    return run


DEFAULTS = OmegaConf.create("""
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
actor: {llm_max_rollouts: null, rollout_workers: 1, discount_factor: 1, problem_queue_size: 64,
  result_queue_size: 64, throughput_window_size: 50, max_rollout_retries: 8, rollout_retry_initial_delay_s: 1,
  rollout_retry_max_delay_s: 30, rollout_deadline_s: 3600, on_rollout_error: drop_rollout}
preprocess: {input: actor, output: training_data, n_workers: 8, chunk_n_groups: 2, raw_queue_size: 8,
  input_queue_size: 32, output_queue_size: 32, dataset_buffer_size: 0, ring_buffer_size: 128,
  max_ready_samples_per_lead: 64, log_every_n_samples: 128}
llm: {parameters: {max_tokens: 8192, temperature: 1.0}}
test_llm: {parameters: {max_tokens: 8192, temperature: 1.0, top_p: 0.95, top_k: 50}}
vllm_config:
  vllm_kwargs: {dtype: bfloat16, gpu-memory-utilization: 0.9, max-num-seqs: null,
    max-num-batched-tokens: 8192, logprobs-mode: processed_logprobs, enable-prefix-caching: true,
    async-scheduling: true,
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
  gradient_checkpointing: auto
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
