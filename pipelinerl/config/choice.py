"""What was chosen where nobody said, and the one place where choices enter a configuration.

The launcher collects choices of memory, placement and domain as values (`launcher/plan.py`) and applies them
to a copy of the composed tree, so that the tree stays what files and command line say.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict


class Choice(NamedTuple):
    """One value that was chosen."""

    key: str
    """Dotted, as an override would name it."""
    value: Any
    because: str
    """A phrase for people."""


def with_choices(tree: DictConfig, choices: Sequence[Choice]) -> DictConfig:
    """A copy of the tree with these values, later ones over earlier ones; a key need not exist before.

    Where nothing was chosen, the tree itself: nobody writes into either.
    """
    if not choices:
        return tree
    chosen: DictConfig = deepcopy(tree)
    with open_dict(chosen):
        for key, value, _ in choices:
            OmegaConf.update(chosen, key, value, force_add=True)
    return chosen
