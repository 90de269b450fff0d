"""stable-baselines3 meets the batch environment: adapter, features, entropy schedule, saved models."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

from domains.reputation_hacking.batch import BatchEnv
from domains.reputation_hacking.dynamics import ACTIONS, Episodes, Tapes, effort_without
from domains.reputation_hacking.env import observation_space
from domains.reputation_hacking.mitigations import Mitigation, initial_effort
from domains.reputation_hacking.params import Params
from domains.reputation_hacking.policies import CENTRE, SCALE, Policy, choose, sampling_noise
from domains.reputation_hacking.recipes import Recipe
from domains.reputation_hacking.terminal import row

STATE_VERSION = 1
EpisodeSink = Callable[[Episodes, dict[str, np.ndarray], np.ndarray | None], None]


class ModelError(ValueError):
    """A saved model cannot be used; the message says why."""


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
            memory = [
                now if one is None else one
                for one, now in zip(options, self.batch.worker.expected_effort, strict=True)
            ]
        if len(seeds) == self.num_envs:
            self.batch.rng = np.random.default_rng(seeds)
        observation = self.batch.reset(seeds if len(seeds) == self.num_envs else None, memory)
        self.reset_infos = [{"tape_seed": int(seed)} for seed in self._tapes.seeds]
        self._reset_seeds()
        self._reset_options()
        return observation

    @property
    def _tapes(self) -> Tapes:
        assert self.batch.episodes is not None
        return self.batch.episodes.tapes

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
            without = effort_without(episodes.params, episodes.tapes)
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
        observation = self.batch.reset()
        self.reset_infos = [{"tape_seed": int(seed)} for seed in self._tapes.seeds]
        return observation, (self.reward_scale * shown).astype(np.float32), done, infos

    def close(self) -> None:
        self.closed = True

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """`worker_memory` and `trust` are each Worker's own; other attributes are shared by all."""
        chosen = list(self._get_indices(indices))
        if attr_name == "worker_memory":
            return [float(self.batch.worker.expected_effort[index]) for index in chosen]
        if attr_name == "trust":
            return [float(self.batch.worker.trust[index]) for index in chosen]
        if attr_name == "render_mode":
            return [None for _ in chosen]
        return [getattr(self.batch, attr_name) for _ in chosen]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set `worker_memory` or `trust` of some Workers. Raises AttributeError for anything else."""
        field = {"worker_memory": "expected_effort", "trust": "trust"}.get(attr_name)
        if field is None:
            raise AttributeError(f"{attr_name} cannot be set; choose worker_memory or trust")
        values = getattr(self.batch.worker, field).copy()
        values[list(self._get_indices(indices))] = value
        self.batch.worker = self.batch.worker.replaced({field: values})

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


class ScaledFeatures(BaseFeaturesExtractor):
    """What the network sees; part of the saved policy, the environment never rescales."""

    def __init__(self, space: gym.spaces.Box, scaled: bool = True, rest_at: float | None = None) -> None:
        """`rest_at`: value of observation[2] at which the Worker rests, to add a flag for it."""
        super().__init__(space, 4 + (rest_at is not None))
        self.rest_at = rest_at
        self.register_buffer("centre", torch.tensor(CENTRE if scaled else np.zeros(4), dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(SCALE if scaled else np.ones(4), dtype=torch.float32))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        features = (observations - self.centre) * self.scale
        if self.rest_at is None:
            return features
        flag = torch.where(observations[:, 2:3] >= self.rest_at, 1.0, -1.0)
        return torch.cat([features, flag], dim=1)


class EntropySchedule(BaseCallback):
    """Linear entropy bonus from its first value to 0."""

    def __init__(self, first: float, until: float, total_steps: int) -> None:
        super().__init__()
        self.first, self.end = first, max(until * total_steps, 1.0)

    def _on_rollout_start(self) -> None:
        assert isinstance(self.model, PPO)
        self.model.ent_coef = self.first * max(0.0, 1.0 - self.model.num_timesteps / self.end)

    def _on_step(self) -> bool:
        return True


def make_model(params: Params, recipe: Recipe, env: VecEnv, seed: int, n_steps: int | None = None) -> PPO:
    """An untrained PPO learner on the CPU; `n_steps` per environment, whole episodes unless given."""
    steps = n_steps or params.T
    rest_at = float(np.float32(params.fatigue_threshold / params.fatigue_max)) if recipe.rest_flag else None
    fall = recipe.learning_rate - recipe.final_learning_rate
    return PPO(
        "MlpPolicy",
        env,
        learning_rate=lambda left: recipe.final_learning_rate + fall * left,
        n_steps=steps,
        batch_size=max(2, steps * env.num_envs // recipe.minibatches),
        n_epochs=recipe.epochs,
        gamma=recipe.gamma,
        gae_lambda=recipe.gae_lambda,
        ent_coef=recipe.entropy,
        clip_range=recipe.clip_range,
        policy_kwargs={
            "net_arch": {"pi": list(recipe.layers), "vf": list(recipe.layers)},
            "features_extractor_class": ScaledFeatures,
            "features_extractor_kwargs": {"scaled": recipe.scaled, "rest_at": rest_at},
        },
        device="cpu",
        seed=seed,
        verbose=0,
    )


def model_state(
    params: Params, mitigation: Mitigation, recipe: Recipe, batch: BatchEnv, seed: int
) -> dict[str, Any]:
    """Everything that evaluation needs beside the weights, as plain JSON-able data."""
    return {
        "version": STATE_VERSION,
        "params": params.to_json(),
        "calibrated_effort": initial_effort(params),
        "mitigation": str(mitigation),
        "recipe": recipe.to_json(),
        "seed": seed,
        "worker": batch.worker.to_json(),
    }


def save_model(model: PPO, path: Path) -> None:
    """Write the zip under a temporary name and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp.zip")
    try:
        model.save(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_model(path: Path) -> PPO:
    """A saved model with its `reputation` state, if it has one. Raises ModelError with one line."""
    if not path.is_file():
        raise ModelError(f"{path}: no such model; train one first or name another with --model")
    try:
        model = PPO.load(path, device="cpu")
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, RuntimeError, AttributeError) as error:
        raise ModelError(
            f"{path}: not a saved PPO model ({str(error).splitlines()[0]}); train it again"
        ) from error
    shape = getattr(model.observation_space, "shape", None)
    if shape != (4,):
        raise ModelError(f"{path}: the model takes observations of shape {shape}, this game gives (4,)")
    return model


