"""N episodes in lock step as one environment, numpy only; PPO and gymnasium's vector interface use it.

Below about 16 episodes the single environment of `env.py` is faster.
"""

from collections.abc import Sequence

import numpy as np

try:
    from gymnasium.error import ResetNeeded
except ImportError:  # the game needs numpy alone
    ResetNeeded = RuntimeError  # type: ignore[misc, assignment]

from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes, Tapes
from domains.reputation_hacking.game.mitigations import NONE, Memory, Mitigation, Worker, initial_effort
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.terminal import finish


class BatchEnv:
    """N environments that start and end together, each with a Worker of its own.

    Memory lives from episode to episode: `reset` keeps it unless told otherwise, the last step of an episode
    changes it once. Without seeds, noise is drawn in bulk from the environment's own generator.
    """

    def __init__(
        self,
        params: Params,
        count: int,
        *,
        mitigation: Mitigation = NONE,
        seed: int | None = None,
        worker_memory: Memory | None = None,
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"count={count!r}: choose an integer of at least 1")
        self.params, self.count, self.mitigation = params, count, mitigation
        self.rng = np.random.default_rng(seed)
        self.worker = Worker.new(0.0 if worker_memory is not None else initial_effort(params), count)
        if worker_memory is not None:
            self.worker = self.worker.replaced(worker_memory)
        self.episodes: Episodes | None = None

    def reset(
        self, seeds: Sequence[int] | np.ndarray | None = None, worker_memory: Memory | None = None
    ) -> np.ndarray:
        """Start N episodes; returns observations float32 [N, 4]. Raises ValueError unless all N are reset."""
        if seeds is None:
            tapes = Tapes.draw(self.params, self.count, self.rng)
        elif np.shape(seeds) == (self.count,):
            tapes = Tapes.from_seeds(self.params, seeds)
        else:
            raise ValueError(
                f"reset got seeds of shape {np.shape(seeds)}; all {self.count} episodes start together"
            )
        episodes = Episodes(self.params, tapes)
        if worker_memory is not None:
            self.worker = self.worker.replaced(worker_memory)
        self.episodes = episodes
        return episodes.observation()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool, dict[str, np.ndarray]]:
        """(observations float32 [N, 4], rewards float64 [N], whether all ended, info).

        `info` is empty until the last step and then holds the arrays of `terminal_info`. Raises ValueError
        for bad actions, leaving the state as it was, and ResetNeeded outside an episode.
        """
        if self.episodes is None or self.episodes.t >= self.params.T:
            raise ResetNeeded("call reset before step: no episode is running")
        self.episodes.step(self._checked(actions))
        observation = self.episodes.observation()
        if self.episodes.t < self.params.T:
            return observation, np.zeros(self.count), False, {}
        settlement, info = finish(self.episodes, self.worker, self.mitigation)
        self.worker = settlement.memory
        return observation, settlement.reward, True, info

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        array = np.asarray(actions)
        if array.dtype.kind not in "iu" or array.shape != (self.count,):
            raise ValueError(
                f"actions have dtype {array.dtype} and shape {array.shape}; "
                f"give integers of shape ({self.count},)"
            )
        if array.min() < 0 or array.max() >= len(ACTIONS):
            bad = array[(array < 0) | (array >= len(ACTIONS))][0]
            raise ValueError(f"action {bad}: choose among 0, 1, 2 ({', '.join(ACTIONS)})")
        return array
