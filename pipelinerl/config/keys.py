"""Setting single keys of a composed tree, and saying what was meant when a key does not exist."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipelinerl.base.errors import ConfigError, fields_at, first_line, nearest, suggestion
from pipelinerl.config.base import leaves_of
from pipelinerl.config.legacy import remedy_for
from pipelinerl.config.tree import OPEN_GROUPS, Config
from pipelinerl.domain import load_domain

NAMES_ELSEWHERE = {
    "finetune.learning_rate": "lr",
    "finetune.gradient_accumulation_passes": "batch_size global_batch_size",
    "finetune.attempts": "group_size num_generations num_samples rollouts_per_prompt",
    "finetune.max_train_steps": "max_steps num_steps total_steps",
    "finetune.max_epochs": "epochs num_epochs num_train_epochs",
    "finetune.num_warmup_steps": "warmup_steps",
    "finetune.save_checkpoint_steps": "save_steps save_every",
    "finetune.rl.policy_loss": "algo algorithm loss loss_type",
    "finetune.rl.kl_coef": "beta kl_beta",
    "finetune.rl.epsilon_low": "clip_eps clip_range clip_ratio",
    "llm.parameters.temperature": "temperature",
    "llm.parameters.max_tokens": "max_tokens max_new_tokens max_completion_length",
    "eval_every_n_versions": "eval_steps eval_every eval_interval",
    "hardware.devices": "gpus n_gpus num_gpus",
    "model_path": "model model_name tokenizer",
    "wandb.wandb_project_name": "project",
    "debug.mode": "mode",
}
"""Key -> what other trainers call it, from where the spelling would lead elsewhere (`lr` to `lora`)."""
_MOST_LISTED = 30
"""Keys of a section that a line still lists; of more it would show the first dozen of the alphabet."""


def leaves(tree: DictConfig) -> dict[str, Any]:
    """Dotted keys and their values, interpolations unresolved."""
    plain: Any = OmegaConf.to_container(tree, resolve=False)
    return dict(leaves_of(plain))


def apply(tree: DictConfig, overrides: Sequence[Override], brought: list[str]) -> None:
    """Value overrides, with the nearest valid key for one that does not exist.

    Keys added with `+` to an open group must be the domain's (`brought`) or the core's.
    """
    for override in overrides:
        key = override.key_or_group
        value = None if override.is_delete() else override.value()
        if (remedy := remedy_for(key, value)) is not None:
            raise ConfigError(f"{key}: {remedy}")
        if key == "hardware.kind":
            raise ConfigError(
                f"hardware.kind={override.value()}: choose the profile, hardware={override.value()}"
            )
        if override.is_delete():
            instead = f"set {key}=VALUE; some keys take null (docs/configuration.md)"
            raise ConfigError(f"{override.input_line}: keys cannot be deleted; {instead}")
        if not (override.is_add() or override.is_force_add() or _exists(tree, key)):
            # Hooks that are `${...}` and lead nowhere have no remedy; the unknown key is said first.
            hooks = OmegaConf.select(tree, "domain_hooks", throw_on_resolution_failure=False)
            own_remedy = load_domain(hooks).remedy(key)
            raise ConfigError(f"{key}: {own_remedy or f'unknown key; {_hint(tree, key)}'}")
        _set(tree, key, override.value())
    for prefix, name, known in _foreign_keys(tree):
        if prefix + name not in brought:
            raise ConfigError(f"{prefix}{name}: unknown key; {suggestion(name, known, prefix)}")


def brought_keys(tree: DictConfig, path: Path) -> list[str]:
    """Keys that a domain's file, read from `path`, brings into open groups. ConfigError for a near miss."""
    brought = []
    for prefix, name, known in _foreign_keys(tree):
        if name == "defaults":  # hydra's list of what the file is composed of
            continue
        if (match := nearest(name, known, cutoff=0.85)) is not None:
            raise ConfigError(f"{path}: {prefix}{name}: unknown key; did you mean {prefix}{match}?")
        brought.append(f"{prefix}{name}")
    return brought


