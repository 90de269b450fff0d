"""What a domain hands to the bootstrap recipe, and how it becomes token arrays in random order.

Imported by domains, which run where there is no torch.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf
from tokenizers import Tokenizer

from pipelinerl.domain import load_domain
from pipelinerl.extras.bootstrap.formats import SMALL_CHAT, ChatFormat
from pipelinerl.rollouts import MASKED_TOKEN_ID

_ENCODE_TOGETHER = 256
_SHUFFLE_FIRST, _SHUFFLE_MOST = 4_000, 24_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One call: what the model reads and what it should answer.

    `kind` names the skill for the gates; `exact` says whether this answer is the only right one (the gates
    measure exact ones only; an imperfect or freely chosen answer is trained, not measured). `fixed` is the
    beginning of the completion that has to be so when the rest is free; the gates then measure it alone.
    """

    kind: str
    prompt: str
    completion: str
    exact: bool = True
    fixed: str | None = None


class Encoded(NamedTuple):
    """One demonstration: int32 ids and labels, float32 weights, `[n]` each."""

    input_ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


Source = Callable[[int, str], Iterable[Demonstration]]
"""(seed, phase) -> demonstrations of one small world; equal arguments give equal demonstrations."""


def encode(
    tokenizer: Tokenizer,
    demonstrations: Iterable[Demonstration],
    max_length: int,
    prompt_loss: float,
    chat: ChatFormat = SMALL_CHAT,
) -> Iterator[Encoded]:
    """Token ids, labels and weights of each demonstration.

    Prompt tokens have the weight `prompt_loss`, and no label where it is 0. A demonstration longer than
    `max_length` is an error (ValueError).
    """
    remaining = iter(demonstrations)
    while batch := list(itertools.islice(remaining, _ENCODE_TOGETHER)):
        # The template has written the special tokens already.
        prompts, answers = (
            tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for texts in (
                [chat.before + d.prompt + chat.after for d in batch],
                [d.completion + chat.end for d in batch],
            )
        )
        for demonstration, prompt, answer in zip(batch, prompts, answers):
            ids = np.array(prompt.ids + answer.ids, np.int32)
            if len(ids) > max_length:
                raise ValueError(
                    f"a {demonstration.kind!r} demonstration has {len(ids)} tokens; "
                    f"max_length is {max_length}"
                )
            labels = ids.copy()
            labels[: 1 if prompt_loss else len(prompt.ids)] = MASKED_TOKEN_ID
            weights = np.ones(len(ids), np.float32)
            weights[: len(prompt.ids)] = prompt_loss
            yield Encoded(ids, labels, weights)


def shuffled(
    sequences: Iterable[Encoded],
    random: np.random.Generator,
    first: int = _SHUFFLE_FIRST,
    most: int = _SHUFFLE_MOST,
) -> Iterator[Encoded]:
    """The sequences in random order, drawn from a buffer that grows from `first` to `most` of them.

    Demonstrations of one world share documents and values. Trained on one after the other they are learned
    by heart and forgotten again, instead of being read; apart from each other they can only be read.
    """
    buffer: list[Encoded] = []
    given = 0
    for sequence in sequences:
        buffer.append(sequence)
        if len(buffer) > min(first + given, most):
            at = int(random.integers(len(buffer)))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            yield buffer.pop()
            given += 1
    random.shuffle(buffer)  # type: ignore[arg-type]
    yield from buffer


def demonstrations_of(
    hooks: str | list[str], tree: dict[str, Any], seed: int, phase: str
) -> list[Demonstration]:
    """The demonstrations of a domain; plain values, so that worker processes can be handed it."""
    return list(load_domain(hooks).demonstrations(OmegaConf.create(tree), seed, phase))
