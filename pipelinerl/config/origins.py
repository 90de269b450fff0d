"""Which file gave a key its value: the reason that the table of choices shows for what nobody typed.

Called by `compose` with the files of a composition, the weakest first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file writes, as plain values, and how a person calls it."""

    name: str
    content: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether it writes this dotted key, whatever the value."""
        found: Any = self.content
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return False
            found = found[part]
        return True


def layer(name: str, content: DictConfig, package: str = "") -> Layer:
    """The content of a file, which stands below `package` in the tree."""
    plain: Any = OmegaConf.to_container(content, resolve=False)
    plain.pop("defaults", None)
    for part in reversed([part for part in package.split(".") if part]):
        plain = {part: plain}
    return Layer(name, plain)


def origin(layers: Iterable[Layer], keys: Iterable[str]) -> str:
    """The names of the strongest files that write these keys; `DEFAULT` where all are the schema's."""
    strongest = [*layers][::-1]
    found = (next((one.name for one in strongest if one.has(key)), DEFAULT) for key in keys)
    return ", ".join(dict.fromkeys(name for name in found if name != DEFAULT)) or DEFAULT


def file_name(place: str, chosen: Sequence[str], path: Path, bundled: bool) -> str:
    """How the file at a place such as `hardware/cpu` is called: by what chose it, the user's by its name."""
    group, _, name = place.rpartition("/")
    if place in chosen or group == "hardware":
        return f"{group}={name}"
    if group in ("domain", "domain_hardware"):
        return "this domain"
    return DEFAULT if bundled else path.name
