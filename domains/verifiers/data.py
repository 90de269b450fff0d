"""Tasks of a taskset: the loader of `+domain=verifiers`."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from domains.verifiers.environments import EnvironmentRefused, configured, taskset_of

DOMAIN = "verifiers"
PARTS = ("train", "test")


def load_problems(
    dataset_names: Sequence[str],
    env: Mapping[str, Any],
    count: int | None = None,
    test_count: int = 32,
    test_env: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Problems `{id, env, task, dataset, domain}`; `env` and `task`, the row, are JSON text.

    `env` is verifiers' block of that name. Without a `test_env` the evaluation (`test`) has the first
    `test_count` tasks of the taskset and training (`train`) the `count` behind them, null for all; with one,
    each has the first tasks of its own. Raises EnvironmentRefused in one line.
    """
    given = {"train": dict(env), "test": dict(test_env or env)}
    problems = []
    for name in dataset_names:
        if name not in PARTS:
            raise EnvironmentRefused(f"dataset {name!r}: this domain has train and test; name one of them")
        config = configured(given[name])
        skipped, wanted = (0, test_count) if name == "test" else (0 if test_env else test_count, count)
        taskset = taskset_of(config, wanted)
        stop = None if wanted is None else skipped + wanted
        tasks = list(itertools.islice(taskset, skipped, stop))
        if not tasks:
            raise EnvironmentRefused(f"{name}: {config.taskset.id} has no more than {skipped} tasks")
        block = json.dumps(given[name], sort_keys=True)
        for task in tasks:
            row = task.data.model_dump_json()
            label = {"id": f"{name}/{task.key}", "dataset": f"{name}/{config.taskset.id}", "domain": DOMAIN}
            problems.append({**label, "env": block, "task": row})
    return problems
