"""Settings of the domain: the block `tir`, and the keys that upstream's configurations have for the same."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from domains.blocks import Block, validated
from pipelinerl.extras.sandbox.host import Limits, Sandbox

KEY = "tir"
UPSTREAM = {
    "sandbox_timeout": "timeout_s",
    "actor.agent_max_loops": "max_turns",
    "actor.max_reasoning_steps": "max_turns",
}
"""Keys of upstream's files, and what they are here; they go before the block."""
NOT_TAKEN = ("python_tool_shaping", "length_shaping")
"""Parts of the reward that upstream's files may name and that are not given here."""


class TirSettings(Block):
    """How a dialogue with the tool goes."""

    max_turns: int = Field(4, ge=1)
    """Answers of the model; the last one runs no program."""
    timeout_s: float = Field(5.0, gt=0)
    """Of one program, in seconds of its own; twice that on the clock, for a machine that is busy."""
    memory_mb: int = Field(512, ge=128)
    """Address space of one program."""
    output_chars: int = Field(2000, ge=1)
    """Of a program's output that the model reads, half from its beginning and half from its end."""
    at_once: int = Field(2, ge=1)
    """Programs that run at a time, of each actor worker."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import besides the standard library, with those that these import:
    sympy and mpmath."""
    join: bool = True
    """A dialogue is one text with several sampled spans; false: a text for each answer."""

    def sandbox(self) -> Sandbox:
        """One with these limits."""
        limits = Limits(cpu_s=self.timeout_s, wall_s=2 * self.timeout_s, memory_mb=self.memory_mb)
        return Sandbox(limits, at_once=self.at_once, packages=self.packages)


def settings_of(cfg: DictConfig) -> TirSettings:
    """The block of a run's tree. Raises ValueError with one line."""
    for key in NOT_TAKEN:
        if cfg.get(key):
            raise ValueError(f"{key}: is not given here and would change the reward; leave it out")
    block = cfg.get(KEY)
    values: dict[str, Any] = {} if block is None else dict(OmegaConf.to_container(block, resolve=True))  # type: ignore[arg-type]
    for theirs, ours in UPSTREAM.items():
        value = OmegaConf.select(cfg, theirs)
        if value is not None:
            values[ours] = value
    return validated(values, KEY, TirSettings)
