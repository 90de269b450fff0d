"""Whether steps learn anything: the loop tells each step's gradient, and remarks what this says.

Equal rewards are told by preprocess, from the advantages. Here is what only the trainer sees: settings under
which no token of any sample is left in the loss.
"""

from collections.abc import Iterator

from pipelinerl.base.errors import counted
from pipelinerl.config.finetune import RLConfig

GROUPS = 20
"""As many as preprocess waits for before it speaks of equal rewards."""


class IdleWatch:
    """Steps in a row whose gradient is exactly 0; told once, when they have as many samples as 20 groups."""

    def __init__(self, rl: RLConfig, attempts: int) -> None:
        self._rl, self._least = rl, GROUPS * attempts
        self._steps = self._samples = 0
        self._said = False

    def add(self, grad_norm: float, samples: int) -> str | None:
        """What to say behind a step of so many samples."""
        self._steps, self._samples = (self._steps + 1, self._samples + samples) if grad_norm == 0 else (0, 0)
        if self._said or self._samples < self._least:
            return None
        self._said = True
        return (
            f"the gradient of {counted(self._steps, 'step')} in a row ({self._samples} samples) is 0, so "
            f"that nothing is learned: {', or '.join(self._causes())}"
        )

    def _causes(self) -> Iterator[str]:
        yield "every advantage is 0 (equal rewards)"
        if self._rl.overlong_filtering:
            yield (
                "finetune.rl.overlong_filtering=true leaves out samples that were cut, so give more "
                "llm.parameters.max_tokens"
            )
        if (correction := self._rl.correction).mode == "mask":
            yield (
                f"finetune.rl.correction.mode=mask leaves out tokens whose ratio is not within "
                f"{correction.low:g} and {correction.high:g}, so widen these bounds"
            )
        if self._rl.relu_log_p_weights:
            yield "finetune.rl.relu_log_p_weights=true counts what is negative as 0"
        if 0 in self._rl.role_weights.values():
            yield "finetune.rl.role_weights gives roles the weight 0"
