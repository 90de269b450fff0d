"""How many tokens a second engines could sample if reading their cards' memory were all that takes time.

The launcher's plan writes `EngineReads` into the run's tree; the report and `benchmarks.gpu` ask it.
"""

from typing import NamedTuple

from pydantic import Field

from pipelinerl.config.base import Section


class Speed(NamedTuple):
    """What a card does in a second."""

    flops: float
    """bfloat16 operations without sparsity."""
    bandwidth: float
    """Bytes of its memory."""


SPEEDS = {
    "B200": Speed(2250e12, 8.0e12),
    "H200 NVL": Speed(835e12, 4.8e12),
    "H200": Speed(989e12, 4.8e12),
    "H100 NVL": Speed(835e12, 3.9e12),
    "H100 PCIE": Speed(756e12, 2.0e12),
    "H100": Speed(989e12, 3.35e12),
    "H20": Speed(148e12, 4.0e12),
    "A100": Speed(312e12, 2.0e12),
    "L40S": Speed(362e12, 0.864e12),
    "L40": Speed(181e12, 0.864e12),
    "L4": Speed(121e12, 0.3e12),
    "A10": Speed(125e12, 0.6e12),
}
"""By part of a card's name in capitals, longer names first (H200 is no H20): NVIDIA's data sheets, SXM where
the name does not say otherwise."""


def nominal_speed(card: str) -> Speed | None:
    """Of a card with this name, by the data sheet; None for other cards."""
    return next((speed for kind, speed in SPEEDS.items() if kind in card.upper()), None)


class EngineReads(Section):
    """Bytes that an engine reads on each of its cards to sample tokens."""

    card: str = ""
    """Name of the card, as the driver says it."""
    weights: float = Field(gt=0)
    """Weights that a step reads: all experts, and of an embedding that is not the output head nothing."""
    token: float = Field(ge=0)
    """Keys and values of one token in the layers that attend to the whole context."""
    windowed: float = Field(0.0, ge=0)
    """Keys and values of one token in the layers with a window."""
    window: int = Field(0, ge=0)
    """Tokens that those layers look back."""
    state: float = Field(0.0, ge=0)
    """State of a request, whatever its length."""
    copies: int = Field(1, ge=1)
    """Copies of the weights in an engine (data parallel), among which its requests are divided."""
    sharing: int = Field(1, ge=1)
    """Engines that read from the same card."""
    trainer_alike: bool = False
    """Whether the trainer's cards are of the same kind, so that what they measure holds for this one."""

    def tokens_per_second(self, requests: float, context: float, bandwidth: float) -> float:
        """The most that one engine could sample with `requests` in flight.

        A step reads the weights W once and for each of R requests its keys and values, k bytes for each of
        the c tokens of its context, and samples R tokens. At B bytes a second it takes (W + R k c) / B, so
        that R / ((W + R k c) / B) = B / (W / R + k c) tokens a second are the limit. Arithmetic, prompts and
        the engine's own process come on top; engines on one card share B. `context`: mean over sampled tokens
        of the tokens that each attends to; `bandwidth`: B of one card.
        """
        held = self.token * context + self.windowed * min(context, self.window) + self.state
        read = self.weights / (requests / self.copies) + held
        return self.copies * bandwidth / self.sharing / read


def mean_context(prompt: float, output: float) -> float:
    """Tokens that a sampled token of an answer of `output` tokens attends to, on average.

    The j-th of them, counted from 1, is computed from the prompt and the j - 1 tokens before it.
    """
    return prompt + (output - 1) / 2
