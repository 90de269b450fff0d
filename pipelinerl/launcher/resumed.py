"""What a run that goes on in its folder has to share with the run that began there."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.files import read_started
from pipelinerl.config.tree import Config
from pipelinerl.launcher.folder import RunFolder


def check(cfg: Config) -> Iterator[str]:
    """Another model than that of the checkpoint.

    Engines and trainer would go on with the checkpoint, but tokenizer and reference would be the new model's.
    """
    if cfg.output_dir is None or cfg.force_restart:
        return
    folder = Path(cfg.output_dir)
    # A damaged tree is no reason to refuse a sound checkpoint, as in `next_attempt`; what is wrong with a
    # folder that cannot even be looked at is said later.
    with suppress(ConfigError, OSError):
        if RunFolder(folder).checkpoint is not None:
            yield from _another_model(cfg, read_started(folder), folder)


def _another_model(cfg: Config, before: DictConfig, folder: Path) -> Iterator[str]:
    began = before.get("model_path")
    if isinstance(began, str) and not _same_model(_here(began, before, folder), cfg.model_path):
        yield (
            f"model_path={cfg.model_path}: this folder's run began with {began}; give that, another "
            "output_dir, or force_restart=true"
        )


def _here(began: str, before: DictConfig, folder: Path) -> str:
    """The model's path today: a folder of a run may have been moved together with a model in it."""
    once = before.get("output_dir")
    if isinstance(once, str) and Path(began).is_relative_to(once):
        moved = folder / Path(began).relative_to(once)
        return str(moved) if moved.is_dir() else began
    return began


def _same_model(began: str, now: str) -> bool:
    if Path(began).is_dir() and Path(now).is_dir():
        return Path(began).samefile(now)
    # A name on a hub, or a folder that has been moved: its own name is all that can be compared.
    return began == now or Path(began).name == Path(now).name
