"""gymnasium's vector interface of the batch environment: `gymnasium.make_vec("ReputationEnv-v0", ...)`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import ACTIONS
from domains.reputation_hacking.game.env import observation_space
from domains.reputation_hacking.game.mitigations import Mitigation
from domains.reputation_hacking.game.params import Params


class ReputationVectorEnv(VectorEnv):
    """N Workers in lock step with automatic resets in the last step of an episode.

    That step returns the first observation of the next episode; `info["final_obs"]` holds the last of the
    ended one, `info["final_info"]` its numbers, both with a mask under the same name and an underscore.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self, num_envs: int = 1, params: Params | None = None, mitigation: str = "none", **changes: Any
    ) -> None:
        self.num_envs = num_envs
        self.batch = BatchEnv(
            (params or Params()).but(**changes), num_envs, mitigation=Mitigation.parse(mitigation)
        )
        self.single_observation_space = observation_space()
        self.single_action_space = gym.spaces.Discrete(len(ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """`seed` starts tapes seed, seed + 1, …; `options` may hold `worker_memory`, shape (N,)."""
        options = options or {}
        for name in options:
            if name != "worker_memory":
                raise ValueError(f"reset option {name!r}: only worker_memory; all episodes start together")
        seeds = None
        if isinstance(seed, int):
            self.batch.rng = np.random.default_rng(seed)
            seeds = list(range(seed, seed + self.num_envs))
        elif seed is not None:
            if any(one is None for one in seed):
                raise ValueError(f"seed={seed!r}: give every episode a seed, or none")
            seeds = [int(one) for one in seed if one is not None]
        return self.batch.reset(seeds, options.get("worker_memory")), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, reward, ended, info = self.batch.step(actions)
        terminated = np.full(self.num_envs, ended)
        truncated = np.zeros(self.num_envs, dtype=bool)
        if not ended:
            return observation, reward, terminated, truncated, {}
        mask = np.ones(self.num_envs, dtype=bool)
        final = {**info, **{f"_{key}": mask.copy() for key in info}}
        last = np.empty(self.num_envs, dtype=object)
        last[:] = list(observation)
        infos = {"final_obs": last, "_final_obs": mask.copy(), "final_info": final, "_final_info": mask}
        return self.batch.reset(), reward, terminated, truncated, infos
