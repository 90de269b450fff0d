"""The reinforcement-learning objective: advantages, filter, loss weights and policy losses."""

from pipelinerl.config.finetune import RLConfig

__all__ = ["RLConfig"]
