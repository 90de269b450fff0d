"""Where a run may be placed: this host, hosts of a Ray cluster, or imagined ones that are only looked at."""

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from pipelinerl.base.errors import ConfigError, explain
from pipelinerl.config.compose import Composition
from pipelinerl.config.hosts import imagined_hosts, this_host
from pipelinerl.config.machine import HALF, WorldConfig
from pipelinerl.config.variants import HOST_BACKENDS, Variant
from pipelinerl.launcher.backend import Backend, Imagined
from pipelinerl.launcher.cards import imagined_cards


class HostsKind(Variant):
    """Where hosts come from: one object that says all that depends on `world.backend`."""

    several: bool
    """Whether there may be more than the launcher's."""

    def open(self, composition: Composition, world: WorldConfig, dry_run: bool) -> Backend:
        """The hosts of a run. Raises ConfigError, or WaitExpired for hosts that do not come."""
        raise NotImplementedError


class Local(HostsKind):
    """The launcher's host alone."""

    name = "local"
    several = False
    ignores: Mapping[str, str] = {
        f"world.{name}": "one host; set world.backend=ray"
        for name in ("hosts", "ray_address", "actor_hosts", "interface")
    }

    def open(self, composition: Composition, world: WorldConfig, dry_run: bool) -> Backend:
        return Backend([this_host(usable_devices(composition, dry_run))])


class Ray(HostsKind):
    """The hosts of a Ray cluster; in a dry run and a validation, imagined ones."""

    name = "ray"
    several = True

    def open(self, composition: Composition, world: WorldConfig, dry_run: bool) -> Backend:
        tree = composition.tree
        if dry_run or tree.validate:
            devices = usable_devices(composition, dry_run=True, elsewhere=True)
            return Imagined(imagined_hosts(world.hosts, devices))
        # An extra, which nobody needs on one host.
        from pipelinerl.launcher.ray_backend import RayBackend

        wanted = _number(tree, "hardware.devices") if tree.hardware.kind == "gpu" else None
        return RayBackend(world, wanted, float(tree.engine.start_deadline_s))


LOCAL, RAY = Local(), Ray()


def open_backend(composition: Composition, dry_run: bool) -> Backend:
    """The backend that the tree asks for. Raises ConfigError, or WaitExpired for hosts that do not come."""
    tree = composition.tree
    try:
        world = WorldConfig.model_validate(OmegaConf.to_container(tree.world, resolve=True))
    except ValidationError as error:
        raise ConfigError(explain(error, WorldConfig, "world")) from None
    kind: HostsKind = HOST_BACKENDS.find(world.backend)
    return kind.open(composition, world, dry_run)


def usable_devices(composition: Composition, dry_run: bool, elsewhere: bool = False) -> list[str]:
    """Ids of the GPUs this run uses; a dry run on a machine without any imagines as many as the shares.

    `elsewhere`: on another host, of which nobody knows better than `hardware.devices`.
    """
    tree = composition.tree
    if tree.hardware.kind != "gpu":
        return []
    found = composition.devices
    if (imagined := imagined_cards(tree.hardware.devices)) is not None:
        if not (dry_run or tree.validate):
            raise ConfigError(
                f"hardware.devices={tree.hardware.devices}: such cards are imagined; put DRY_RUN=1 before "
                "the command, or give a number"
            )
        return [str(index) for index in range(imagined[0])]
    wanted = _number(tree, "hardware.devices", "; CUDA_VISIBLE_DEVICES says which; or imagine 2xH100-80GB")
    if elsewhere and wanted:
        return [str(index) for index in range(wanted)]
    if dry_run and not found:
        roles = (("actor", HALF), ("preprocessor", 0), ("finetune", HALF))
        shares = sum(_number(tree, f"world.{role}_fraction", null=null) for role, null in roles)
        return [str(index) for index in range(wanted or max(shares, 2))]
    return found[:wanted] if wanted else found


def _number(tree: DictConfig, key: str, more: str = "", null: int = 0) -> int:
    """A count of the tree, which is not typed yet, `null` for null; ConfigError for anything else."""
    value = OmegaConf.select(tree, key)
    if not isinstance(value, int | None) or isinstance(value, bool):
        raise ConfigError(f"{key}={value}: give a whole number{more}")
    return null if value is None else value
