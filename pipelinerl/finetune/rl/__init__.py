"""The reinforcement-learning objective: advantages, filter, loss weights and policy losses."""

from pipelinerl.finetune.rl.config import RLConfig

__all__ = ["RLConfig"]
