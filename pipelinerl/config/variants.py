"""The registries of variants: each name that a key may have, and where its object lies.

Names are here because the schema checks them. Objects lie in rooms above this one and are found when they are
asked for; all of them can be imported without torch and vLLM, because the launcher asks them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pipelinerl.base.errors import ConfigError
from pipelinerl.domain import resolve_dotted


class Variant:
    """What every variant declares; more is in the base class of its kind."""

    name: str
    """Its name in the configuration."""
    ignores: Mapping[str, str] = {}
    """Keys, or parents of keys, that a run with it does not read, each with the reason or what to set."""

    def problems(self, cfg: Any, dry_run: bool) -> Iterator[str]:
        """What is wrong with a typed `Config` on it, one line each; a dry run may be for another machine."""
        return iter(())


class Variants:
    """The names that one key may have. In `Annotated[str, Variants(...)]` any other name is refused."""

    def __init__(self, key: str, places: Mapping[str, str]) -> None:
        """`places` are dotted paths of `Variant` objects by name."""
        self.key, self.places = key, dict(places)

    def find(self, name: str) -> Any:
        """The object of a name. Raises ConfigError, in the words of the schema, for one that it refuses."""
        if name not in self.places:
            raise ConfigError(f"{self.key}={name!r}: input should be {self._allowed}")
        return resolve_dotted(self.places[name], self.key)

    def of(self, cfg: Any) -> Any:
        """The object that a typed configuration has chosen."""
        section, _, name = self.key.partition(".")
        return self.find(getattr(getattr(cfg, section), name))

    @property
    def _allowed(self) -> str:
        """In the words of a Literal."""
        *others, last = (repr(name) for name in self.places)
        return f"{', '.join(others)} or {last}" if others else last

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def _checked(self, value: Any) -> str:
        if isinstance(value, str) and value in self.places:
            return value
        raise PydanticCustomError("literal_error", "Input should be {allowed}", {"allowed": self._allowed})


ENGINE_KINDS = Variants(
    "engine.kind",
    {
        "embedded": "pipelinerl.engines.cpu.kind.EMBEDDED",
        "vllm": "pipelinerl.engines.vllm.kind.VLLM",
    },
)
_TRANSPORTS = Path(__file__).parents[1] / "weights" / "transports"
TRANSPORTS = Variants(
    "weights.transport",
    {  # a file each, whose object is called like it
        path.stem: f"pipelinerl.weights.transports.{path.stem}.{path.stem.upper()}"
        for path in sorted(_TRANSPORTS.glob("*.py"))
        if path.stem not in ("__init__", "base")
    },
)
STREAM_BACKENDS = Variants(
    "streams.backend",
    {
        "files": "pipelinerl.streams.kind.FILES",
        "redis": "pipelinerl.streams.kind.REDIS",
    },
)
HOST_BACKENDS = Variants(
    "world.backend",
    {
        "local": "pipelinerl.launcher.open_backend.LOCAL",
        "ray": "pipelinerl.launcher.open_backend.RAY",
    },
)
REGISTRIES = (ENGINE_KINDS, TRANSPORTS, STREAM_BACKENDS, HOST_BACKENDS)
