"""What the memory plan decides where keys are open, with the reasons; refuses what does not fit.

Called by the launcher's plan before the configuration is checked. Where the model's sizes or the cards cannot
be read the usual values are chosen: halves of the cards, 0.9 of an engine's card, nothing sharded.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelinerl.base.errors import ConfigError, counted
from pipelinerl.config.choice import Choice, with_choices
from pipelinerl.config.compose import Composition
from pipelinerl.config.files import typed
from pipelinerl.config.hosts import Host
from pipelinerl.config.machine import DerivedConfig, roles_of
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.launcher.cards import GIB, Card, CardOf, card_memory, imagined_cards
from pipelinerl.launcher.decoder_shape import DecoderShape, decoder_shape, has_states, model_config
from pipelinerl.launcher.engine_memory import MOST_SHARE
from pipelinerl.launcher.host_memory import available_memory, check_host, host_bytes
from pipelinerl.launcher.memory_plan import FEWEST, MOST, memory_plan, wanted_requests
from pipelinerl.launcher.memory_values import Asked, DoesNotFit, MemoryPlan
from pipelinerl.launcher.placement import Place, derive, layout
from pipelinerl.launcher.sharing import engine_share, equal_share, without_sizes
from pipelinerl.modeling.delta_kernel import kernel_missing
from pipelinerl.weights.transports.base import transport_kind, transport_named

UTILIZATION = "vllm_config.vllm_kwargs.gpu-memory-utilization"
TENSOR_PARALLEL = "vllm_config.vllm_kwargs.tensor-parallel-size"
AHEAD, FSDP, TRANSPORT = "weights.ahead", "use_fsdp", "weights.transport"
ACTOR, FINETUNE = "world.actor_fraction", "world.finetune_fraction"
IN_FLIGHT, MOST_SEQUENCES = "actor.llm_max_rollouts", "vllm_config.vllm_kwargs.max-num-seqs"
ROWS, ROW_STEP = "finetune.seq_length", 256
MOST_CARDS = 8
"""Of a host, when more cards are proposed."""


CACHE_BYTES = "vllm_config.vllm_kwargs.kv-cache-memory-bytes"
BESIDE = "vLLM would count what other engines of the card take as its own"
SIZED, SHARED = "room for a second copy of the weights", "one GPU for engine and trainer"
UNKNOWN = "the sizes of model or card are not known"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A composed configuration, and what was chosen before it is checked and placed."""

    configuration: Composition
    choices: tuple[Choice, ...]
    """In the order in which they are applied."""
    memory: MemoryPlan | None = None
    """None where nothing is known of model or cards."""

    @cached_property
    def tree(self) -> DictConfig:
        """A copy of the composed tree with the choices."""
        return with_choices(self.configuration.tree, self.choices)

    @property
    def reasons(self) -> dict[str, str]:
        """Why chosen keys have their values."""
        return {one.key: one.because for one in (*self.configuration.choices, *self.choices)}


