"""What a run that goes on in its folder has to share with the run that began there."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.base import KEPT, Section, leaves_of
from pipelinerl.config.files import read_started, typed
from pipelinerl.config.tree import Config
from pipelinerl.launcher.folder import RunFolder

_MODELS = ("model_path", "finetune.config_name")
"""Compared as folders, not as texts."""


def check(cfg: Config, may_move: Collection[str] = ()) -> Iterator[str]:
    """Keys that the run began with and that its checkpoint does not fit any more, the model first.

    `may_move` are addresses of services that each start compares with its data (`NamedService.compares`).
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
            yield from _other_keys(cfg, before, may_move)


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
    began = dict(kept(before))
    given = before.derived_.filled if before.derived_ is not None else {}
    for key, value in kept(cfg):
        if key in may_move:
            continue
        if key in began and key not in _MODELS and value not in (began[key], given.get(key, began[key])):
            yield (
                f"{key}={value}: this folder's run began with {began[key]}, which a resume keeps; "
                "give that, another output_dir, or force_restart=true"
            )


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
    # A name on a hub, or a folder that has been moved: its own name is all that can be compared.
    return began == now or Path(began).name == Path(now).name
