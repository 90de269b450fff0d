"""The page of all keys, which `python -m pipelinerl.config.reference` prints, and what `--help KEY` says."""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pipelinerl.base.errors import ConfigError, suggestion
from pipelinerl.config.base import KEPT, Section
from pipelinerl.config.tree import Config

HEAD = """# Configuration

The keys of the schema, with default and meaning; `python -m pipelinerl.launch --help max_lag` prints one, or
those of a section. Files may set other defaults: those of `hardware=cpu`, `hardware=gpu` and `streams=redis`,
presets, and the domain's or your own, which may also add keys. `--cfg job` prints the tree of a command as
its files and its keys give it. *Kept* means that a resume cannot change the key. The launcher refuses many
keys of the command line that the run would not read. Keys that end in `_s` are in seconds.
"""


class Key(NamedTuple):
    """One key as a configuration writes it."""

    name: str
    kind: str
    default: str
    meaning: str
    kept: bool


class Group(NamedTuple):
    """A section: its name with points (empty for the top), what its class says, its own keys."""

    name: str
    meaning: str
    keys: list[Key]


def groups(
    section: type[Section] = Config, name: str = "", own: Mapping[str, Any] | None = None
) -> Iterator[Group]:
    """All sections, each before those below it; `own`: defaults that the section above gives this one."""
    defaults, keys, below = section.defaults() if own is None else own, [], []
    meanings = section.meanings()
    for plain, field in section.model_fields.items():
        written = field.alias or plain
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            below.append((field.annotation, f"{name}{written}.", defaults[written]))
            continue
        meaning = " ".join(meanings.get(plain, "").split())
        kind, default = _kind(field.annotation), _plain(defaults[written])
        keys.append(Key(f"{name}{written}", kind, default, meaning, KEPT in field.metadata))
    yield Group(name.rstrip("."), " ".join((section.__doc__ or "").split()), keys)
    for one, prefix, given in below:
        yield from groups(one, prefix, given)


def _kind(annotation: Any) -> str:
    """A type in words: `null`, the values of a literal, or the name."""
    if get_origin(annotation) is Literal:
        return ", ".join(_plain(value) for value in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in get_args(annotation))
    if annotation is type(None):
        return "null"
    origin = get_origin(annotation) or annotation
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "dict": "mapping"}
    return names.get(getattr(origin, "__name__", ""), getattr(origin, "__name__", str(origin)))


def _plain(value: Any) -> str:
    """As YAML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def page() -> str:
    """`docs/configuration.md`. A key of the same name and meaning as an earlier one refers to it."""
    parts, told = [HEAD], dict[str, str]()
    for group in groups():
        if group.keys:
            title = f"## `{group.name}`" if group.name else "## Top level"
            head = ["| key | default | meaning |", "| --- | --- | --- |"]
            rows = [
                f"| `{key.name}` | {_cell(key)} | {_escaped(_meaning(key, told))} |" for key in group.keys
            ]
            parts.append("\n".join([title, "", group.meaning, "", *head, *rows]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _meaning(key: Key, told: dict[str, str]) -> str:
    """`told`: the first key of each meaning; this one is added."""
    first = told.setdefault(key.meaning, key.name)
    leaf = key.name.rpartition(".")[2]
    return key.meaning if first == key.name or not first.endswith(f".{leaf}") else f"As `{first}`."


def _cell(key: Key) -> str:
    return f"`{_escaped(key.default)}`{' *kept*' if key.kept else ''}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def explained(name: str) -> list[str]:
    """Lines about a key, or about each key of a section. Raises ConfigError for a name that is neither."""
    sections = list(groups())
    every = {key.name: key for group in sections for key in group.keys}
    found = [key for one, key in every.items() if one == name or one.startswith(f"{name}.")]
    if not found:
        names = [*every, *(group.name for group in sections if group.name)]
        raise ConfigError(f"--help {name}: no such key; {suggestion(name, names)}")
    lines = []
    for key in found:
        kept = "; kept over a resume" if key.kept else ""
        lines += [f"{key.name}={key.default}  ({key.kind}{kept})", f"    {key.meaning}"]
    return lines


if __name__ == "__main__":
    print(page(), end="")
