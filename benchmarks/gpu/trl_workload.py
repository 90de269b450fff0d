"""The work of `benchmarks.gpu.trl`, which this project and TRL do alike: prompts, lengths, rewards.

`hosts` is that of `benchmarks.gpu.several_hosts`: completions are short, so that the trainer limits and its
steps are even.

Standard library only, because TRL's trainer imports it in an environment of its own.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

PROMPTS = 4096
TEMPLATE_TOKENS = 2
"""What the chat template of the small tokenizer puts around a user's message."""


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens, all of them exact: no completion ends before its last token."""

    model: str
    """A size of `benchmarks.gpu.served`."""
    prompt: int
    """Of the rendered prompt."""
    sampled: int
    """Of a completion."""
    group: int
    """Completions of one prompt."""
    texts: int
    """Of an optimizer step."""
    rows: int
    """Rows of TRL's optimizer step, which ends after so many however many texts they hold: about `texts`."""
    row: int
    """Most tokens in one row of the trainer."""
    in_flight: int
    """Requests at a time."""
    context: int
    """Most tokens of a request that the engine serves."""
    updates: int = 4
    """How many updates old a text may be when it is trained."""
    learning_rate: float = 1e-6


WORKLOADS = {
    "gpu": Workload("1.7B", 518, 512, group=8, texts=256, rows=9, row=16_384, in_flight=512, context=2048),
    "hosts": Workload(
        "0.6B", 386, 64, group=8, texts=128, rows=4, row=16_384, in_flight=512, context=512, updates=16
    ),
    "cpu": Workload("tiny", 48, 16, group=4, texts=16, rows=2, row=256, in_flight=32, context=128),
}


def prompts(work: Workload, count: int = PROMPTS) -> list[str]:
    """Messages of random digits, each of them one token of the small tokenizer."""
    drawn = random.Random(0)
    return ["".join(drawn.choices("0123456789", k=work.prompt - TEMPLATE_TOKENS)) for _ in range(count)]


def reward(sampled_ids: Sequence[int]) -> float:
    """Parity of the ids' sum: half of a group has it, and nothing can learn it."""
    return float(sum(sampled_ids) % 2)
