"""The command line of the launcher: hydra's grammar, read without hydra's application machinery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelinerl.base.errors import ConfigError, suggestion
from pipelinerl.config.compose import Request

USAGE = """usage: python -m pipelinerl.launch [+domain=NAME | --config-name NAME] [key=value ...]

  +domain=NAME          train on a bundled domain (conf/domain/NAME.yaml)
  --config-name NAME    a whole configuration instead; --config-dir DIR is searched first
  hardware=cpu|gpu      profile; detected when not given
  output_dir=DIR        folder of the run; the same folder again resumes it
  validate=true         stop after validation
  force_restart=true    start over in the same folder
  --cfg job             print the composed configuration and stop
  DRY_RUN=1             (environment) write every start.sh, start nothing"""

OPTIONS = ("--config-name", "--config-dir", "--cfg", "--help")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the user asked for."""

    request: Request
    """What to compose."""
    show: bool = False
    """`--cfg job`: print the tree and stop."""
    help: bool = False
    """Print the usage and stop."""


def parse(argv: Sequence[str]) -> Arguments:
    """Options and overrides in any order. Raises ConfigError for an option that does not exist."""
    options: dict[str, str] = {}
    overrides: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name, equals, value = word.partition("=")
        name = {"-cn": "--config-name", "-cd": "--config-dir", "-c": "--cfg", "-h": "--help"}.get(name, name)
        if name not in OPTIONS:
            raise ConfigError(f"{word}: unknown option; {suggestion(name, OPTIONS)}")
        if name == "--help":
            return Arguments(request=Request(), help=True)
        if not equals:
            if not rest:
                raise ConfigError(f"{name}: needs a value, {name} VALUE")
            value = rest.pop(0)
        options[name] = value
    if options.get("--cfg", "job") != "job":
        raise ConfigError(f"--cfg {options['--cfg']}: only --cfg job exists")
    config_dir = options.get("--config-dir")
    return Arguments(
        request=Request(
            overrides=overrides,
            config_name=options.get("--config-name"),
            config_dir=Path(config_dir) if config_dir else None,
        ),
        show="--cfg" in options,
    )
