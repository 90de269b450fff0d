"""The whole configuration tree as typed models: composition, validation, reading and writing."""

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.files import load, load_tree, save, typed
from pipelinerl.config.finetune import FinetuneConfig, RLConfig
from pipelinerl.config.machine import DerivedConfig, Job
from pipelinerl.config.roles import ActorConfig, PreprocessConfig
from pipelinerl.config.serving import EngineConfig, WeightsConfig
from pipelinerl.config.tree import Config

__all__ = [
    "ActorConfig",
    "Config",
    "ConfigError",
    "DerivedConfig",
    "EngineConfig",
    "FinetuneConfig",
    "Job",
    "PreprocessConfig",
    "RLConfig",
    "WeightsConfig",
    "load",
    "load_tree",
    "save",
    "typed",
]
