"""Settings of the domain: the block `coding`, and keys of upstream's configurations for the same."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from domains.blocks import Block, validated
from pipelinerl.extras.sandbox.host import Limits, Sandbox

KEY = "coding"
UPSTREAM = {"sandbox_timeout": "timeout_s", "max_tests_per_problem": "max_tests"}
"""Keys at the top level of upstream's file, and what they are here; they go before the block."""


class CodingSettings(Block):
    """How a completion's code is run."""

    timeout_s: float = Field(10.0, gt=0)
    """Of each process of a test, in seconds of its own; twice that on the clock, for a busy machine."""
    max_tests: int = Field(5, ge=0)
    """Of one problem, the first ones; 0: all."""
    memory_mb: int = Field(512, ge=128)
    """Address space of each process of a test."""
    at_once: int = Field(2, ge=1)
    """Tests that run at a time, of each actor worker."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import besides the standard library, with those that these
    import."""

    def sandbox(self) -> Sandbox:
        """One with these limits."""
        limits = Limits(cpu_s=self.timeout_s, wall_s=2 * self.timeout_s, memory_mb=self.memory_mb)
        return Sandbox(limits, at_once=self.at_once, packages=self.packages)


def settings_of(cfg: DictConfig) -> CodingSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    block = cfg.get(KEY)
    values: dict[str, Any] = {} if block is None else dict(OmegaConf.to_container(block, resolve=True))  # type: ignore[arg-type]
    values |= {ours: cfg[theirs] for theirs, ours in UPSTREAM.items() if cfg.get(theirs) is not None}
    return validated(values, KEY, CodingSettings)
