"""`Job` under the name that code written for upstream imports."""

from pipelinerl.config.machine import Job

__all__ = ["Job"]
