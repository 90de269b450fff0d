"""What a run that goes on in its folder has to share with the run that began there."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.files import read_started, typed
from pipelinerl.config.tree import Config
from pipelinerl.launcher.folder import RunFolder

MAY_CHANGE = (
    # How long, how fast and in which portions: steps are counted from the checkpoint.
    *(f"finetune.{name}" for name in (
        "max_train_steps", "max_epochs", "interrupt_train_steps", "train_batch_size",
        "gradient_accumulation_passes", "weight_update_interval", "attempts", "learning_rate", "weight_decay",
        "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_clipping_threshold", "lr_scheduler_type",
        "num_warmup_steps", "lora.dropout",
    )),
    # The objective; what lies in the buffers keeps the advantages that it has.
    *(f"finetune.rl.{name}" for name in (
        "policy_loss", "epsilon_low", "epsilon_high", "use_advantages", "divide_advantage_by_std",
        "advantage_estimator", "step_reward_advantages", "pad_step_rewards_for_advantage",
        "zero_advantage_epsilon", "filter_zero_advantage_groups", "batch_size_normalization", "kl_coef",
        "final_kl_coef", "entropy_bonus", "final_entropy_bonus", "relu_log_p_weights",
        "clamp_log_ratio_ref_new_value", "group_normalization", "overlong_filtering", "value_loss_coef",
        "temperature", "routing", "router_aux_loss_coef",
    )),
    "teacher.",
    # How the trainer computes, and what it keeps.
    *(f"finetune.{name}" for name in (
        "load_as_bf16", "use_flash_attention", "gradient_checkpointing", "compile", "reentrant_checkpointing",
        "seq_length", "seq_packing", "share_prefixes", "seq_parallel", "save_checkpoint_steps",
        "also_save_steps", "keep_intermediate_checkpoints", "save_final_training_state", "use_safetensors",
        "trust_remote_code", "cuda_empty_cache", "log_each_n_steps", "send_weight_updates", "memory_debug.",
    )),
    # Rollouts to come, and what is asked of them.
    "rewards.", "llm.", "test_llm.", "test_dataset_names", "eval_every_n_versions", "eval_at_end", "max_lag",
    "pop_old_data", "attempts", "dataset_loader_params.", "environment", "environments", "environment_key",
    *(f"actor.{name}" for name in (
        "llm_max_rollouts", "rollout_workers", "discount_factor", "problem_queue_size", "result_queue_size",
        "throughput_window_size", "system_prompt", "task_template", "domain_mix",
        "difficulty_aware_penalty.", "max_rollout_retries", "rollout_retry_initial_delay_s",
        "rollout_retry_max_delay_s", "rollout_deadline_s", "on_rollout_error", "max_failed_fraction",
    )),
    *(f"preprocess.{name}" for name in (
        "n_workers", "chunk_n_groups", "raw_queue_size", "input_queue_size", "output_queue_size",
        "dataset_buffer_size", "ring_buffer_size", "max_ready_samples_per_lead", "log_every_n_samples",
    )),
    # The machine, and what people see.
    "output_dir", "validate", "force_restart", "hardware.", "world.", "engine.", "vllm_config.", "weights.",
    "streams.", "fp32_layer_prefix", "accelerate_config", "use_deepspeed", "deepspeed_config", "use_fsdp",
    "fsdp.", "wandb.", "observe.", "watchdog.", "debug.", "bootstrap.", "domain_keys", "domain_name",
    "attempt", "jobs", "derived", "me",
)  # fmt: skip
"""Keys that a run may change when it goes on, and sections of such keys (ending in a point); a domain's own
section too. Everything else is what the checkpoint, the buffers or the numbers of the problems are about."""
_MODELS = ("model_path", "finetune.config_name")
"""Compared as folders, not as texts."""
_WHOLE = ("finetune.rl.role_weights", "finetune.rl.role_lengths", "actor.domain_rollouts", "train_subset")
"""Values that are a mapping: each of its names counts."""


def may_change(key: str) -> bool:
    """Whether a resume may give this key another value."""
    return any(key == one or (one.endswith(".") and f"{key}.".startswith(one)) for one in MAY_CHANGE)


def check(cfg: Config) -> Iterator[str]:
    """Keys that the run began with and that its checkpoint does not fit any more, the model first.

    With another model engines and trainer would go on with the checkpoint, but tokenizer and reference would
    be the new model's.
    """
    if cfg.output_dir is None or cfg.force_restart:
        return
    folder = Path(cfg.output_dir)
    # A damaged tree is no reason to refuse a sound checkpoint, as in `next_attempt`; what is wrong with a
    # folder that cannot even be looked at is said later.
    with suppress(ConfigError, OSError):
        if RunFolder(folder).checkpoint is not None:
            before = typed(read_started(folder))
            yield from _another_model(cfg, before, folder)
            yield from _other_keys(cfg, before)


def _another_model(cfg: Config, before: Config, folder: Path) -> Iterator[str]:
    keys = {"model_path": (before.model_path, cfg.model_path)}
    if cfg.finetune.lora.enabled:  # else only a first start reads it
        keys["finetune.config_name"] = before.policy_path, cfg.policy_path
    for key, (began, now) in keys.items():
        if not _same_model(_here(began, before, folder), now):
            yield (
                f"{key}={now}: this folder's run began with {began}; give that, another "
                "output_dir, or force_restart=true"
            )


def _other_keys(cfg: Config, before: Config) -> Iterator[str]:
    began = dict(flat(before.model_dump(mode="json", by_alias=True)))
    for key, value in flat(cfg.model_dump(mode="json", by_alias=True)):
        if key in began and key not in _MODELS and not may_change(key) and began[key] != value:
            yield (
                f"{key}={value}: this folder's run began with {began[key]}, which a resume keeps; "
                "give that, another output_dir, or force_restart=true"
            )


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with points in them and their values."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value and f"{prefix}{name}" not in _WHOLE:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _here(began: str, before: Config, folder: Path) -> str:
    """The model's path today: a folder of a run may have been moved together with a model in it."""
    once = before.output_dir
    if once is not None and Path(began).is_relative_to(once):
        moved = folder / Path(began).relative_to(once)
        return str(moved) if moved.is_dir() else began
    return began


def _same_model(began: str, now: str) -> bool:
    if Path(began).is_dir() and Path(now).is_dir():
        return Path(began).samefile(now)
    # A name on a hub, or a folder that has been moved: its own name is all that can be compared.
    return began == now or Path(began).name == Path(now).name
