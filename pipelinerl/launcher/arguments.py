"""The command line of the launcher: hydra's grammar, read without hydra's application machinery."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelinerl.base.errors import ConfigError, suggestion

USAGE = """usage: python -m pipelinerl.launch [+domain=NAME | --config-name NAME] [key=value ...]

  +domain=NAME          train on a bundled domain (conf/domain/NAME.yaml)
  --config-name NAME    a whole configuration instead; --config-dir DIR is searched first
  hardware=cpu|gpu      profile; detected when not given
  output_dir=DIR        folder of the run; the same folder again resumes it
  validate=true         stop after validation
  force_restart=true    start over in the same folder
  --cfg job             print the composed configuration and stop
  --help KEY            what a key or a section means, with its default
  --plain               a line of progress a minute, from the start and also on a terminal
  DRY_RUN=1             (environment) write every start.sh, start nothing"""

OPTIONS = ("--config-name", "--config-dir", "--cfg", "--plain", "--help")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the user asked for: what `compose` is given, and what else is done."""

    overrides: list[str]
    config_name: str | None
    config_dir: Path | None
    show: bool = False
    """`--cfg job`: print the tree and stop."""
    plain: bool = False
    """One line of progress a minute."""
    help: bool = False
    """Print the usage, or what the keys among `overrides` mean, and stop."""


def parse(argv: Sequence[str]) -> Arguments:
    """Options and overrides in any order. Raises ConfigError for an option that does not exist."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-name", "-cn")
    # hydra's second name of a folder is what scripts of upstream give.
    parser.add_argument("--config-dir", "-cd", "--config-path", "-cp")
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    try:
        given, overrides = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        name = str(error.argument_name).partition("/")[0]
        raise ConfigError(f"{name}: needs a value, {name} VALUE") from None
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(f"{word}: unknown option; {suggestion(word.partition('=')[0], OPTIONS)}")
    if given.cfg not in (None, "job"):
        raise ConfigError(f"--cfg {given.cfg}: only --cfg job exists")
    return Arguments(
        overrides=overrides,
        config_name=given.config_name,
        config_dir=Path(given.config_dir) if given.config_dir else None,
        show=given.cfg is not None,
        plain=given.plain,
        help=given.help,
    )


def launched_on_each_host(environ: Mapping[str, str]) -> str | None:
    """What to say if a launcher such as torchrun has started one process on each of several hosts."""
    count, each = environ.get("WORLD_SIZE", "1"), environ.get("LOCAL_WORLD_SIZE", "1")
    if not count.isdigit() or int(count) <= 1:
        return None
    # torchrun counts processes, LOCAL_WORLD_SIZE of each host; upstream's launcher is one on each.
    hosts = max(1, int(count) // max(1, int(each) if each.isdigit() else 1))
    rank, first = environ.get("RANK", "0"), environ.get("MASTER_ADDR", "HEAD")
    return (
        f"WORLD_SIZE={count} (RANK={rank}): one launcher starts everything on all hosts; join them in a Ray "
        "cluster and run this command once, with world.backend=ray: on each host, "
        f"ray symmetric-run --address {first}:6379 --min-nodes {hosts} -- python -m pipelinerl.launch ... "
        "(docs/several_machines.md)"
    )
