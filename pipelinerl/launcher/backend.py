"""What the launcher asks the hosts of a run: this one here, those of a Ray cluster in `ray_backend.py`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from pipelinerl.base.closing import Closing
from pipelinerl.base.ports import ReservedPorts, is_free_everywhere
from pipelinerl.config.hosts import Host
from pipelinerl.launcher.supervision import ChildHost


class Backend(Closing):
    """The hosts of a run, and what the launcher asks them; a context manager.

    This class alone has no host but the launcher's.
    """

    abandoned: ClassVar[bool] = False
    """Whether this process left a cluster behind whose threads would keep it from ending."""

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

    def check_paths(self, output_dir: Path, paths: Sequence[str]) -> None:
        """Raises ConfigError where another host has not the launcher's model at one of these paths, or does
        not share `output_dir`."""

    def check(self) -> None:
        """Raise WaitExpired where what connects the hosts no longer answers."""

    def close(self) -> None:
        self._ports.close()


class Imagined(Backend):
    """Hosts of a dry run or a validation, of which nothing can be asked."""

    def free(self, host: int, port: int) -> bool:
        return True
