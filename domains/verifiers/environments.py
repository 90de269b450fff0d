"""verifiers' environments: from a block of the configuration to one that is served in this worker.

Called by the loader, the checks before a run and the rollouts. What an environment is, its taskset, its seats
and what they are told, is verifiers' own configuration; only where a seat plays is decided here.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pipelinerl.base.errors import first_line
from pipelinerl.base.waits import wait_for

REMEDY = "pip install 'pipelinerl[verifiers]'"
START_DEADLINE_S = 300.0
"""For shared tool servers to answer."""
_SHELL = "bash"
"""The program that verifiers takes where nobody names one; its chat in a process of its own is `null`."""


class EnvironmentRefused(ValueError):
    """A package, a taskset or a setting that is missing or wrong; one line."""


def library() -> Any:
    """`verifiers.v1`. Raises EnvironmentRefused without it."""
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        missing = f"{error.name} is not installed" if error.name else first_line(error)
        raise EnvironmentRefused(f"verifiers cannot be imported, {missing}; {REMEDY}") from None
    return vf


def configured(block: Mapping[str, Any]) -> Any:
    """verifiers' typed configuration of an environment, every seat in this process unless it says otherwise.

    Raises EnvironmentRefused for a taskset that cannot be imported and for a setting that it does not take.
    """
    vf = library()
    from domains.verifiers import inproc

    raw = {**block, "taskset": dict(block.get("taskset") or {})}
    if not raw["taskset"].get("id"):
        raise EnvironmentRefused("env.taskset.id names no taskset: give the name of an installed package")
    try:
        fields = vf.env_config_type(raw["taskset"]["id"], raw.get("id") or "").model_fields
        for name, field in fields.items():
            if isinstance(field.default, vf.AgentConfig):
                raw[name] = _seat(dict(raw.get(name) or {}), field.default, raw["taskset"]["id"], inproc.ID)
        found = vf.resolve_env_config(raw)
        for name in fields:
            _check_place(name, getattr(found, name), raw["taskset"]["id"])
        return found
    except EnvironmentRefused:
        raise
    except Exception as error:  # whatever the module of a taskset raises when it is imported
        raise EnvironmentRefused(f"env: {type(error).__name__}: {first_line(error)}") from None


def _seat(given: dict[str, Any], author: Any, taskset: str, program: str) -> dict[str, Any]:
    """The configuration of a seat: the user's, then the author's, then a chat in this process."""
    vf = library()
    shipped = vf.default_harness_id(taskset)
    named = author.harness.id if author.harness is not None else None
    own = dict(given.get("harness") or {})
    wanted = own.get("id") or named  # settings alone name no program
    if wanted == "null" or (wanted is None and shipped == _SHELL):
        given["harness"] = {**own, "id": program}
    if "runtime" not in given and author.runtime == vf.AgentConfig().runtime:
        given["runtime"] = {"type": "subprocess"}
    return given


def _check_place(name: str, seat: Any, taskset: str) -> None:
    """Raises EnvironmentRefused for a program that has no container and that verifiers starts only in one."""
    from verifiers.v1.utils.loaders import harness_class

    vf = library()
    if not isinstance(seat, vf.AgentConfig) or seat.runtime.type != "subprocess":
        return
    program = seat.harness.id if seat.harness is not None else vf.default_harness_id(taskset)
    if harness_class(program).NEEDS_CONTAINER:
        raise EnvironmentRefused(
            f"env.{name}: the program {program} needs a container; set env.{name}.runtime.type=docker"
        )


def has_tools(config: Any) -> bool:
    """Whether tasks of this environment come with tools."""
    from verifiers.v1.utils.loaders import taskset_class

    taskset = taskset_class(config.taskset.id)
    return bool(taskset.toolsets(config.taskset) or taskset.task_type().toolsets(config.taskset.task))


def taskset_of(config: Any, count: int | None) -> Any:
    """The taskset of an environment. Raises EnvironmentRefused for all its tasks (null) if it has no end."""
    taskset = library().load_environment(config).taskset
    if count is None and not taskset.bounded:
        raise EnvironmentRefused(f"count: {config.taskset.id} has no end; say how many tasks are used")
    return taskset


def task_of(env: Any, data: str) -> Any:
    """A task from its row, JSON text, as verifiers' own servers of environments make it."""
    task_type = type(env.taskset).task_type()
    return task_type(task_type.data_type().model_validate_json(data), env.config.taskset.task)


_SERVED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[Any]]] = WeakKeyDictionary()
_HOLDERS: set[asyncio.Task[None]] = set()


async def served(block: str) -> Any:
    """The environment of a configuration, JSON text, with its tool servers; one in each event loop.

    It stays until the loop ends, which cancels the task that holds it.
    """
    held = _SERVED.setdefault(asyncio.get_running_loop(), {})
    if block not in held:
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        held[block] = ready
        holder = asyncio.create_task(_hold(block, ready, held), name="environment of verifiers")
        _HOLDERS.add(holder)
        holder.add_done_callback(_HOLDERS.discard)
    # Shielded: the rollout that came first may be given up while others wait for the same one.
    return await wait_for(asyncio.shield(held[block]), "the environment's tool servers", START_DEADLINE_S)


async def _hold(block: str, ready: asyncio.Future[Any], held: dict[str, asyncio.Future[Any]]) -> None:
    try:
        env = library().load_environment(configured(json.loads(block)))
        async with env.serving():
            ready.set_result(env)
            await asyncio.Event().wait()
    except Exception as error:
        held.pop(block, None)  # the next rollout tries again
        if not ready.done():
            ready.set_exception(error)
