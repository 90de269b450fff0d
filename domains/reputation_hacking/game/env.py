"""The game as a gymnasium environment: `gymnasium.make("ReputationEnv-v0")`, for one Worker."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes, Tape
from domains.reputation_hacking.game.mitigations import Mitigation, Worker, initial_effort
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.terminal import finish, row

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
        self.episode: Episodes | None = None

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
        episode = Episodes(self.params, tape)
        if options.get("worker_memory") is not None:
            self.worker = self.worker.replaced(options["worker_memory"])
        self.episode = episode
        return episode.observation(), {"tape_seed": tape.seed}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        episode = self.episode
        if episode is None or episode.t >= self.params.T:
            raise ResetNeeded("call reset before step: no episode is running")
        episode.step(checked_action(action))
        if episode.t < self.params.T:
            return episode.observation(), 0.0, False, False, {}
        settlement, arrays = finish(episode, self.worker, self.mitigation)
        self.worker = settlement.memory
        info = row(arrays, 0)
        return episode.observation(), info["reward_raw"], True, False, info


def checked_action(action: Any) -> int:
    """The action as an int. Raises ValueError for anything but an integer 0, 1 or 2, also for bool."""
    if type(action) is int and 0 <= action < len(ACTIONS):  # the usual case, and the quickest to tell
        return action
    whole = isinstance(action, int | np.integer) and not isinstance(action, bool)
    if isinstance(action, np.ndarray) and action.shape == () and action.dtype.kind in "iu":
        whole = True
    if not whole or not 0 <= int(action) < len(ACTIONS):
        raise ValueError(f"action {action!r}: choose among 0, 1, 2 ({', '.join(ACTIONS)})")
    return int(action)
