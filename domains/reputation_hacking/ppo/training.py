"""PPO training as a function, for the commands `train` and `ablate` and the benchmark.

Each environment keeps its Worker from episode to episode; every finished episode is a row of the table.
"""

import csv
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import Episodes
from domains.reputation_hacking.game.mitigations import NONE, Mitigation
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.tracing import Tracer
from domains.reputation_hacking.ppo.models import Schedule, make_model, model_state
from domains.reputation_hacking.ppo.recipes import Recipe
from domains.reputation_hacking.ppo.sb3 import ReputationVecEnv
from domains.reputation_hacking.ppo.tables import COLUMNS, table_rows

RECENT = 5
"""Rollouts whose means a summary shows."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained learner and how it went."""

    model: PPO
    batch: BatchEnv
    steps: int
    seconds: float
    recent: dict[str, float]
    """Means of the last rollouts."""


def train(
    params: Params,
    recipe: Recipe,
    seed: int,
    *,
    mitigation: Mitigation = NONE,
    table: Path | None = None,
    tracer: Tracer | None = None,
    trace_envs: int = 1,
    tick: Callable[[int], None] = lambda steps: None,
) -> Trained:
    """Train one policy on one thread. Equal arguments give equal files; `tick` hears the steps done."""
    torch.set_num_threads(1)
    batch = BatchEnv(params, recipe.n_envs, mitigation=mitigation, seed=seed)
    steps = recipe.rollouts(params.T) * recipe.n_envs * params.T
    means: list[dict[str, float]] = []
    with ExitStack() as stack:
        file = None if table is None else stack.enter_context(table.open("w", encoding="utf-8", newline=""))
        if file is not None:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)

        def keep(episodes: Episodes, info: dict[str, np.ndarray], without: np.ndarray | None) -> None:
            number = len(means) * recipe.n_envs
            if tracer is not None:
                for index in range(min(trace_envs, recipe.n_envs)):
                    tracer.episode(episodes, info, index, number + index, env=index, phase="train")
            if file is not None:
                done = (len(means) + 1) * recipe.n_envs * params.T
                rows = table_rows(number, done, info, without, mitigation.name == "trust")
                csv.writer(file, lineterminator="\n").writerows(rows)
                file.flush()
            means.append({key: float(np.mean(values)) for key, values in info.items()})

        env = ReputationVecEnv(
            batch,
            reward_scale=recipe.reward_scale,
            tape_baseline=recipe.tape_baseline,
            on_episodes=keep,
        )
        model = make_model(params, recipe, env, seed)
        started = time.perf_counter()
        model.learn(steps, callback=Schedule(recipe, steps, tick))
    model.reputation = model_state(params, mitigation, recipe, batch, seed)  # type: ignore[attr-defined]
    last = means[-RECENT:]
    recent = {key: float(np.mean([mean[key] for mean in last])) for key in last[0]}
    return Trained(
        model=model, batch=batch, steps=steps, seconds=time.perf_counter() - started, recent=recent
    )
