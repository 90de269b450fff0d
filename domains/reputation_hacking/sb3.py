"""Names that saved models and scripts import from here: the code is in `ppo/sb3.py` and `ppo/models.py`.

A `trained_model.zip` refers to `ScaledFeatures` by this module's name if it was saved before the rooms.
"""

from domains.reputation_hacking.ppo.models import ModelPolicy, ScaledFeatures, load_model, model_params
from domains.reputation_hacking.ppo.sb3 import ReputationVecEnv

__all__ = ["ModelPolicy", "ReputationVecEnv", "ScaledFeatures", "load_model", "model_params"]
