"""`TrainerState` under the name that code written for upstream imports."""

from pipelinerl.run_state.announcements import TrainerState

__all__ = ["TrainerState"]
