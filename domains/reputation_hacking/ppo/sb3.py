"""The batch environment as a stable-baselines3 environment: what PPO trains in."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes, effort_without
from domains.reputation_hacking.game.env import observation_space
from domains.reputation_hacking.game.mitigations import Memory
from domains.reputation_hacking.game.terminal import row

OWN = {"worker_memory": "expected_effort", "trust": "trust"}
"""Attributes of single environments, and the fields of `Worker` that they are."""
EpisodeSink = Callable[[Episodes, dict[str, np.ndarray], np.ndarray | None], None]


class ReputationVecEnv(VecEnv):
    """N lock-step episodes as a stable-baselines3 environment with automatic resets.

    The learner sees reward_scale * (reward - tape baseline); the float64 reward is in the terminal info as
    `reward_raw`. `on_episodes` gets the finished episodes, their info and the efforts without the Assistant.
    """

    def __init__(
        self,
        batch: BatchEnv,
        *,
        reward_scale: float = 1.0,
        tape_baseline: bool = False,
        on_episodes: EpisodeSink | None = None,
    ) -> None:
        self.batch, self.reward_scale, self.tape_baseline = batch, reward_scale, tape_baseline
        self.on_episodes = on_episodes
        self.closed = False
        self._actions: np.ndarray | None = None
        super().__init__(batch.count, observation_space(), gym.spaces.Discrete(len(ACTIONS)))

    def reset(self) -> np.ndarray:
        seeds = [seed for seed in self._seeds if seed is not None]
        options = [option.get("worker_memory") for option in self._options]
        memory = None
        if any(one is not None for one in options):
            held = self.batch.worker.expected_effort
            memory = [now if one is None else one for one, now in zip(options, held, strict=True)]
        whole = len(seeds) == self.num_envs
        if whole:
            self.batch.rng = np.random.default_rng(seeds)
        observation = self._begin(seeds if whole else None, memory)
        self._reset_seeds()
        self._reset_options()
        return observation

    def _begin(self, seeds: Sequence[int] | None = None, memory: Memory | None = None) -> np.ndarray:
        observation = self.batch.reset(seeds, memory)
        assert self.batch.episodes is not None
        self.reset_infos = [{"tape_seed": seed} for seed in self.batch.episodes.tape.seed.tolist()]
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        assert self._actions is not None
        observation, reward, ended, info = self.batch.step(self._actions)
        done = np.full(self.num_envs, ended)
        if not ended:
            return observation, reward.astype(np.float32), done, [{} for _ in range(self.num_envs)]
        episodes, without = self.batch.episodes, None
        assert episodes is not None
        shown = reward
        if self.tape_baseline:
            without = effort_without(episodes.params, episodes.tape)
            before = info["learned_expected_effort_before"]
            shown = reward - episodes.params.effort_weight * (before - without)
        if self.on_episodes is not None:
            self.on_episodes(episodes, info, without)
        infos = []
        for index in range(self.num_envs):
            one = row(info, index)
            one["terminal_observation"] = observation[index].copy()
            one["TimeLimit.truncated"] = False
            one["episode"] = {"r": one["reward_raw"], "l": episodes.params.T, "t": 0.0}
            infos.append(one)
        return self._begin(), (self.reward_scale * shown).astype(np.float32), done, infos

    def close(self) -> None:
        self.closed = True

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """`worker_memory` and `trust` are each Worker's own; other attributes are shared by all."""
        chosen = list(self._get_indices(indices))
        if attr_name in OWN:
            return [float(value) for value in getattr(self.batch.worker, OWN[attr_name])[chosen]]
        return [None if attr_name == "render_mode" else getattr(self.batch, attr_name) for _ in chosen]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set `worker_memory` or `trust` of some Workers. Raises AttributeError for anything else."""
        if attr_name not in OWN:
            raise AttributeError(f"{attr_name} cannot be set; choose {' or '.join(OWN)}")
        values = getattr(self.batch.worker, OWN[attr_name]).copy()
        values[list(self._get_indices(indices))] = value
        self.batch.worker = self.batch.worker.replaced({OWN[attr_name]: values})

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """`get_wrapper_attr(name)` and `set_wrapper_attr(name, value)` of each chosen environment."""
        given = [*method_args, *method_kwargs.values()]
        if method_name == "get_wrapper_attr":
            return self.get_attr(given[0], indices)
        if method_name == "set_wrapper_attr":
            self.set_attr(given[0], given[1], indices)
            return [None for _ in self._get_indices(indices)]
        raise AttributeError(f"{method_name} is no method of these environments; use get_attr or set_attr")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]
