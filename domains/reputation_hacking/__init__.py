"""An Assistant can lower a Worker's effort or only its expectations: a laboratory for reward hacking.

Importing this package needs numpy alone. Where gymnasium is installed it also registers `ReputationEnv-v0`;
stable-baselines3 and matplotlib, of the extra `reputation`, are imported where they are used.
"""

from importlib.util import find_spec

from domains.reputation_hacking.game.dynamics import DO_NOTHING, HELP, SIGNAL, Tape, Tapes
from domains.reputation_hacking.game.params import ENV_ID, Params, preset

__all__ = ["DO_NOTHING", "ENV_ID", "HELP", "SIGNAL", "Params", "Tape", "Tapes", "preset", "register"]


def register() -> None:
    """Make `gymnasium.make("ReputationEnv-v0")` work.

    No `max_episode_steps`: its wrapper would report the end of an episode as a truncation too.
    """
    from gymnasium.envs.registration import register as add
    from gymnasium.envs.registration import registry

    if ENV_ID not in registry:
        add(
            id=ENV_ID,
            entry_point="domains.reputation_hacking.game.env:ReputationEnv",
            vector_entry_point="domains.reputation_hacking.game.vector:ReputationVectorEnv",
        )


if find_spec("gymnasium") is not None:
    register()
