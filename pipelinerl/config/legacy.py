"""Configuration files of earlier versions and of upstream: what is taken, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.removed import REMOVED

WRITTEN_BY_LAUNCHERS = ("jobs", "derived", "me", "attempt", "hydra")
"""What a launcher puts into the tree of a run; a new run gets its own."""

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

WITHOUT_EFFECT = frozenset(
    {
        "actor.log_each_n_secs",
        "actor.task_prompt",
        "actor.ensure_boxed_answers",
        "actor.shared_memory_entry_size",
        "preprocess.pop_old_data",
        "preprocess.shared_memory_entry_size",
        "finetune.data",
        "finetune.attn_implementation",
        "finetune.resume_dataloader",
        "finetune.valid_batch_size",
        "finetune.max_eval_steps",
        "finetune.sft_config_name",
        "finetune.n_examples",
        "finetune.objective",
        "finetune.queue_size",
        "finetune.pop_old_data",
        "finetune.eval_callback",
        "finetune.auto_device_map",
        "finetune.rl.reward_minus_kl_coef",
        "wandb.wandb_name",
        "wandb.wandb_use_basename",
    }
)
"""Keys that changed no result where they came from, so that leaving them out changes none here."""


def whole_tree(path: Path | None) -> DictConfig | None:
    """A file that is a whole resolved tree, such as the `exp_config.yaml` of a run; None for any other.

    Files that are composed of others begin with a list of defaults.
    """
    if path is None:
        return None
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
