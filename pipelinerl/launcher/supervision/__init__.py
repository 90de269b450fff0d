"""Child processes of a run: start in order, wait until healthy, watch, restart some, stop all, leave nothing.

    with Supervisor(specs) as supervisor:
        supervisor.start()                  # all healthy, or ChildFailed names the one that is not
        supervisor.watch(tick=show_progress)  # until every child without restarts has ended with 0

Children live in sessions of their own and end with this process in two ways: the kernel kills each of them
(child.py), and a guard kills their whole groups (guard.py). When a child dies while the supervisor lives, the
rest of its group is killed too. A child that forks workers should still call `die_with_parent(parent_pid)` at
the start of each, so that they do not depend on either. Only a process that leaves its group escapes.

On further hosts (`Supervisor(specs, others={1: RemoteHost(...)})`) an agent does the same there.
"""

from pipelinerl.launcher.supervision.host import STOPPED_DEADLINE_S, ChildHost
from pipelinerl.launcher.supervision.run import ChildFailed, Supervisor
from pipelinerl.launcher.supervision.spec import (
    ChildSpec,
    HealthCheck,
    HeartbeatCheck,
    write_start_script,
)

__all__ = [
    "STOPPED_DEADLINE_S",
    "ChildFailed",
    "ChildHost",
    "ChildSpec",
    "HealthCheck",
    "HeartbeatCheck",
    "Supervisor",
    "write_start_script",
]
