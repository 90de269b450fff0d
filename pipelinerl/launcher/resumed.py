"""What a run that goes on in its folder has to share with the run that began there, and what it changes."""

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelinerl.base.errors import ConfigError, first_line, printable
from pipelinerl.base.hub import of_hub
from pipelinerl.config.base import KEPT, Section, leaves_of
from pipelinerl.config.files import read_started, typed
from pipelinerl.config.secrets import hidden, secrets_of, written
from pipelinerl.config.tree import Config
from pipelinerl.launcher.folder import RunFolder

_MODELS = ("model_path", "finetune.config_name")
"""Compared as folders, not as texts."""
_DECIDE = {
    "actor.difficulty",
    "actor.difficulty_aware_penalty",
    "actor.discount_factor",
    "actor.domain_mix",
    "actor.on_rollout_error",
    "actor.sampling",
    "actor.system_prompt",
    "actor.task_template",
    "attempts",
    "dataset_loader_params",
    "environment",
    "environments",
    "environment_key",
    "eval_at_end",
    "eval_every_n_versions",
    "finetune.adam_beta1",
    "finetune.adam_beta2",
    "finetune.adam_epsilon",
    "finetune.attempts",
    "finetune.gradient_accumulation_passes",
    "finetune.gradient_clipping_threshold",
    "finetune.learning_rate",
    "finetune.load_as_bf16",
    "finetune.lora.dropout",
    "finetune.lr_scheduler_type",
    "finetune.max_epochs",
    "finetune.max_train_steps",
    "finetune.num_warmup_steps",
    "finetune.rl",
    "finetune.train_batch_size",
    "finetune.weight_decay",
    "finetune.weight_update_interval",
    "llm",
    "max_lag",
    "pop_old_data",
    "rewards",
    "teacher",
    "test_dataset_names",
    "test_llm",
    "weights.kv",
}
"""Keys, and sections of keys, that decide the objective, its schedules, or what is sampled and evaluated. The
rest say where and how fast a run computes, how long it waits, and what it leaves for people."""
_LONGEST = 60
"""Characters of a value in a line."""


def check(cfg: Config, may_move: Collection[str] = ()) -> Iterator[str]:
    """Keys that the run began with and that its checkpoint does not fit any more, the model first.

    `may_move` are addresses of services that each start compares with its data (`NamedService.compares`).
    With another model engines and trainer would go on with the checkpoint, but tokenizer and reference would
    be the new model's.
    """
    # A damaged tree is no reason to refuse a sound checkpoint, as in `next_attempt`; what is wrong with a
    # folder that cannot even be looked at is said later.
    with suppress(ConfigError, OSError):
        if (before := _begun(cfg)) is not None:
            yield from _another_model(cfg, before, Path(str(cfg.output_dir)))
            yield from _other_keys(cfg, before, may_move)


def lost_inputs(tree: DictConfig, folders: Collection[str]) -> Iterator[str]:
    """Paths that the run is to read and that starting over would remove first, such as its own trained model.

    `folders` are the domain's of a run's folder.
    """
    if not tree.force_restart or tree.output_dir is None:
        return
    removed = [path.resolve() for path in RunFolder(Path(str(tree.output_dir))).made(folders)]
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    said = set[str]()
    for key, value in sorted(leaves_of(plain), key=lambda leaf: leaf[0].count(".")):  # its copies come behind
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str) or "/" not in text or text in said or key == "weights.directory":
                continue
            with suppress(OSError, ValueError):  # no path at all
                place = Path(text).resolve()
                if place.exists() and any(place.is_relative_to(path) for path in removed):
                    said.add(text)
                    yield (
                        f"{key}={text}: force_restart=true would remove it before it is read; copy it "
                        "elsewhere, or give another output_dir"
                    )