def choose_memory(
    composition: Composition,
    hosts: Sequence[Host],
    dry_run: bool,
    card_of: CardOf = card_memory,
    host_of: Callable[[], int | None] = available_memory,
) -> Chosen:
    """Decide what the tree leaves open about memory, division of the cards and rollouts in flight.

    A dry run, perhaps on another machine, asks no hub for the model's sizes. Raises ConfigError for what does
    not fit, with the smallest change that does.
    """
    tree, choices, plan, refused = composition.tree, list[Choice](), None, ""
    on_gpus = tree.hardware.kind == "gpu"
    imagined = imagined_cards(tree.hardware.devices) if on_gpus else None
    if on_gpus:
        choices += _share_transport(tree, composition.user_keys, hosts)
        _check_numbers(tree)
    try:
        cfg = typed(with_choices(tree, choices))
        cards = [imagined[1]] * imagined[0] * len(hosts) if imagined else _cards(cfg, hosts, card_of)
        config = model_config(cfg.policy_path, ask_hub=bool(cards) and not dry_run)
        if has_states(config):
            hopper = any(card.hopper for card in cards)
            refused = _refused_with_states(cfg, hopper)
            choices += engine_kind(cfg).of_states(cfg)
        texts, one_host = _texts(cfg, derive(cfg, [])), len(hosts) == 1
        rows_open = ROWS not in composition.user_keys
        available = host_of() if one_host and not imagined else None
        placed = partial(_placed, cfg, hosts)
        asked = Asked(texts, _given_requests(tree), one_host, placed, rows_open, available)
        shape = decoder_shape(config)
        if shape is not None and cards:
            rows = list(_rows_that_fit(cfg, shape, cards, asked))
            choices += rows
            cfg = _changed(cfg, {"finetune": {"seq_length": rows[0].value}}) if rows else cfg
        plan = _plan(cfg, shape, cards, asked)
        if plan is not None and shape is not None and one_host:
            plan = _with_host(cfg, shape, plan, available)
    except DoesNotFit:
        raise
    except ValueError:  # a ConfigError, or a flag that is no number: the checks, which come next, say it
        return Chosen(configuration=composition, choices=tuple(choices))
    if refused:
        raise ConfigError(refused)
    if on_gpus:
        usual = _usual_share(cfg, hosts, cards, dry_run) if plan is None else 0.0
        open_ones = _of_unknown(cfg, usual, bool(cards)) if plan is None else _of_plan(cfg, plan)
        choices += [one for one in open_ones if OmegaConf.select(tree, one.key) in (None, "auto")]
    choices += _choose_in_flight(with_choices(tree, choices), hosts, plan)
    return Chosen(configuration=composition, choices=tuple(choices), memory=plan)


def _refused_with_states(cfg: Config, hopper: bool) -> str:
    """What was asked for and cannot be where layers have a state; empty if nothing was."""
    missing = kernel_missing(hopper) if cfg.hardware.kind == "gpu" else None
    if cfg.finetune.compile is True and missing is not None:
        said = f"layers with a state are not compiled without their kernel ({missing.because})"
        return f"finetune.compile=true: {said}; {missing.remedy}, or set finetune.compile=auto"
    return ""


def _cards(cfg: Config, hosts: Sequence[Host], card_of: CardOf) -> list[Card]:
    """The cards of every host; none if they cannot be asked. Those of other hosts count as the launcher's."""
    if cfg.hardware.kind != "gpu" or not engine_kind(cfg).planned:
        return []
    here = [card_of(device) for device in hosts[0].devices]
    known = [card for card in here if card is not None]
    if not known or len(known) < len(here):
        return []
    return known + [known[0]] * sum(len(host.devices) for host in hosts[1:])


def _with_host(cfg: Config, shape: DecoderShape, plan: MemoryPlan, available: int | None) -> MemoryPlan:
    """The plan with what it takes of the host's memory. Raises DoesNotFit for more than there is."""
    parts = host_bytes(cfg, shape, plan)
    check_host(parts, available)
    return replace(plan, host=parts, host_available=available)


def _given_requests(tree: DictConfig) -> int | None:
    """Requests in flight that the tree asks for; typed, null would be the number of a CPU."""
    return next((one for key in (IN_FLIGHT, MOST_SEQUENCES) if (one := _number(tree, key)) is not None), None)


def _number(tree: DictConfig, key: str) -> int | None:
    """A number of the tree, also one in quotes; None for anything else, which the checks refuse."""
    value = OmegaConf.select(tree, key)
    number = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if number or (isinstance(value, str) and value.isdecimal()) else None


def _check_numbers(tree: DictConfig) -> None:
    """Raises ConfigError for flags of vLLM that the plan computes with and that are no numbers."""
    for name in ("max-num-batched-tokens", "kv-cache-memory-bytes", MOST_SEQUENCES.rpartition(".")[2]):
        key = f"vllm_config.vllm_kwargs.{name}"
        value = OmegaConf.select(tree, key)
        if value not in (None, "") and _number(tree, key) is None:
            raise ConfigError(f"{key}={value}: not a whole number; set one, such as 8192")


