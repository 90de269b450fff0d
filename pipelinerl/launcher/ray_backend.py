"""The hosts of a running Ray cluster. Ray counts devices, keeps other jobs off them and says which nodes
died; starting, watching and ending processes there is this project's own (`supervision/agent.py`).

Imported with `world.backend=ray` only. The launcher's own node is host 0, whose processes the launcher starts
itself; each other host has one agent in a Ray actor. One placement group holds the devices of all.
"""

import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from pipelinerl.base.digests import model_digest
from pipelinerl.base.errors import ConfigError, first_line
from pipelinerl.base.waits import Wait
from pipelinerl.config.hosts import Host, this_host
from pipelinerl.config.machine import WorldConfig
from pipelinerl.launcher.backend import Backend
from pipelinerl.launcher.ray_address import ray_address
from pipelinerl.launcher.ray_head import LEAVE_S, HeadWatch, ends_within
from pipelinerl.launcher.supervision import ChildHost
from pipelinerl.launcher.supervision.agent import (
    HostAgent,
    difference,
    facts,
    forget_other_launchers,
    software,
)
from pipelinerl.launcher.supervision.remote import CALL_S, RemoteHost

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported; it sends them by default
# Without its head Ray ends this process after 60 s, and with it every process of the run, unnamed.
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
try:
    import ray
    from ray.actor import exit_actor
    from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError
    from ray.util import placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ConfigError("world.backend=ray: Ray is not installed; pip install 'pipelinerl[ray]'") from error

log = logging.getLogger(__name__)

PASSED_ON = (
    *("PYTHONPATH", "PIPELINERL_", "HF_", "VLLM_", "NCCL_", "GLOO_", "UCX_", "FI_"),
    *("TORCH", "PYTORCH_", "TRITON_", "OMP_", "MKL_"),
)
"""Beginnings of the variables that processes on other hosts have from the launcher."""
ANSWER_S = 60.0
"""An agent's start: a Python process that imports this package."""
SHARED_S = 5.0
"""Until a file that the launcher has written is seen by the other hosts."""
READ_S = 120.0
"""Until a host has read what tells its copy of a model from another."""
AGENT_THREADS = 8
_LOOK_EVERY_S = 0.1


