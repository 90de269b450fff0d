"""The base of every configuration section: closed, frozen, documented."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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


class OpenSection(Section):
    """A group in which a domain may bring keys of its own; `compose` decides which ones."""

    model_config = ConfigDict(extra="allow")
