"""What `auto` means for the trainer of this run: what is recomputed, what is compiled, and why.

The launcher's plan asks once; the answer is in section `derived` of the run's configuration, and the table of
choices has the reasons. What compiled layers recompute is the memory plan's, where there is one: it counted
the bytes with that. It counts layers that are not compiled yet as recomputing everything, and here they
recompute less if there is room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelinerl.config.choice import Choice
from pipelinerl.config.finetune import COMPILE_WORTH_S, Checkpointing
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.launcher.cards import Card, CardOf, card_memory
from pipelinerl.launcher.decoder_shape import (
    decoder_shape,
    has_states,
    model_config,
)
from pipelinerl.launcher.memory_plan import ROOM
from pipelinerl.launcher.memory_values import TrainerPlan
from pipelinerl.launcher.trainer_memory import (
    NO_KERNEL,
    frozen_bytes,
    least_recomputed,
    never_compiled,
    state_bytes,
    tokens_of_rank,
)
from pipelinerl.modeling.delta_kernel import Missing, kernel_missing

GB = 1e9


@dataclass(frozen=True)
class TrainerChoice:
    """Values of section `derived`, and why; no reason where a key says so."""

    compile: bool | Literal["later"]
    gradient_checkpointing: Checkpointing
    compiled_checkpointing: Checkpointing
    because_compile: str
    because_checkpointing: str
    whole_on_host: bool = False
    missing: Missing | None = None
    """Why layers with a state go without their kernel on a card."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The same by key; where a key of the trainer says so, that is the reason."""
        layers = self.because_checkpointing or "finetune.gradient_checkpointing"
        return (
            Choice("derived.compile", self.compile, self.because_compile or "finetune.compile"),
            Choice("derived.gradient_checkpointing", self.gradient_checkpointing, layers),
            Choice("derived.compiled_checkpointing", self.compiled_checkpointing, layers),
            Choice("derived.whole_on_host", self.whole_on_host, "the memory plan"),
        )


NO_TRAINER = TrainerChoice(False, False, False, "no trainer", "no trainer")
"""Of a partial run; nobody reads it."""


def choose_trainer(
    cfg: Config,
    devices: Sequence[str],
    dry_run: bool,
    memory_of: CardOf = card_memory,
    planned: TrainerPlan | None = None,
) -> TrainerChoice:
    """What the trainer of a placed run does; `devices` are the ids that its `job.gpus` counts.

    `planned` is what the memory plan says of it, if there is one.

    A partial run may have no trainer. A dry run, perhaps on another machine, asks neither a hub for the
    model's sizes nor a card for its memory unless they are there.
    """
    if not cfg.jobs_of("finetune"):
        return NO_TRAINER
    config = model_config(cfg.policy_path, ask_hub=cfg.trainer_on_gpu and not dry_run)
    cards = _cards(cfg, devices, memory_of)
    hopper = any(card is not None and card.hopper for card in cards)
    missing = kernel_missing(hopper) if cfg.trainer_on_gpu and has_states(config) else None
    compiles, because_compile = _compile(cfg, missing)
    if planned is not None and planned.compiled_first:
        compiles, because_compile = True, "the first steps would not fit without"
    eager, compiled, because = _checkpointing(cfg, config, _room(cfg, cards), planned, missing)
    whole_on_host = planned is not None and planned.whole_on_host
    return TrainerChoice(compiles, eager, compiled, because_compile, because, whole_on_host, missing)


def _compile(cfg: Config, missing: Missing | None) -> tuple[bool | Literal["later"], str]:
    tune = cfg.finetune
    if tune.compile != "auto":
        return tune.compile, ""
    if not cfg.trainer_on_gpu:
        return False, "on a CPU"
    if reason := never_compiled(tune, missing is not None):
        return False, reason
    return "later", f"if {COMPILE_WORTH_S / 60:.0f} minutes of work are left after two steps"


def _checkpointing(
    cfg: Config,
    config: dict[str, Any] | None,
    room: float | None,
    planned: TrainerPlan | None,
    missing: Missing | None,
) -> tuple[Checkpointing, Checkpointing, str]:
    """What is recomputed in layers as they are and in compiled ones, and why."""
    tune = cfg.finetune
    given = tune.gradient_checkpointing
    if given != "auto":
        return given, given, ""
    if not cfg.trainer_on_gpu:
        return False, False, "on a CPU"
    if tune.reentrant_checkpointing:
        return True, True, "finetune.reentrant_checkpointing=true"
    if missing is not None:
        return True, True, NO_KERNEL
    shape = decoder_shape(config)
    if not tune.load_as_bf16 or not tune.use_flash_attention:
        return True, True, "not measured for attention sample by sample"
    if shape is not None and shape.experts:
        return True, True, "not measured for layers with experts"
    if shape is None or room is None:
        unknown = f"the sizes of {cfg.policy_path}" if shape is None else "the card's memory"
        return True, True, f"{unknown} cannot be read"
    ranks = cfg.derived.trainer_ranks
    state = state_bytes(shape, tune, ranks, cfg.sharding, planned is not None and planned.whole_on_host)
    if any(job.gpus for job in cfg.jobs_of("preprocessor")):  # scores on the trainer's last card
        state += frozen_bytes(cfg, shape)
    row = tokens_of_rank(tune), state, room, tune.shares_prefixes
    plain = least_recomputed(shape, False, *row)
    compiled = planned.recomputed if planned is not None else least_recomputed(shape, True, *row)
    sizes = f"{room / GB:.0f} GB of a card, weights and optimizer {state / GB:.0f} GB"
    over = f" over {tune.seq_parallel} ranks" if tune.seq_parallel > 1 else ""
    return plain, compiled, f"{sizes}, rows of {tune.seq_length} tokens{over}"


def _cards(cfg: Config, devices: Sequence[str], memory_of: CardOf) -> list[Card | None]:
    """The trainer's cards on one of its hosts, None for one that does not tell; none on a CPU."""
    if not cfg.trainer_on_gpu:
        return []
    trainer = cfg.jobs_of("finetune")[0]  # on each of its hosts the trainer has as many
    return [memory_of(devices[index]) if index < len(devices) else None for index in trainer.gpus]


def _room(cfg: Config, found: Sequence[Card | None]) -> float | None:
    """Bytes that each rank may plan with, None if some card does not tell."""
    cards = [card for card in found if card is not None]
    if not cards or len(cards) < len(found):
        return None
    trainer = cfg.jobs_of("finetune")[0]
    free = min(card.free for card in cards)
    for job in cfg.jobs_of("actor_llm"):
        if job.node_rank == trainer.node_rank and set(job.gpus) & set(trainer.gpus):
            free -= int(engine_kind(cfg).card_share(cfg) * max(card.total for card in cards))
    return ROOM * free
