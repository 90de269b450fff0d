"""Loading the problems of a run."""

import pickle
import random
from collections.abc import Sequence
from typing import Any

from pipelinerl.config import Config
from pipelinerl.domain import problem_list, resolve_dotted

Problem = dict[str, Any]


class NoProblems(ValueError):
    """A loader that gave no problem where some are asked; one line."""


def load_problems(cfg: Config) -> tuple[list[Problem], list[Problem]]:
    """Training and test problems from the domain's loader, imported after `random.seed(cfg.seed)`.

    Without training problems where a run only evaluates. Raises ValueError if the loader returns anything but
    a list of dicts, and NoProblems for no problem where some are asked.
    """
    # Upstream's loaders draw with the global generator, and so do their modules when they are imported.
    random.seed(cfg.seed)
    loader = resolve_dotted(str(cfg.dataset_loader), "dataset_loader")
    params, name = cfg.dataset_loader_params, f"dataset_loader={cfg.dataset_loader}"
    train: list[Problem] = []
    if not cfg.debug.evaluates_only:
        train = problem_list(loader(list(cfg.train_dataset_names), **params), name)
        if not train:  # before the next call, so that what the loader printed last is about these
            raise NoProblems(f"train_dataset_names={_shown(cfg.train_dataset_names)}: no problems in it")
    test = (
        problem_list(loader(list(cfg.test_dataset_names), **params), name) if cfg.test_dataset_names else []
    )
    if not test and cfg.evaluates:
        names = _shown(cfg.test_dataset_names)
        raise NoProblems(f"test_dataset_names={names}: no problems in it; set test_dataset_names=[]")
    if (part := cfg.train_subset) is not None and train:
        count, train = len(train), train[part.begin : part.end]
        if not train:
            raise ValueError(f"train_subset.begin={part.begin}: there are {count} problems; lower it")
    return train, test


def _shown(names: Sequence[str]) -> str:
    return f"[{','.join(names)}]"


def payload(problem: Problem, index: int) -> bytes:
    """The problem for a worker. Raises ValueError if it cannot be pickled."""
    try:
        return pickle.dumps(problem, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(f"problem {index} cannot be sent to a worker process: {error}") from error
