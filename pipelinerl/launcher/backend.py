"""Where a run may be placed: this host, hosts of a Ray cluster, or imagined ones in a dry run."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from pipelinerl.base.closing import Closing
from pipelinerl.base.errors import ConfigError, explain
from pipelinerl.base.ports import ReservedPorts, is_free_everywhere
from pipelinerl.config.compose import Composition
from pipelinerl.config.machine import WorldConfig
from pipelinerl.launcher.hosts import Host, imagined_hosts, this_host
from pipelinerl.launcher.sharing import CardMemory, card_memory
from pipelinerl.launcher.supervision import ChildHost


class Backend(Closing):
    """The hosts of a run, and what the launcher asks them; a context manager.

    This class alone has no host but the launcher's.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = list(hosts)
        """By rank; the first is the launcher's."""
        self._ports = ReservedPorts(free=partial(is_free_everywhere, address=self.hosts[0].address))

    @property
    def others(self) -> Mapping[int, ChildHost]:
        """Where the supervisor starts children beside this host."""
        return {}

    def free(self, host: int, port: int) -> bool:
        """Whether a port of a host is free; then it is kept until this is closed."""
        return self._ports.take(port)

    def card_memory(self, device: str) -> CardMemory | None:
        """Of a GPU; the cards of all hosts are taken to be alike."""
        return card_memory(device)

    def check_paths(self, output_dir: Path, paths: Sequence[str]) -> None:
        """Raises ConfigError where another host lacks one of these paths, or does not share `output_dir`."""

    def close(self) -> None:
        self._ports.close()


class Imagined(Backend):
    """Hosts of a dry run, of which nothing can be asked."""

    def free(self, host: int, port: int) -> bool:
        return True


def open_backend(composition: Composition, dry_run: bool) -> Backend:
    """The backend that the tree asks for. Raises ConfigError, or WaitExpired for hosts that do not come."""
    tree = composition.tree
    try:
        world = WorldConfig.model_validate(OmegaConf.to_container(tree.world, resolve=True))
    except ValidationError as error:
        raise ConfigError(explain(error, WorldConfig, "world")) from None
    if world.backend == "local":
        return Backend([this_host(usable_devices(composition, dry_run))])
    if dry_run:
        return Imagined(imagined_hosts(world.hosts, usable_devices(composition, dry_run)))
    # An extra, which nobody needs on one host.
    from pipelinerl.launcher.ray_backend import RayBackend

    wanted = _number(tree, "hardware.devices") if tree.hardware.kind == "gpu" else None
    return RayBackend(world, wanted, float(tree.engine.start_deadline_s))


def usable_devices(composition: Composition, dry_run: bool) -> list[str]:
    """Ids of the GPUs this run uses; a dry run on a machine without any imagines as many as the shares."""
    tree = composition.tree
    if tree.hardware.kind != "gpu":
        return []
    found = composition.devices
    wanted = _number(tree, "hardware.devices", "; CUDA_VISIBLE_DEVICES says which")
    if dry_run and not found:
        roles = ("actor", "preprocessor", "finetune")
        shares = sum(_number(tree, f"world.{role}_fraction") for role in roles)
        return [str(index) for index in range(wanted or max(shares, 2))]
    return found[:wanted] if wanted else found


def _number(tree: DictConfig, key: str, more: str = "") -> int:
    """A count of the tree, which is not typed yet; ConfigError for anything else."""
    value = OmegaConf.select(tree, key)
    if not isinstance(value, int | None) or isinstance(value, bool):
        raise ConfigError(f"{key}={value}: give a whole number{more}")
    return value or 0
