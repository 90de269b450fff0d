"""What the memory plan is asked and what it answers: values without any arithmetic."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.card_limit import EngineReads
from pipelinerl.config.finetune import Checkpointing, Sharding
from pipelinerl.launcher.cards import Card


class DoesNotFit(ConfigError):
    """A plan that no card can hold; the message has the numbers."""


class EnginePlan(NamedTuple):
    """One engine: each of its cards has the same bytes."""

    cards: int
    share: float
    """`gpu-memory-utilization`."""
    ahead: bool
    """Whether versions are received into a second copy."""
    requests: int
    """Requests of the usual length that its cache holds, at most those that are wanted."""
    parts: Mapping[str, float]
    """Bytes of a card by what they are for."""
    records: float = 0.0
    """Bytes of host memory in which it keeps the experts of tokens."""
    reads: EngineReads | None = None
    """What sampling reads on each card."""


class TrainerPlan(NamedTuple):
    """The trainer; the main rank needs most, and every rank is planned as it."""

    ranks: int
    sharding: Sharding | None
    whole_on_host: bool
    """Whether the copy that is gathered for the engines lies in host memory meanwhile."""
    parts: Mapping[str, float]
    recomputed: Checkpointing
    """What compiled layers recompute in these bytes."""
    compiled_first: bool = False
    """Whether layers have to be compiled before the first step, because they need less memory so."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Who gets which cards, and what lies on them."""

    card: Card
    engines: int
    engine: EnginePlan | None
    trainer: TrainerPlan | None
    shared: bool = False
    """Whether engine and trainer have one card together."""
    divided: bool = False
    """Whether the division of the cards was free, and chosen."""
    behind: Card | None = None
    """The least of the trainer's cards; None: as `card`."""

    host: Mapping[str, float] | None = None
    """Bytes of host memory by what they are for (`host_memory`); None: not known, as on several hosts."""
    host_available: int | None = None
    """What the host can give; None: not known, as for imagined cards."""

    @property
    def trainer_card(self) -> Card:
        """The card that each trainer rank has."""
        return self.behind or self.card

    def lines(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Each kind of card, and its bytes by what they are for."""
        if self.engine is not None:
            yield "engine", self.engine.parts
        if self.trainer is not None:
            yield "trainer", self.trainer.parts


class Asked(NamedTuple):
    """What the plan has to know beside the configuration."""

    texts: int
    """Samples that may be under way: what the age of weights admits, or one update where it has no bound."""
    in_flight: int | None = None
    """`actor.llm_max_rollouts` or `max-num-seqs` where the user gave one."""
    one_host: bool = True
    """Whether the cards are those of one host, which alone are divided freely."""
    placed: Callable[[int], tuple[int, int]] | None = None
    """Engines and trainer ranks where an engine has so many cards and the division is not free; None: by the
    shares of one host."""
    rows_open: bool = False
    """Whether a launch may shorten rows, because the command line does not say how long they are."""
    host_available: int | None = None
    """Bytes of memory that the host of all cards can give; None where it is not compared."""
