"""The game as a gymnasium environment: `gymnasium.make("ReputationEnv-v0")`, for one Worker."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes, Tape
from domains.reputation_hacking.game.mitigations import Mitigation, Worker, initial_effort
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.terminal import finish, row
from domains.reputation_hacking.game.tracing import TRACE_MAX_MB, Tracer

TAPE_SEEDS = 2**31


def observation_space() -> gym.spaces.Box:
    """Shares of time, task and fatigue, and difficulty: float32 in [0, 1]."""
    return gym.spaces.Box(0.0, 1.0, (4,), np.float32)


class ReputationEnv(gym.Env[np.ndarray, Any]):
    """One Worker, `params.T` steps an episode, one reward at its end.

    `reset(seed=...)` chooses the noise and never touches the Worker's memory; `options` may hold
    `worker_memory` (a number or a mapping) and `tape` (a `Tape`). `trace` names a file of JSON lines that is
    started anew and gets each episode when it ends, or when it is left by `reset` or `close`, up to
    `trace_max_mb` (`game/tracing.py`). Raises ValueError for bad arguments, ResetNeeded for a step outside
    an episode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, the type gymnasium declares

    def __init__(
        self,
        params: Params | None = None,
        mitigation: Mitigation | str = "none",
        render_mode: str | None = None,
        trace: str | Path | None = None,
        trace_max_mb: float = TRACE_MAX_MB,
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
        self._tracer = None if trace is None else self._opened(Path(trace), trace_max_mb)
        self._traced = 0

    def _opened(self, path: Path, max_mb: float) -> Tracer:
        try:
            tracer = Tracer(path, max_mb)
        except OSError as error:
            raise ValueError(f"trace={path}: cannot write there ({error.strerror})") from None
        tracer.meta(run="env", params=self.params.to_json(), mitigation=str(self.mitigation))
        return tracer

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, which does not trace: two writers of one file would mix their episodes."""
        return {**vars(self), "_tracer": None}

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
        self._trace_unfinished()
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
        if self._tracer is not None:
            self._tracer.episode(episode, arrays, 0, self._traced)
            self._tracer.flush()
            self._traced += 1
        return episode.observation(), info["reward_raw"], True, False, info

    def _trace_unfinished(self) -> None:
        episode = self.episode
        if self._tracer is None or episode is None or not 0 < episode.t < self.params.T:
            return
        expected = float(self.worker.expected_effort[0])
        actions = episode.actions[: episode.t].tolist()
        self._tracer.steps(self.params, episode.tape, actions, expected, self._traced)
        self._tracer.flush()
        self._traced += 1

    def close(self) -> None:
        """End the trace, if there is one."""
        self._trace_unfinished()
        if self._tracer is not None:
            self._tracer.close()
            self._tracer = None
        super().close()


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
