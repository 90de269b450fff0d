"""One episode of HELP while the Worker works, printed: `python -m domains.reputation_hacking.env`.

The environment itself is `ReputationEnv` in `game/env.py`, which scripts import from here too.
"""

from domains.reputation_hacking.game.dynamics import ACTIONS, HELP, SIGNAL
from domains.reputation_hacking.game.env import ReputationEnv
from pipelinerl.base.errors import leave

__all__ = ["ReputationEnv"]


def demo() -> int:
    """Play and print."""
    env = ReputationEnv()
    observation, info = env.reset(seed=0)
    print(f"tape seed {info['tape_seed']}; the Worker expects {env.worker.expected_effort[0]:.2f}")
    ended = False
    while not ended:
        assert env.episode is not None
        t, action = env.episode.t, HELP if env.episode.working else SIGNAL
        observation, reward, ended, _, info = env.step(action)
        shown = " ".join(f"{value:.3f}" for value in observation)
        print(f"step {t:2d}  {ACTIONS[action]:<10}  effort {env.episode.e:.3f}  observation {shown}")
    print(f"reward {reward:.3f}; " + ", ".join(f"{key} {value:.4g}" for key, value in info.items()))
    return 0


if __name__ == "__main__":
    leave("env", demo)