def _foreign_keys(tree: DictConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Prefix of an open group, a key in it that the core does not have, and those that it has."""
    for prefix, model in OPEN_GROUPS.items():
        # A section that is itself `${...}` and leads nowhere is refused with all others, once they are set.
        section = OmegaConf.select(tree, prefix.rstrip("."), throw_on_resolution_failure=False)
        group = (section or {}) if prefix else tree
        known = model.keys()
        yield from ((prefix, str(key), known) for key in group if key not in known)


def _set(tree: DictConfig, key: str, value: Any) -> None:
    node = OmegaConf.select(tree, key, throw_on_resolution_failure=False)
    if isinstance(node, DictConfig) and len(node) and isinstance(value, int | float):
        first = str(next(iter(node)))
        raise ConfigError(f"{key}={value!r}: holds keys, such as {key}.{first}; set one of those")
    try:
        # The grammar keeps ${...} in strings; storing them makes them interpolations again.
        OmegaConf.update(tree, key, value, force_add=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={value}: {first_line(error)}") from None


def _exists(tree: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(tree, parent) if parent else tree
    except OmegaConfBaseException:
        return False
    if isinstance(node, ListConfig):
        return name.isdigit() and int(name) < len(node)
    return isinstance(node, DictConfig) and name in list(node)  # `in node` denies keys that are still missing


_SHORT = 4
"""Characters of a key, such as `me`, that is near to many."""


def _hint(tree: DictConfig, key: str) -> str:
    """The key of another trainer's name, or the nearest: first among the siblings, then anywhere."""
    parts = key.split(".")
    if parts[0].partition("/")[0] == "hydra":
        return "settings of hydra's own launcher have no effect here; remove it"
    node: Any = OmegaConf.to_container(tree, resolve=False)
    depth = 0
    while isinstance(node, dict) and node.get(parts[depth], MISSING) != MISSING:
        node, depth = node[parts[depth]], depth + 1
    if not isinstance(node, dict):
        held = ".".join(parts[:depth])
        if parts[depth] in (known := fields_at(Config, parts[:depth])):  # of a section that is off
            return f"set the whole of it, {held}={{{', '.join(f'{name}: VALUE' for name in known)}}}"
        return f"{held} holds a value and no keys"
    siblings, takes_any = [str(name) for name in node], not fields_at(Config, parts[:depth])
    if takes_any:  # arguments of a user's own function, which may be called like a key of any section
        new = f"a new key is written +{key}=VALUE"
        hint = suggestion(parts[depth], siblings, "".join(f"{part}." for part in parts[:depth]))
        return f"{hint}; {new}" if siblings else new
    if renamed := _named_elsewhere(tree, parts):
        return f"did you mean {renamed}?"
    elsewhere = [full for full in leaves(tree) if full.rpartition(".")[2] == parts[-1]]
    near = nearest(parts[depth], siblings)
    # The whole name in another section is nearer than two letters of it in this one.
    if elsewhere and (near is None or len(near) < _SHORT):
        return f"did you mean {elsewhere[0]}?"
    if near is None:
        whole = nearest(key, leaves(tree), cutoff=0.75)
        if whole is not None:
            return f"did you mean {whole}?"
        if len(siblings) > _MOST_LISTED:
            return "--cfg job prints every key"
    return suggestion(parts[depth], siblings, "".join(f"{part}." for part in parts[:depth]))


def _named_elsewhere(tree: DictConfig, parts: list[str]) -> str | None:
    """The key that ends alike in the same section (`llm.temperature`), or whose usual name this is."""
    inside = [full for full in leaves(tree) if full.startswith(f"{parts[0]}.")]
    alike = (full for full in inside if full.rpartition(".")[2] == parts[-1])
    renamed = (ours for ours, names in NAMES_ELSEWHERE.items() if parts[-1] in names.split())
    return next(alike, None) or next(renamed, None)


def check_interpolations(tree: DictConfig) -> None:
    """Raises ConfigError for a key whose `${...}` leads nowhere."""
    referring = [key for key, value in leaves(tree).items() if "${" in str(value)]
    key = ""
    try:
        # Deep keys refer to shallow ones (`finetune.config_name` to `model_path`), which are what was set.
        for key in sorted(referring, key=lambda key: key.count(".")):
            OmegaConf.select(tree, key)
        key = ""
        OmegaConf.to_container(tree, resolve=True)  # elements of lists too
    except OmegaConfBaseException as error:
        where = key or error.full_key
        said = first_line(error)
        if "HydraConfig was not set" in said:
            said = "${hydra:...} is known to hydra's own launcher only; write the value, or ${output_dir}"
        raise ConfigError(f"{where}: {said}" if where else said) from None