class _Agent:
    """A Ray actor: says which devices a host has and, on other hosts than the launcher's, runs its agent."""

    def __init__(self, *arguments: Any) -> None:
        """Those of `HostAgent`, or none."""
        self._agent = HostAgent(*arguments, end=partial(os._exit, 1)) if arguments else None

    def host(self, address: str) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Fields of `Host`, devices are those that Ray has given to this actor; and what is installed."""
        devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return {**facts(address), "devices": tuple(devices)}, software()

    def call(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self._agent, method)(*arguments)
        if method == "close":
            exit_actor()  # else Ray would tell on the launcher's terminal that a process died unexpectedly
        return answer


class RayBackend(Backend):
    """Hosts of the cluster at `world.ray_address`, each with `gpus` devices (0: all it has, None: none).

    Raises ConfigError for a cluster that is not there or too small for ever and for a host that is not like
    the launcher's, WaitExpired for hosts that do not come, or devices that others hold, for `deadline_s`.
    """

    def __init__(self, world: WorldConfig, gpus: int | None, deadline_s: float) -> None:
        self._others: dict[int, RemoteHost] = {}
        self._agents: list[Any] = []
        self._group: Any = None
        self._head: HeadWatch | None = None
        forget_other_launchers()
        cluster = ray_address(world.ray_address)
        _connect(cluster)
        try:
            nodes = _nodes(world.hosts, gpus is not None, deadline_s)
            if len(nodes) == 1 and gpus is None:  # nothing that Ray would have to count or reach
                ray.shutdown()  # else it would end this process some time after its head
                super().__init__([this_host()])
                return
            addresses = [_address(node, alone=len(nodes) == 1) for node in nodes]
            self._group = _reserve([_bundle(node, gpus) for node in nodes], deadline_s)
            env = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
            for rank, address in enumerate(addresses):
                self._agents.append(self._start_agent(rank, *((address, os.getcwd(), env) if rank else ())))
            hosts = [_host(*each) for each in zip(range(len(nodes)), addresses, self._agents)]
            super().__init__(hosts if len(hosts) > 1 else [this_host(hosts[0].devices)])
            for host in self.hosts[1:]:
                self._others[host.rank] = RemoteHost(str(host), partial(_ask, self._agents[host.rank]))
            # The placement group keeps the devices. Without its head Ray would not end this process.
            ray.kill(self._agents.pop(0))
            self._head = HeadWatch(f"the head of the Ray cluster ({cluster})", ray.nodes)
        except BaseException:
            self._leave()
            raise

    def _start_agent(self, rank: int, *arguments: Any) -> Any:
        options = {
            "num_cpus": 0,
            "num_gpus": self._group.bundle_specs[rank].get("GPU", 0),
            "max_restarts": 0,
            "max_concurrency": AGENT_THREADS,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank
            ),
        }
        return ray.remote(_Agent).options(**options).remote(*arguments)

    @property
    def others(self) -> Mapping[int, ChildHost]:
        return self._others

    def free(self, host: int, port: int) -> bool:
        if host == 0:
            return super().free(host, port)
        return bool(_answer(self._others[host], "take_port", port))

    def check_paths(self, output_dir: Path, paths: Sequence[str]) -> None:
        probe = output_dir / "launcher" / f"shared-{secrets.token_hex(8)}"
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        here = {path: model_digest(path) for path in paths} if self._others else {}
        try:
            for rank, other in self._others.items():
                host = self.hosts[rank]
                if missing := _answer(other, "missing", [sys.executable, os.getcwd(), *paths]):
                    raise ConfigError(f"{host}: has no {missing[0]}; every host needs it at the same path")
                for path, digest in here.items():
                    # Engines that get no weights, and references, would use what lies there.
                    if (there := _answer(other, "model", path, timeout_s=READ_S)) != digest:
                        found = (
                            f"was not read within {READ_S:g} s" if there is None else "is another model there"
                        )
                        raise ConfigError(
                            f"{host}: {path} {found}; every host needs the same files at this path"
                        )
                if not _answer(other, "shares", probe, SHARED_S, timeout_s=2 * SHARED_S):
                    raise ConfigError(
                        f"output_dir={output_dir}: {host} does not see it, or may not write there; give a "
                        "folder that all hosts share"
                    )
        finally:
            probe.unlink()

    def check(self) -> None:
        if self._head is not None:
            self._head.check()

    def _leave(self) -> None:
        if self._head is not None:
            self._head.close()
        for other in self._others.values():
            other.close()
        if not ends_within(LEAVE_S, self._give_back):
            log.warning("the Ray cluster was not left within %g s: its head does not answer", LEAVE_S)
            Backend.abandoned = True

    def _give_back(self) -> None:
        for agent in self._agents:
            ray.kill(agent)
        if self._group is not None:
            remove_placement_group(self._group)
        ray.shutdown()

    def close(self) -> None:
        self._leave()
        super().close()


def _answer(host: RemoteHost, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
    """What a host's agent answers. ConfigError, with its name, if it was lost: no answer is no `no`."""
    answer = host.call(method, *arguments, timeout_s=timeout_s)
    if (lost := host.look()) is not None:
        raise ConfigError(lost)
    return answer


def _connect(address: str) -> None:
    if "://" in address:  # Ray's client, or the server that takes jobs
        raise ConfigError(
            f"world.ray_address={address}: give HOST:PORT, and start the launcher on a host of that cluster"
        )
    # The agents' module has to be found. What they need beyond that they are told: Ray writes this into its
    # logs. No folder and no packages: Ray would upload them, and build an environment, on each host.
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", runtime_env={"env_vars": path})
    except Exception as error:  # no common base: no cluster, another version, a wrong token
        raise ConfigError(
            f"world.ray_address={address}: {first_line(error)}; start a cluster with ray start --head"
        ) from None


