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


def origin(layers: Sequence[Layer], keys: Iterable[str]) -> str:
    """The names of the strongest files that write these keys; `DEFAULT` where all are the schema's."""
    names = (writer.name for key in keys if (writer := _strongest(layers, key)) is not None)
    return ", ".join(dict.fromkeys(name for name in names if name != DEFAULT)) or DEFAULT


def chain(layers: Sequence[Layer], key: str) -> list[str]:
    """A key, the key whose value the strongest file gives it, and so on to one with a value of its own."""
    found = [key]
    while True:
        writer = _strongest(layers, found[-1])
        written = None if writer is None else writer.value(found[-1])
        reference = _REFERENCE.fullmatch(written) if isinstance(written, str) else None
        if reference is None or reference[1] in found:
            return found
        found.append(reference[1])


def decided(layers: Sequence[Layer], key: str) -> bool:
    """Whether a file that a person chose or wrote decides a key: its value is neither null nor `auto`."""
    writer = _strongest(layers, key)
    return writer is not None and writer.name != DEFAULT and writer.value(key) not in (None, "auto")


def _strongest(layers: Sequence[Layer], key: str) -> Layer | None:
    return next((one for one in reversed(layers) if one.has(key)), None)


def file_name(place: str, chosen: Sequence[str], path: Path, bundled: bool) -> str:
    """How the file at a place such as `hardware/cpu` is called: by what chose it, the user's by its name."""
    group, _, name = place.rpartition("/")
    if place in chosen or group == "hardware":
        return f"{group}={name}"
    if group in ("domain", "domain_hardware"):
        return "this domain"
    return DEFAULT if bundled else path.name
