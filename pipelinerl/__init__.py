"""Asynchronous reinforcement learning for language-model agents."""

from pipelinerl.compat.import_names import AliasFinder, extras, install

__version__ = "0.1.0"

install(AliasFinder("pipelinerl.", extras))
