"""The base of every configuration section: closed, frozen, documented, and the one place of its defaults."""

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
        use_attribute_docstrings=True,
        protected_namespaces=(),
        validate_default=True,
        ser_json_inf_nan="constants",
        allow_inf_nan=False,
    )

    @classmethod
    def keys(cls) -> list[str]:
        """Names of the keys as a configuration writes them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every key with its default as the class writes it: `900` stays `900` where a float is meant."""
        return {field.alias or name: _plain(field.default) for name, field in cls.model_fields.items()}


def _plain(default: Any) -> Any:
    if not isinstance(default, Section):
        return default
    set_here = {name: _plain(getattr(default, name)) for name in default.model_fields_set}
    return type(default).defaults() | set_here


class OpenSection(Section):
    """A group in which a domain may bring keys of its own; `compose` decides which ones."""

    model_config = ConfigDict(extra="allow")
