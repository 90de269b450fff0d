"""Asking a loader for its problems before the start, so that what is missing is one line and no run."""

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelinerl.base.errors import first_line


def loading_problems(
    cfg: DictConfig, paths: str | tuple[str, ...], load: Callable[..., Any], few: tuple[str, ...] = ()
) -> list[str]:
    """What `load` says of the run's data sets: one line or none, and none where the loader is another one.

    `paths` are the ends of the loader's dotted path. Of the counts named in `few` only 1 is asked for: the
    actor makes them all, and some are slow.
    """
    if not str(cfg.dataset_loader).endswith(paths):
        return []
    given: Any = OmegaConf.to_container(cfg.dataset_loader_params, resolve=True)
    for key in few:
        if type(count := given.get(key, 1)) is not int:
            return [f"dataset_loader_params.{key}={count}: give a whole number"]
    try:
        given |= {key: min(given[key], 1) for key in few if key in given}
        load([*cfg.train_dataset_names, *cfg.test_dataset_names], **given)
    except (TypeError, ValueError, OSError) as error:
        return [first_line(error)]
    return []
