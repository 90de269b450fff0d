"""Demonstrations by a domain's name: what worker processes can be handed."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from pipelinerl.bootstrap.demonstrations import Demonstration
from pipelinerl.domain import load_domain


def demonstrations_of(
    hooks: str | list[str], tree: dict[str, Any], seed: int, phase: str
) -> list[Demonstration]:
    """The demonstrations of a domain; a function of plain values, so that worker processes can call it."""
    return list(load_domain(hooks).demonstrations(OmegaConf.create(tree), seed, phase))