def compared(tree: DictConfig) -> tuple[tuple[str, ...], list[str]]:
    """What a resume changes, and at most one line that says so, or why it is not known."""
    try:
        changed = tuple(changes(tree))
    except (ConfigError, OSError) as error:
        return (), [f"this resume is compared with no earlier start: {first_line(error)}"]
    return changed, [f"this resume changes {'; '.join(changed)}"] if changed else []


def changes(tree: DictConfig) -> list[str]:
    """`KEY OLD -> NEW` for each key in which a resume trains or samples otherwise than the last start did.

    A change is allowed, and shown without secrets. Raises ConfigError or OSError if the tree of the last
    start cannot be read.
    """
    cfg = typed(tree)
    if (before := _begun(cfg)) is None:
        return []
    secret = _secret_keys(cfg, before)
    old, new = dict(_deciding(before, secret)), dict(_deciding(cfg, secret))
    filled = before.derived_.filled if before.derived_ is not None else {}
    secrets = [secrets_of(tree), secrets_of(OmegaConf.create(before.model_dump(mode="json", by_alias=True)))]

    def shown(value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False) if value is None or not isinstance(value, str) else value
        for one in secrets:
            text = hidden(text, one)
        text = " ".join(printable(text).split()) or "''"
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

    return [
        f"{key} {shown(old.get(key))} -> {shown(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if new.get(key) not in (old.get(key), filled.get(key, old.get(key)))
    ]


def _deciding(cfg: Config, secret: Collection[str]) -> Iterator[tuple[str, Any]]:
    given = dict(kept(cfg))
    yield from ((key, value) for key, value in given.items() if key in secret)
    for key, value in leaves_of(cfg.model_dump(mode="json", by_alias=True)):
        above = accumulate(key.split("."), "{}.{}".format)
        if value != {} and key not in given and not _DECIDE.isdisjoint(above):
            yield key, value


def _begun(cfg: Config) -> Config | None:
    """The configuration of the folder's last start, if this one goes on from it.

    An evaluation on its own has no checkpoint, and one that was stopped begins again.
    """
    if cfg.output_dir is None or cfg.force_restart:
        return None
    folder = RunFolder(Path(cfg.output_dir))
    goes_on = folder.checkpoint is not None or (folder.began and not cfg.debug.evaluates_only)
    return typed(read_started(folder.path)) if goes_on else None


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


def _other_keys(cfg: Config, before: Config, may_move: Collection[str]) -> Iterator[str]:
    began, secret = dict(kept(before)), _secret_keys(cfg, before)
    given = before.derived_.filled if before.derived_ is not None else {}
    for key, value in kept(cfg):
        if key in may_move or key in secret:  # a token that was renewed opens the same door
            continue
        if key in began and key not in _MODELS and value not in (began[key], given.get(key, began[key])):
            yield (
                f"{key}={value}: this folder's run began with {began[key]}, which a resume keeps; "
                "give that, another output_dir, or force_restart=true"
            )


def _secret_keys(*configurations: Config) -> set[str]:
    """Keys of the domain that hold a secret in one of these; of a list, the list's."""
    found = set[str]()
    for cfg in configurations:
        for place in secrets_of(OmegaConf.create(cfg.model_dump(mode="json", by_alias=True))):
            found.add(written(tuple(takewhile(lambda part: isinstance(part, str), place))))
    return found


def kept(section: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with points in them and their values: those marked as kept, and those that a domain brought."""
    plain = section.model_dump(mode="json", by_alias=True)
    for name, field in type(section).model_fields.items():
        key, value = field.alias or name, getattr(section, name)
        if KEPT in field.metadata:
            yield f"{prefix}{key}", plain[key]
        elif isinstance(value, Section):
            yield from kept(value, f"{prefix}{key}.")
    yield from leaves_of({name: plain[name] for name in section.model_extra or {}}, prefix)


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
    if of_hub(began) and of_hub(now):
        return began == now
    # A folder that has been moved: its own name is all that can be compared.
    return began == now or Path(began).name == Path(now).name
