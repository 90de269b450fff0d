"""The base of every configuration section: closed, frozen, documented, and the one place of its defaults."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

NULL_IS_64 = BeforeValidator(lambda value: 64 if value is None else value)
"""Of a number of requests that the launcher chooses where it is null, before it reads the tree for a run."""

KEPT = "kept over a resume"
"""Marks a key that checkpoint, buffers or numbers of problems are about: `Annotated[TYPE, KEPT]`. A resume
may change every other key of the schema."""


class Section(BaseModel):
    """A closed group of keys. The docstring under each field is its documentation."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        validate_default=True,
        ser_json_inf_nan="constants",
        allow_inf_nan=False,
    )

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """The docstring under each field, by its name.

        Read from the source when somebody asks, because every process of a run would wait for it:
        pydantic's `use_attribute_docstrings` reads them when the class is made.
        """
        found: dict[str, str] = {}
        for kind in reversed(cls.__mro__):
            if issubclass(kind, Section):
                found |= dict(_documented(_classes(kind.__module__)[kind.__name__].body))
        return found

    @classmethod
    def keys(cls) -> list[str]:
        """Names of the keys as a configuration writes them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every key with its default as the class writes it: `900` stays `900` where a float is meant."""
        return {field.alias or name: _plain(field.default) for name, field in cls.model_fields.items()}


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    source = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in ast.walk(source) if isinstance(node, ast.ClassDef)}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(below.value.value)


def _plain(default: Any) -> Any:
    if not isinstance(default, Section):
        return default
    set_here = {name: _plain(getattr(default, name)) for name in default.model_fields_set}
    return type(default).defaults() | set_here


class OpenSection(Section):
    """A group in which a domain may bring keys of its own; `compose` decides which ones."""

    model_config = ConfigDict(extra="allow")


def leaves_of(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of a plain tree, dotted and behind the prefix, and their values; an empty part is a value."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
