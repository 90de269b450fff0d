"""PPO's networks and saved models: what training builds and saves, and evaluation loads and acts by.

Weights and everything that evaluation needs beside them lie in one `trained_model.zip`.
"""

import io
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import Episodes
from domains.reputation_hacking.game.mitigations import Mitigation, initial_effort
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import CENTRE, SCALE, Stochastic
from domains.reputation_hacking.ppo.recipes import Recipe
from pipelinerl.base.files import write_whole

STATE_VERSION = 1
UNUSED: dict[str, Any] = {"learning_rate": 0.0, "lr_schedule": lambda left: 0.0}
"""Not read from a saved model: evaluation needs no schedule, and older models name a module in theirs."""


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


class Schedule(BaseCallback):
    """Linear entropy bonus from its first value to its last; tells `tick` the steps after each rollout."""

    def __init__(self, recipe: Recipe, total_steps: int, tick: Callable[[int], None]) -> None:
        super().__init__()
        self.last, self.fall = recipe.final_entropy, recipe.entropy - recipe.final_entropy
        self.end = max(recipe.entropy_until * total_steps, 1.0)
        self.tick = tick

    def _on_rollout_start(self) -> None:
        assert isinstance(self.model, PPO)
        left = max(0.0, 1.0 - self.model.num_timesteps / self.end)
        self.model.ent_coef = self.last + self.fall * left

    def _on_rollout_end(self) -> None:
        self.tick(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def make_model(params: Params, recipe: Recipe, env: VecEnv, seed: int, n_steps: int | None = None) -> PPO:
    """An untrained PPO learner on the CPU; `n_steps` per environment, whole episodes unless given."""
    steps = n_steps or params.T
    rest_at = float(np.float32(params.fatigue_threshold / params.fatigue_max)) if recipe.rest_flag else None
    # Plain floats, since the schedule is saved with the model.
    last, fall = recipe.final_learning_rate, recipe.learning_rate - recipe.final_learning_rate
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=lambda left: last + fall * left,
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
    model.set_logger(Logger(None, []))  # its own would leave a folder in /tmp for each model
    return model


def model_state(
    params: Params, mitigation: Mitigation, recipe: Recipe, batch: BatchEnv, seed: int
) -> dict[str, Any]:
    """Everything that evaluation needs beside the weights, as plain JSON-able data."""
    return {
        "version": STATE_VERSION,
        "params": params.to_json(),
        "calibrated_effort": initial_effort(params),
        "mitigation": str(mitigation),
        "recipe": asdict(recipe),
        "seed": seed,
        "worker": batch.worker.to_json(),
    }


def save_model(model: PPO, path: Path) -> None:
    """Write the zip whole or not at all."""
    content = io.BytesIO()
    model.save(content)
    write_whole(path, content.getvalue())


def load_model(path: Path) -> PPO:
    """A saved model with its `reputation` state, if it has one. Raises ValueError with one line."""
    if not path.is_file():
        raise ValueError(f"{path}: no such model; train one first or name another with --model")
    try:
        model = PPO.load(path, device="cpu", custom_objects=UNUSED)
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not a saved PPO model ({str(error).splitlines()[0]}); train it again"
        ) from error
    shape = getattr(model.observation_space, "shape", None)
    if shape != (4,):
        raise ValueError(f"{path}: the model takes observations of shape {shape}, this game gives (4,)")
    return model


def holds_game(model: PPO) -> bool:
    """Whether `train` saved the model; one of other programs has weights alone."""
    return isinstance(getattr(model, "reputation", None), dict)


def model_params(model: PPO, path: Path, l0: float | None = None) -> tuple[Params, Mitigation, float]:
    """Parameters, reward variant and L* stored with a model.

    A model without the stored state is accepted with an explicit `l0` only. Raises ValueError.
    """
    if not holds_game(model):
        if l0 is None:
            raise ValueError(
                f"{path}: no game is stored in the model; name one with --preset, "
                "or give --l0 NUMBER, the expected effort, for that of default"
            )
        return Params(l0=l0), Mitigation(), l0
    state: dict[str, Any] = model.reputation  # type: ignore[attr-defined]
    if state.get("version") != STATE_VERSION:
        raise ValueError(
            f"{path}: state version {state.get('version')}, this code reads {STATE_VERSION}; train again"
        )
    effort = float(state["calibrated_effort"]) if l0 is None else l0
    return Params.from_json(state["params"]), Mitigation.parse(state["mitigation"]), effort


class ModelPolicy(Stochastic):
    """A trained network."""

    def __init__(self, model: PPO, *, sampled: bool = False) -> None:
        super().__init__(sampled=sampled)
        self.model = model
        model.policy.set_training_mode(False)

    def probabilities(self, episodes: Episodes | None, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            distribution = self.model.policy.get_distribution(torch.as_tensor(observation))
            categorical: Any = distribution.distribution
            return categorical.probs.double().numpy()