def model_params(model: PPO, path: Path, l0: float | None = None) -> tuple[Params, Mitigation, float]:
    """Parameters, reward variant and L* stored with a model.

    A model without the stored state is accepted with an explicit `l0` only. Raises ModelError.
    """
    state = getattr(model, "reputation", None)
    if not isinstance(state, dict):
        if l0 is None:
            raise ModelError(
                f"{path}: no game is stored in the model; give the expected effort with --l0 NUMBER"
            )
        return Params(l0=l0), Mitigation(), l0
    if state.get("version") != STATE_VERSION:
        raise ModelError(
            f"{path}: state version {state.get('version')}, this code reads {STATE_VERSION}; train again"
        )
    effort = float(state["calibrated_effort"]) if l0 is None else l0
    return Params.from_json(state["params"]), Mitigation.parse(state["mitigation"]), effort


class ModelPolicy(Policy):
    """A trained network; the sampled form draws from its own noise, addressed by (seed, step)."""

    def __init__(self, model: PPO, *, sampled: bool = False) -> None:
        self.model, self.sampled = model, sampled
        self.name = "sampled" if sampled else "deterministic"
        model.policy.set_training_mode(False)

    def begin(self, episodes: Episodes) -> None:
        if self.sampled:
            self.uniform = sampling_noise(episodes.tapes.seeds, episodes.params.T)

    def probabilities(self, observation: np.ndarray) -> np.ndarray:
        """float64 [N, 3]."""
        with torch.no_grad():
            distribution = self.model.policy.get_distribution(torch.as_tensor(observation))
            categorical: Any = distribution.distribution
            return categorical.probs.double().numpy()

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        probabilities = self.probabilities(observation)
        if self.sampled:
            return choose(probabilities, self.uniform[episodes.t])
        return probabilities.argmax(1)
