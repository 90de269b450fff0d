"""Run one environment server: `python -m pipelinerl.launcher.environment_server OUTPUT_DIR --job IDX`.

An environment is a `_target_` object of the configuration with a blocking `launch(port)`; its server answers
`GET /health` with 200 when it is ready.
"""

import sys
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig

from pipelinerl.base import faults
from pipelinerl.base.errors import CommandParser, printable
from pipelinerl.base.logs import setup_logging
from pipelinerl.config import ConfigError, load_tree
from pipelinerl.config.environments import OWN_KEYS, environment_specs
from pipelinerl.domain import import_dotted


def make_environment(cfg: DictConfig, key: str) -> Any:
    """The object of one environment.

    Raises ConfigError for an unknown key, for what cannot be imported or made, and for one without `launch`.
    """
    specs = environment_specs(cfg)
    if key not in specs:
        raise ConfigError(f"environment {key}: not configured; there is {', '.join(specs) or 'none'}")
    target = {name: value for name, value in specs[key].items() if name not in OWN_KEYS}
    if "_target_" in target:
        # hydra would not say which module is missing.
        import_dotted(str(target["_target_"]), f"environment {key}: _target_")
    try:
        made = instantiate(target)
    except HydraException as error:
        raise ConfigError(f"environment {key}: {error}") from None
    if not callable(getattr(made, "launch", None)):
        raise ConfigError(f"environment {key}: {type(made).__name__} has no launch(port)")
    return made


def main() -> int:
    """Serve until stopped; the exit status."""
    parser = CommandParser(prog="python -m pipelinerl.launcher.environment_server", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="folder of the run")
    parser.add_argument("--job", type=int, required=True, help="index of this process in the run's jobs")
    arguments = parser.parse_args()
    try:
        faults.hit("environment:start")
        cfg = load_tree(arguments.output_dir, arguments.job)
        job = next(entry for entry in cfg.jobs if entry.idx == arguments.job)
        setup_logging(arguments.output_dir, str(job.name))
        environment = make_environment(cfg, str(job.environment_key))
        environment.launch(port=int(job.port))  # by name, as upstream does
    except Exception as error:
        said = " ".join(str(error).split())
        print(printable(f"environment: {type(error).__name__}: {said}"), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1  # 2: the supervisor does not start it again
    return 0


if __name__ == "__main__":
    sys.exit(main())
