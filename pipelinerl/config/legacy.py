"""Configuration files of earlier versions and of upstream: what is taken, and what is said about the rest."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from pipelinerl.base.errors import ConfigError

WRITTEN_BY_LAUNCHERS = ("jobs", "derived", "me", "attempt", "hydra")
"""What a launcher puts into the tree of a run; a new run gets its own."""

_NOT_NEEDED = "no longer exists and nothing replaces it; remove it"
WITHOUT_EFFECT: dict[str, str] = {
    "actor.log_each_n_secs": _NOT_NEEDED,
    "actor.task_prompt": "no longer exists; use actor.task_template",
    "actor.ensure_boxed_answers": "no longer exists; say it in actor.system_prompt",
    "actor.shared_memory_entry_size": _NOT_NEEDED,
    "preprocess.pop_old_data": "no longer exists; use pop_old_data at the top level",
    "preprocess.shared_memory_entry_size": _NOT_NEEDED,
    "finetune.data": _NOT_NEEDED,
    "finetune.attn_implementation": "no longer exists; use finetune.use_flash_attention",
    "finetune.resume_dataloader": _NOT_NEEDED,
    "finetune.valid_batch_size": _NOT_NEEDED,
    "finetune.max_eval_steps": _NOT_NEEDED,
    "finetune.sft_config_name": _NOT_NEEDED,
    "finetune.n_examples": _NOT_NEEDED,
    "finetune.objective": _NOT_NEEDED,
    "finetune.queue_size": "no longer exists; use preprocess.output_queue_size",
    "finetune.pop_old_data": "no longer exists; use pop_old_data at the top level",
    "finetune.eval_callback": "no longer exists; use eval_every_n_versions",
    "finetune.auto_device_map": _NOT_NEEDED,
    "finetune.rl.reward_minus_kl_coef": "no longer exists; use finetune.rl.kl_coef",
    "wandb.wandb_name": "no longer exists; run names are the role folders",
    "wandb.wandb_use_basename": _NOT_NEEDED,
}
"""Keys that changed no result where they came from: a file may have them, the command line may not."""

REMOVED: dict[str, str] = WITHOUT_EFFECT | {
    "finetune.lora.base_model_8bit": "is not available; the base stays in finetune.load_as_bf16's type",
    "finetune.lora.base_model_4bit": "is not available; the base stays in finetune.load_as_bf16's type",
    "finetune.lora.bias": "is not available; biases stay as they are",
    "finetune.rl.aggregate_loss": "no longer exists; losses are sums weighted by 1/batch size",
    "finetune.fp32_lm_head": "no longer exists; use fp32_layer_prefix=lm_head",
    "fp32_lm_head": "no longer exists; use fp32_layer_prefix=lm_head",
    "finetune.max_lag": "stands at the top level; use max_lag",
    "vllm_config.use_v1": "no longer exists; the stock server of vllm_config.version is used",
    "vllm_config.quantization": "no longer exists; use vllm_config.vllm_kwargs.quantization",
}
"""All keys that have no counterpart here, with what to do instead."""

FORMER_DEFAULTS: dict[str, Any] = {
    "finetune.rl.aggregate_loss": "sum",
    "finetune.lora.base_model_8bit": False,
    "finetune.lora.base_model_4bit": False,
    "finetune.lora.bias": "none",
    "finetune.fp32_lm_head": False,
    "fp32_lm_head": False,
    "vllm_config.use_v1": False,
}
"""Values that say what happens here anyway. Null is one for every key."""


def remedy_for(key: str) -> str | None:
    """What to do about a removed key or a key below it; None for any other."""
    return next((text for old, text in REMOVED.items() if key == old or key.startswith(old + ".")), None)


def whole_tree(path: Path) -> DictConfig | None:
    """A file that is a whole resolved tree, such as the `exp_config.yaml` of a run; None for any other.

    Files that are composed of others begin with a list of defaults.
    """
    content = OmegaConf.load(path)
    if not isinstance(content, DictConfig) or "defaults" in content:
        return None
    for key in WRITTEN_BY_LAUNCHERS:
        content.pop(key, None)
    return content


def settle(tree: DictConfig) -> list[str]:
    """Take keys that no longer exist out of a tree made of files; one line for each that was set.

    Raises ConfigError for values that would change results: they cannot be left out in silence.
    """
    notices, problems = [], []
    for key, remedy in REMOVED.items():
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(tree, parent, throw_on_resolution_failure=False) if parent else tree
        if not isinstance(node, DictConfig) or name not in node:
            continue
        with open_dict(node):
            value = node.pop(name)
        if value is None or value == FORMER_DEFAULTS.get(key):
            continue
        if key in WITHOUT_EFFECT:
            notices.append(f"{key}={value}: left out, no run depends on it; {remedy}")
        else:
            problems.append(f"{key}={value}: {remedy}")
    if problems:
        raise ConfigError(problems)
    return notices
