"""Domains that other packages bring, found through the entry-point group `pipelinerl.domains`.

    [project.entry-points."pipelinerl.domains"]
    chess = "chess_rl"

makes `+domain=chess` find `chess_rl/conf/domain/chess.yaml`, and `pipelinerl.domains.chess` the package.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "pipelinerl.domains"


@cache
def installed_domains() -> dict[str, EntryPoint]:
    """Entry points by name of the domain; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@cache
def installed_conf_dirs() -> tuple[Path, ...]:
    """Folders `conf/` beside the modules of installed domains, each once."""
    found: dict[Path, None] = {}
    for entry in installed_domains().values():
        spec = importlib.util.find_spec(entry.module.partition(".")[0])
        for location in (spec and spec.submodule_search_locations) or ():
            if (Path(location) / "conf").is_dir():
                found[Path(location) / "conf"] = None
    return tuple(found)
