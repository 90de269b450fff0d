"""The wandb run of one role: upstream's names, offline unless a key is present, imported only when used.

Name: the role's folder below `wandb.wandb_workspace_root` (`<run>/<role>`); id the same with `_` for `/`;
group: the run's folder. Statistics of the machine, code and console output are not collected: they cost
seconds at the start of every role and could carry private text.
"""

from __future__ import annotations

import logging
import netrc
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelinerl.config.machine import WandbConfig

log = logging.getLogger(__name__)

_LONGEST_NAME = 128
_PROGRESS = "texts"


def has_key(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether wandb could log in without asking: WANDB_API_KEY, or an entry for its host in netrc."""
    if environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(environ.get("NETRC", Path(environ.get("HOME", "/")) / ".netrc"))
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def wandb_mode(environ: Mapping[str, str] = os.environ) -> str:
    """`WANDB_MODE` if set, else online with a key and offline without one."""
    return environ.get("WANDB_MODE") or ("online" if has_key(environ) else "offline")


def run_names(output_dir: Path, role: str, root: str) -> tuple[str, str, str]:
    """Name, id and group of a role's run."""
    folder = Path(os.path.abspath(output_dir))
    base = Path(os.path.abspath(root))
    run = str(folder.relative_to(base)) if folder != base and folder.is_relative_to(base) else folder.name
    name = f"{run}/{role}"[-_LONGEST_NAME:]
    return name, re.sub(r"[/\\#?%:]", "_", name), run[-_LONGEST_NAME:]


def start_wandb(
    output_dir: Path, role: str, cfg: WandbConfig | None, config: Mapping[str, Any]
) -> WandbRun | None:
    """Start the run of a role, which shows `config`; None with `use_wandb=false` or without a `cfg`."""
    if cfg is None or not cfg.use_wandb:
        return None
    name, run_id, group = run_names(output_dir, role, cfg.wandb_workspace_root)
    return WandbRun(
        mode=wandb_mode(),
        entity=cfg.wandb_entity_name or None,
        project=cfg.wandb_project_name,
        group=cfg.wandb_group or group,
        name=name,
        id=f"{cfg.wandb_id}_{role}" if cfg.wandb_id else run_id,
        dir=str(cfg.wandb_dir or output_dir / role),
        tags=list(cfg.tags),
        resume="never" if cfg.wandb_resume == "never" else "allow",
        config=dict(config),
    )


class WandbRun:
    """A thin layer over wandb that turns histograms into its own kind."""

    def __init__(self, **arguments: Any) -> None:
        import wandb

        os.makedirs(arguments["dir"], exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
        )
        self._wandb = wandb
        self._run = wandb.init(settings=settings, **arguments)
        self._run.define_metric("*", step_metric=_PROGRESS)
        log.info("wandb run %s (%s)", arguments["name"], arguments["mode"])

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        # wandb drops records whose own step goes back, which an evaluation that ends late would be.
        values = {} if step is None else {_PROGRESS: step}
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                value = self._wandb.Histogram(np_histogram=(value["counts"], value["edges"]))
            values[name] = value
        self._run.log(values)

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)
