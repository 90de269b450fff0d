"""Which file gave a key its value: the reason that the table of choices shows for what nobody typed.

Called by `compose` with the files of a composition, the weakest first.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

DEFAULT = "default"
_ABSENT = object()
_REFERENCE = re.compile(r"\$\{([\w.-]+)\}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file writes, as plain values, and how a person calls it."""

    name: str
    content: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether it writes this dotted key, whatever the value."""
        return self.value(key) is not _ABSENT

    def value(self, key: str) -> Any:
        """What it writes for this dotted key, interpolations as they stand; `_ABSENT` if nothing."""
        found: Any = self.content
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return _ABSENT
            found = found[part]
        return found


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


def chain(layers: Iterable[Layer], key: str) -> list[str]:
    """A key, the key whose value the strongest file gives it, and so on to one with a value of its own."""
    strongest, found = [*layers][::-1], [key]
    while True:
        written = next((one.value(found[-1]) for one in strongest if one.has(found[-1])), None)
        reference = _REFERENCE.fullmatch(written) if isinstance(written, str) else None
        if reference is None or reference[1] in found:
            return found
        found.append(reference[1])


def decided(layers: Iterable[Layer], key: str) -> bool:
    """Whether a file that a person chose or wrote decides a key: its value is neither null nor `auto`."""
    strongest = next((one for one in [*layers][::-1] if one.has(key)), None)
    return strongest is not None and strongest.name != DEFAULT and strongest.value(key) not in (None, "auto")


def file_name(place: str, chosen: Sequence[str], path: Path, bundled: bool) -> str:
    """How the file at a place such as `hardware/cpu` is called: by what chose it, the user's by its name."""
    group, _, name = place.rpartition("/")
    if place in chosen or group == "hardware":
        return f"{group}={name}"
    if group in ("domain", "domain_hardware"):
        return "this domain"
    return DEFAULT if bundled else path.name
