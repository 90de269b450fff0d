"""Which Ray cluster `world.ray_address=auto` means; called before Ray is asked, and importable without it.

Asked for `auto`, Ray takes any cluster that it finds: of several on a host the one that was started last, by
whomever, as a file below /tmp/ray says, which every container and network namespace with that folder shares.
"""

import os
from contextlib import suppress
from pathlib import Path

from pipelinerl.base.errors import ConfigError

_FLAG = "--gcs-address="


def ray_address(given: str) -> str:
    """`given`; of `auto` what RAY_ADDRESS says, or else the one cluster that this host is a node of.

    ConfigError where the host is a node of several. `auto` stays where no node runs, for Ray to refuse.
    """
    if given != "auto":
        return given
    if (said := os.environ.get("RAY_ADDRESS", "")) not in ("", "auto"):
        return said
    found = _clusters()
    if len(found) > 1:
        raise ConfigError(
            f"world.ray_address=auto: {len(found)} Ray clusters have a node on this host "
            f"({', '.join(sorted(found))}); set world.ray_address to one of them"
        )
    return found.pop() if found else given


def _clusters() -> set[str]:
    """Addresses that the nodes (raylets) on this host were started with."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            program, *words = path.read_text(errors="replace").split("\0")
            if Path(program).name == "raylet":
                found |= {word.removeprefix(_FLAG) for word in words if word.startswith(_FLAG)}
    return found
