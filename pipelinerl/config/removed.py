"""Keys that older configurations use and that have no counterpart here, with what to do instead."""

from __future__ import annotations

NOT_NEEDED = "no longer exists and nothing replaces it; remove it"

REMOVED: dict[str, str] = {
    "actor.log_each_n_secs": NOT_NEEDED,
    "actor.task_prompt": "no longer exists; use actor.task_template",
    "actor.ensure_boxed_answers": "no longer exists; say it in actor.system_prompt",
    "actor.shared_memory_entry_size": NOT_NEEDED,
    "preprocess.pop_old_data": "no longer exists; use pop_old_data at the top level",
    "preprocess.shared_memory_entry_size": NOT_NEEDED,
    "finetune.data": NOT_NEEDED,
    "finetune.attn_implementation": "no longer exists; use finetune.use_flash_attention",
    "finetune.resume_dataloader": NOT_NEEDED,
    "finetune.valid_batch_size": NOT_NEEDED,
    "finetune.max_eval_steps": NOT_NEEDED,
    "finetune.sft_config_name": NOT_NEEDED,
    "finetune.n_examples": NOT_NEEDED,
    "finetune.objective": NOT_NEEDED,
    "finetune.queue_size": "no longer exists; use preprocess.output_queue_size",
    "finetune.pop_old_data": "no longer exists; use pop_old_data at the top level",
    "finetune.eval_callback": "no longer exists; use eval_every_n_versions",
    "finetune.auto_device_map": NOT_NEEDED,
    "finetune.lora.base_model_8bit": "is not available; the base stays in finetune.load_as_bf16's type",
    "finetune.lora.base_model_4bit": "is not available; the base stays in finetune.load_as_bf16's type",
    "finetune.lora.bias": "is not available; biases stay as they are",
    "finetune.rl.reward_minus_kl_coef": "no longer exists; use finetune.rl.kl_coef",
    "finetune.rl.aggregate_loss": "no longer exists; losses are sums weighted by 1/batch size",
    "finetune.fp32_lm_head": "no longer exists; use fp32_layer_prefix=lm_head",
    "fp32_lm_head": "no longer exists; use fp32_layer_prefix=lm_head",
    "finetune.max_lag": "stands at the top level; use max_lag",
    "wandb.wandb_name": "no longer exists; run names are the role folders",
    "wandb.wandb_use_basename": NOT_NEEDED,
    "vllm_config.use_v1": "no longer exists; the stock server of vllm_config.version is used",
    "vllm_config.quantization": "no longer exists; use vllm_config.vllm_kwargs.quantization",
}


def remedy_for(key: str) -> str | None:
    """What to do about a removed key or a key below it; None for any other."""
    return next((text for old, text in REMOVED.items() if key == old or key.startswith(old + ".")), None)