def _nodes(count: int | None, with_gpus: bool, deadline_s: float) -> list[dict[str, Any]]:
    """The launcher's node and `count` - 1 others, or all others; on GPUs only such that have some."""
    own = ray.get_runtime_context().get_node_id()
    with Wait(f"{count or 1} hosts in the Ray cluster (world.hosts)", deadline_s) as wait:
        while True:
            alive = [node for node in ray.nodes() if node["Alive"]]
            usable = [n for n in alive if n["NodeID"] != own and ("GPU" in n["Resources"] or not with_gpus)]
            usable.sort(key=lambda node: [part.zfill(3) for part in node["NodeManagerAddress"].split(".")])
            nodes = [node for node in alive if node["NodeID"] == own] + usable
            if len(nodes) >= (count or 1):
                return nodes[:count]
            wait.check(f"there are {len(nodes)}")
            time.sleep(_LOOK_EVERY_S)


def _address(node: Mapping[str, Any], alone: bool) -> str:
    """Under which other hosts, if there are any, reach a node. ConfigError for a name or IPv6."""
    address = str(node["NodeManagerAddress"])
    try:
        return address if alone else str(IPv4Address(address))
    except ValueError:
        raise ConfigError(
            f"world.backend=ray: a node has the address {address}; start Ray there with "
            "--node-ip-address=, an IPv4 address"
        ) from None


def _host(rank: int, address: str, agent: Any) -> Host:
    """A host as its agent describes it. ConfigError if that does not answer, or is not like the launcher."""
    try:
        fields, there = ray.get(agent.host.remote(address), timeout=ANSWER_S)
    except (RayActorError, GetTimeoutError) as error:
        raise ConfigError(f"host {address}: its agent does not start: {first_line(error)}") from None
    host = Host(rank=rank, **fields)
    if rank and (differs := difference(software(), there)):
        raise ConfigError(f"{host}: {differs}")
    return host


def _bundle(node: Mapping[str, Any], gpus: int | None) -> dict[str, float]:
    """A node's share: its GPUs, and something that no other node has."""
    address = node["NodeManagerAddress"]
    there = int(node["Resources"].get("GPU", 0))
    wanted = 0 if gpus is None else min(gpus, there) if gpus else there
    # No CPUs: heads of clusters are often said to have none, and what runs here is not counted by core.
    return {f"node:{address}": 0.001, **({"GPU": wanted} if wanted else {})}


def _reserve(bundles: list[dict[str, float]], deadline_s: float) -> Any:
    """A placement group that exists. Raises ConfigError at once if it never can."""
    group = placement_group(bundles, strategy="SPREAD")
    try:
        with Wait("the devices of the hosts, which other jobs of the Ray cluster hold", deadline_s) as wait:
            while (table := placement_group_table(group))["state"] != "CREATED":
                if table["stats"]["scheduling_state"] == "INFEASIBLE":
                    asked = ", ".join(f"{bundle.get('GPU', 0):g} GPUs" for bundle in bundles)
                    raise ConfigError(f"world.backend=ray: the cluster cannot give {asked} on its hosts")
                wait.check(table["stats"]["scheduling_state"])
                time.sleep(_LOOK_EVERY_S)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def _ask(agent: Any, method: str, *arguments: Any, timeout_s: float) -> Any:
    """Call a method of an agent; Ray's errors become those of `RemoteHost`, and its timeout is one."""
    try:
        return ray.get(agent.call.remote(method, *arguments), timeout=timeout_s)
    except ActorDiedError as error:
        raise ConnectionError("its agent ended, or Ray declared its node dead") from error
    except RayActorError as error:  # perhaps for a moment only
        time.sleep(_LOOK_EVERY_S)
        raise TimeoutError from error
