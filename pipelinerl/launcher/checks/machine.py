"""Engines, transport, streams and hosts, each by what its variant says; devices; wandb."""

import os
from collections.abc import Iterator, Sequence

from pipelinerl.base.errors import first_line
from pipelinerl.config.hosts import Host
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import REGISTRIES
from pipelinerl.observe.wandb_run import KEY_FILE, key_of, wandb_mode

WANDB_MODES = ("online", "offline", "disabled", "dryrun", "run", "shared")


def check(cfg: Config, hosts: Sequence[Host], dry_run: bool) -> Iterator[str]:
    """Problems with engines and devices of these hosts."""
    for variants in REGISTRIES:
        yield from variants.of(cfg).problems(cfg, dry_run)
    kind = cfg.hardware.kind
    if kind == "gpu" and cfg.engine.count != 1:
        yield f"engine.count={cfg.engine.count}: on GPUs world.actor_fraction decides; leave it at 1"
    devices = min((len(host.devices) for host in hosts if host.devices), default=0)
    given = cfg.hardware.devices
    if kind == "gpu" and not dry_run and isinstance(given, int) and given > devices:
        yield f"hardware.devices={given}: only {devices} visible; lower it or check CUDA_VISIBLE_DEVICES"
    if cfg.wandb.use_wandb:
        yield from _wandb()


def _wandb() -> Iterator[str]:
    mode = wandb_mode()
    try:
        key_of(os.environ if mode != "disabled" else {})
    except (OSError, ValueError) as error:
        yield f"{KEY_FILE}={os.environ[KEY_FILE]}: no key there ({first_line(error)}); correct or unset it"
    if mode not in WANDB_MODES:
        yield f"WANDB_MODE={mode}: no such mode; use one of {', '.join(WANDB_MODES)}"
    elif mode == "online" and wandb_mode({**os.environ, "WANDB_MODE": ""}) != "online":
        yield "WANDB_MODE=online: there is no key; set WANDB_API_KEY, or WANDB_MODE=offline"
