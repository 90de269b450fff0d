"""The game as a gymnasium environment: `gymnasium.make("ReputationEnv-v0")`.

`python -m domains.reputation_hacking.env` plays one episode and prints it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from domains.reputation_hacking.dynamics import ACTIONS, DO_NOTHING, Episode, Episodes, Tape, Tapes, Worker
from domains.reputation_hacking.mitigations import NEEDS_WITHOUT, Mitigation, Outcome, initial_effort, settle
from domains.reputation_hacking.params import Params
from domains.reputation_hacking.terminal import row, terminal_info

TAPE_SEEDS = 2**31


def observation_space() -> gym.spaces.Box:
    """Shares of time, task and fatigue, and difficulty: float32 in [0, 1]."""
    return gym.spaces.Box(0.0, 1.0, (4,), np.float32)


class ReputationEnv(gym.Env[np.ndarray, Any]):
    """One Worker, `params.T` steps an episode, one reward at its end.

    `reset(seed=...)` chooses the noise and never touches the Worker's memory; `options` may hold
    `worker_memory` (a number or a mapping) and `tape` (a `Tape`). Raises ValueError for bad arguments,
    ResetNeeded for a step outside an episode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, the type gymnasium declares

    def __init__(
        self,
        params: Params | None = None,
        mitigation: Mitigation | str = "none",
        render_mode: str | None = None,
        **changes: Any,
    ) -> None:
        if render_mode is not None:
            raise ValueError(f"render_mode={render_mode!r}: this environment draws nothing; leave it out")
        self.params = (params or Params()).but(**changes)
        self.mitigation = Mitigation.parse(mitigation) if isinstance(mitigation, str) else mitigation
        self.worker = Worker.new(initial_effort(self.params))
        self.observation_space = observation_space()
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self.episode: Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        for name in options:
            if name not in ("worker_memory", "tape"):
                raise ValueError(f"reset option {name!r}: choose among worker_memory, tape")
        tape = options.get("tape")
        if tape is None:
            drawn = seed if seed is not None else int(self.np_random.integers(TAPE_SEEDS))
            tape = Tape.from_seed(self.params, drawn)
        episode = Episode(self.params, tape)
        if options.get("worker_memory") is not None:
            self.worker = self.worker.replaced(options["worker_memory"])
        self.episode = episode
        return episode.observation(), {"tape_seed": tape.seed}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.episode is None or self.episode.t >= self.params.T:
            raise ResetNeeded("call reset before step: no episode is running")
        self.episode.step(checked_action(action))
        if self.episode.t < self.params.T:
            return self.episode.observation(), 0.0, False, False, {}
        info = self._settle(self.episode)
        return self.episode.observation(), info["reward_raw"], True, False, info

    def _settle(self, episode: Episode) -> dict[str, Any]:
        finished = as_arrays(episode)
        without = None
        if self.mitigation.name in NEEDS_WITHOUT:
            alone = Episode(self.params, episode.tape)
            for _ in range(self.params.T):
                alone.step(DO_NOTHING)
            without = np.array([alone.effort])
        outcome = Outcome.of(finished, self.mitigation, without)
        settlement = settle(self.params, outcome, self.worker, self.mitigation)
        self.worker = settlement.memory
        return row(terminal_info(finished, settlement), 0)


def as_arrays(episode: Episode) -> Episodes:
    """A finished scalar episode in the form that settling reads."""
    arrays = Episodes(episode.params, Tapes.stack([episode.tape]))
    arrays.t = episode.t
    arrays.actions[:, 0], arrays.works[:, 0] = episode.actions, episode.works
    arrays.effort[0], arrays.k[0] = episode.effort, episode.k
    return arrays


def checked_action(action: Any) -> int:
    """The action as an int. Raises ValueError for anything but an integer 0, 1 or 2, also for bool."""
    whole = isinstance(action, int | np.integer) and not isinstance(action, bool)
    if isinstance(action, np.ndarray) and action.shape == () and action.dtype.kind in "iu":
        whole = True
    if not whole or not 0 <= int(action) < len(ACTIONS):
        raise ValueError(f"action {action!r}: choose among 0, 1, 2 ({', '.join(ACTIONS)})")
    return int(action)


def demo() -> None:
    """Play an episode of HELP while the Worker works and print it."""
    env = ReputationEnv()
    observation, info = env.reset(seed=0)
    print(f"tape seed {info['tape_seed']}; the Worker expects {env.worker.expected_effort[0]:.2f}")
    ended = False
    while not ended:
        assert env.episode is not None
        action = 1 if env.episode.working else 2
        t = env.episode.t
        observation, reward, ended, _, info = env.step(action)
        shown = " ".join(f"{value:.3f}" for value in observation)
        print(f"step {t:2d}  {ACTIONS[action]:<10}  effort {env.episode.e:.3f}  observation {shown}")
    print(f"reward {reward:.3f}; " + ", ".join(f"{key} {value:.4g}" for key, value in info.items()))


if __name__ == "__main__":
    demo()