def _placed(cfg: Config, hosts: Sequence[Host], cards: int) -> tuple[int, int]:
    """Engines of so many cards and trainer ranks, as they will be placed. Raises ConfigError."""
    size = _tensor_parallel(cfg, cards)
    sized = _changed(cfg, {"vllm_config": {"vllm_kwargs": {"tensor-parallel-size": size}}})
    places = layout(sized, hosts)
    return len(places.engines) // cfg.engine.per_card, sum(len(place.gpus) for place in places.trainer)


def _rows_that_fit(cfg: Config, shape: DecoderShape, cards: Sequence[Card], asked: Asked) -> Iterator[Choice]:
    """Shorter rows, where only those fit and the command line did not say how long.

    That changes how samples are packed, not what is trained.
    """
    given = cfg.finetune.seq_length
    if not asked.rows_open or _fits(cfg, {}, shape, cards, asked):
        return
    for length in range(given - given % ROW_STEP, _shortest_rows(cfg) - 1, -ROW_STEP):
        if _fits(cfg, {"finetune": {"seq_length": length}}, shape, cards, asked):
            yield Choice(ROWS, length, f"rows of {given} tokens do not fit")
            return


def _shortest_rows(cfg: Config) -> int:
    """A row holds the longest request."""
    return -(-cfg.engine.max_model_len // 256) * 256


def _plan(cfg: Config, shape: DecoderShape | None, cards: Sequence[Card], asked: Asked) -> MemoryPlan | None:
    if shape is None or not cards:
        return None
    try:
        return memory_plan(cfg, shape, cards, asked)
    except DoesNotFit as error:
        changes = list(smallest_changes(cfg, shape, cards, asked))
        what = f"{cfg.policy_path} on {len(cards)} x {cards[0]} does not fit: {error.problems[0]}"
        remedy = f"set {', or '.join(changes[:3])}" if changes else "use a smaller model or larger cards"
        raise DoesNotFit(f"{what}; {remedy}") from None


def smallest_changes(cfg: Config, shape: DecoderShape, cards: Sequence[Card], asked: Asked) -> Iterator[str]:
    """Overrides each of which alone makes a plan fit, the smallest change first."""
    shortest, only = _shortest_rows(cfg), len(cards) == 1
    shared = "world.share_device=true " if only and not cfg.world.share_device else ""
    tried: list[tuple[str, dict[str, Any]]] = []
    if cfg.weights.ahead is True:
        tried.append(("weights.ahead=false", {"weights": {"ahead": False}}))
    if cfg.vllm_config.vllm_kwargs.get("gpu-memory-utilization") is not None:
        tried.append(
            (f"{UTILIZATION}=null", {"vllm_config": {"vllm_kwargs": {"gpu-memory-utilization": None}}})
        )
    if cfg.use_fsdp is False and not cfg.use_deepspeed:
        tried.append(("use_fsdp=auto", {"use_fsdp": "auto"}))
    if (cfg.world.actor_fraction, cfg.world.finetune_fraction) != (None, None):
        null = {"world": {"actor_fraction": None, "finetune_fraction": None}}
        tried.append((f"{ACTOR}=null {FINETUNE}=null", null))
    if cfg.finetune.gradient_checkpointing not in ("auto", True):
        key = "finetune.gradient_checkpointing"
        tried.append((f"{key}=auto", {"finetune": {"gradient_checkpointing": "auto"}}))
    tried += _longer_rows(cfg)
    if cfg.finetune.optim == "adamw_torch":
        extra = "" if find_spec("torchao") else " (with the extra `torchao`)"
        tried.append((f"finetune.optim=adamw_8bit{extra}", {"finetune": {"optim": "adamw_8bit"}}))
    shorter = {"finetune": {"seq_length": min(shortest, cfg.finetune.seq_length)}}
    if shortest < cfg.finetune.seq_length:
        tried.append((f"finetune.seq_length={shortest}", shorter))
    for key, change in tried:
        if _fits(cfg, change, shape, cards, asked):
            yield f"{shared}{key}"
    for count in range(len(cards) + 1, MOST_CARDS + 1) if asked.one_host else ():
        if _fits(cfg, shorter if asked.rows_open else {}, shape, [cards[0]] * count, asked):
            alone = "world.share_device=false " if cfg.world.share_device and only else ""
            imagined = f"x{cards[0].name}" if imagined_cards(cfg.hardware.devices) else ""
            yield f"{alone}hardware.devices={count}{imagined} (more cards)"
            break
    for key, change in (
        ("finetune.lora.enabled=true", {"finetune": {"lora": {"enabled": True}}}),
        ("fsdp.cpu_offload=true", {"fsdp": {"cpu_offload": True}}),
    ):
        if "lora" in key and cfg.finetune.reentrant_checkpointing:  # which frozen layers are refused with
            continue
        if _fits(cfg, change, shape, cards, asked):
            yield f"{shared}{key}"


def _longer_rows(cfg: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes for which a row takes less of a card, and nothing of what is computed changes."""
    key = "finetune.gradient_checkpointing=offload"
    if cfg.finetune.gradient_checkpointing != "offload" and not cfg.finetune.reentrant_checkpointing:
        yield key, {"finetune": {"gradient_checkpointing": "offload"}}
    for ranks in (2, 4, 8):
        if ranks > cfg.finetune.seq_parallel:
            yield f"finetune.seq_parallel={ranks}", {"finetune": {"seq_parallel": ranks}}


def _fits(
    cfg: Config, change: dict[str, Any], shape: DecoderShape, cards: Sequence[Card], asked: Asked
) -> bool:
    changed = _changed(cfg, change)
    try:
        plan = memory_plan(changed, shape, cards, asked)
        check_host(host_bytes(changed, shape, plan), asked.host_available)
    except ConfigError:
        return False
    return True


def _changed(model: Any, change: dict[str, Any]) -> Any:
    """A copy of a section with some of its values, also nested ones, replaced."""
    new = {}
    for key, value in change.items():
        old = getattr(model, key)
        if isinstance(value, dict):
            new[key] = {**old, **value} if isinstance(old, dict) else _changed(old, value)
        else:
            new[key] = value
    return model.model_copy(update=new)


def _share_transport(
    tree: DictConfig, given_keys: Collection[str], hosts: Sequence[Host]
) -> Iterator[Choice]:
    """Weights travel through files where engines share a card, or one with the trainer, as NCCL cannot on it.

    Raises ConfigError for a transport that was asked for and cannot.
    """
    together = _number(tree, "engine.per_card") or 1
    if not _shares(tree, hosts) and together == 1:
        return
    if TRANSPORT not in given_keys:
        yield Choice(TRANSPORT, "file", SHARED if together == 1 else f"{together} engines on a card")
    elif (why := transport_named(tree.weights.transport).on_one_card) is not None:
        raise ConfigError(f"{TRANSPORT}={tree.weights.transport}: {why}; set file")


def _shares(tree: DictConfig, hosts: Sequence[Host]) -> bool:
    one = sum(len(host.devices) for host in hosts) == 1
    return (
        one and bool(tree.world.share_device) and {"actor_llm", "finetune"} <= roles_of(str(tree.debug.mode))
    )


def _usual_share(cfg: Config, hosts: Sequence[Host], cards: Sequence[Card], dry_run: bool) -> float:
    """The engine's share of a card where the model's layers are not known."""
    shared = sum(len(host.devices) for host in hosts) == 1 and cfg.world.share_device
    given = cfg.vllm_config.vllm_kwargs.get("gpu-memory-utilization") is not None
    if (together := cfg.engine.per_card) > 1:
        sized = dry_run or cfg.vllm_config.vllm_kwargs.get(CACHE_BYTES.rpartition(".")[2])
        return equal_share(together, None if sized else CACHE_BYTES)
    if not shared or given or dry_run or not {"actor_llm", "finetune"} <= cfg.debug.roles:
        return MOST_SHARE
    if not cards:
        raise without_sizes("the card's memory")
    return engine_share(cards[0], Path(cfg.model_path))


def _of_unknown(cfg: Config, usual_share: float, known: bool) -> Iterator[Choice]:
    """The usual values. `known`: the cards are, so that the model's sizes are what is not."""
    if known:  # a copy of unknown size beside the engine's share would fail at the first update
        transport = transport_kind(cfg)
        yield Choice(AHEAD, transport.ahead and not transport.copy_on_card, "the model's sizes are not known")
    yield Choice(FSDP, False, UNKNOWN)
    yield Choice(TENSOR_PARALLEL, 1, UNKNOWN)
    yield Choice(UTILIZATION, usual_share, UNKNOWN)


def _of_plan(cfg: Config, plan: MemoryPlan) -> Iterator[Choice]:
    """What a plan decides, whether the configuration leaves it open or not."""
    engine, trainer = plan.engine, plan.trainer
    if plan.divided:
        because = "the division that fits and samples and trains most tokens"
        used = plan.engines * (engine.cards if engine else 1) // cfg.engine.per_card
        yield Choice(ACTOR, used, because)
        yield Choice(FINETUNE, trainer.ranks if trainer else 0, because)
    if engine is not None:
        size = _tensor_parallel(cfg, engine.cards)
        yield Choice(TENSOR_PARALLEL, size, "the weights fit on so many cards")
        yield Choice(UTILIZATION, engine.share, f"what {plan.card} leaves beside the second copy")
        if cfg.engine.per_card > 1:
            yield Choice(CACHE_BYTES, int(engine.parts["keys and values"]), BESIDE)
        over = transport_kind(cfg).not_ahead(engine.cards)
        yield Choice(AHEAD, engine.ahead, SIZED if engine.ahead else over or f"no {SIZED}")
    if trainer is not None:
        yield Choice(FSDP, trainer.sharding is not None and not cfg.use_deepspeed, _because_sharded(plan))


def _tensor_parallel(cfg: Config, cards: int) -> int:
    """Of an engine of so many cards, besides its other kinds of parallelism."""
    return max(1, cards // cfg.vllm_config.parallel_size("pipeline", "data"))


def _because_sharded(plan: MemoryPlan) -> str:
    trainer = plan.trainer
    assert trainer is not None
    if trainer.ranks == 1:
        return "one rank"
    needed = sum(trainer.parts.values()) / GIB
    if trainer.sharding is None:
        return f"each rank holds all of it in {needed:.0f} of {plan.card.total / GIB:.0f} GiB"
    return f"{needed:.0f} of {plan.card.total / GIB:.0f} GiB with shards; more, or more recomputed, without"


def _texts(cfg: Config, derived: DerivedConfig) -> int:
    """Samples that may be under way: what the age of weights admits, or one update where it has no bound."""
    return cfg.staleness_with(derived).admitted or derived.texts_per_update


def _choose_in_flight(tree: DictConfig, hosts: Sequence[Host], plan: MemoryPlan | None) -> Iterator[Choice]:
    """Rollouts under way at each engine on GPUs, where nobody said.

    As many as samples may be produced before the next update (`max_lag`, or those of one update where that is
    null), shared out over the engines, but no more than have room in an engine's cache.
    """
    if OmegaConf.select(tree, IN_FLIGHT) is not None:
        return
    try:
        cfg = typed(tree)
        places = layout(cfg, hosts)
        engines = len(places.engines or [Place(0, [])])
        texts = _texts(cfg, derive(cfg, places.trainer_jobs))
    except ValueError:  # a ConfigError, or a flag that is no number: the checks, which come next, say it
        return
    source = f"that {cfg.staleness} admits" if cfg.staleness.bounded else "of an update"
    number = wanted_requests(texts, engines)
    because = f"{texts} samples {source} for {counted(engines, 'engine')}"
    if number == MOST and texts > MOST * engines:
        because += f", at most {MOST}"
    bounded_by = engine_kind(cfg).requests_key
    most = None if bounded_by is None else _number(tree, bounded_by)
    if bounded_by is not None and most is not None and most < number:
        number, because = most, bounded_by
    if plan is not None and plan.engine is not None and plan.engine.requests < number:
        number, because = plan.engine.requests, "room for their keys and values"
    if number < FEWEST and number != most:
        number, because = min(FEWEST, most or FEWEST), f"{because}, at least {FEWEST}"
    yield Choice(IN_FLIGHT, number, because)
