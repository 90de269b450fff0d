"""What fits on which GPU: engines, trainer ranks and their bytes, planned before anything starts.

A pure function of the configuration, the model's shape and the cards of one host. `memory_choice` asks it and
writes what it decides into the run's tree; tests ask it for models and cards that are not there.
"""

from collections.abc import Iterator, Sequence

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.finetune import Checkpointing, Sharding
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import eight_bits, engine_kind
from pipelinerl.launcher.cards import GIB, Card
from pipelinerl.launcher.decoder_shape import DecoderShape
from pipelinerl.launcher.engine_memory import (
    FIXED,
    MOST_SHARE,
    UNCOUNTED,
    EngineWork,
    copy_bytes,
    decode_reads,
    requests_held,
    route_store_bytes,
    seconds_per_token,
    step_bytes,
    weight_bytes,
    whole_request_bytes,
)
from pipelinerl.launcher.memory_values import Asked, DoesNotFit, EnginePlan, MemoryPlan, TrainerPlan
from pipelinerl.launcher.placement import split_devices
from pipelinerl.launcher.routing_choice import may_replay
from pipelinerl.launcher.trainer_memory import (
    OTHER,
    frozen_bytes,
    gathering_bytes,
    needed_bytes,
    never_compiled,
    state_bytes,
    tokens_of_rank,
    undivided,
)
from pipelinerl.modeling.delta_kernel import kernel_missing
from pipelinerl.weights.transports.base import transport_kind

FEWEST, MOST = 64, 512
"""Requests in flight at an engine: fewer leave its card idle, more were not measured."""
FITS = 0.95
"""Share of a card's free memory that a trainer may need: CUDA contexts and NCCL take some of the rest."""
ROOM = 0.85
"""Share of it that is planned with where there is a choice: samples of a row may be many."""
MFU = 0.38
MFU_OF_EXPERTS = 0.2
"""What a trainer reaches of a card, for dividing cards only (`docs/gpu.md`)."""


def wanted_requests(texts: int, engines: int) -> int:
    """Rollouts that an engine could have under way: the samples that are wanted, shared out."""
    return min(MOST, -(-texts // engines))


def memory_plan(cfg: Config, shape: DecoderShape, cards: Sequence[Card], asked: Asked) -> MemoryPlan:
    """The plan for the cards of a run.

    Raises DoesNotFit with the numbers, or ConfigError for wrong keys.

    What the configuration leaves open (null, `auto`) is chosen; what it says is kept, and refused if it does
    not fit. Of several divisions of the cards the one that samples and trains most tokens a second is taken.
    """
    planner = _Planner(cfg, shape, cards, asked)
    if not (planner.serves or planner.trains):
        return MemoryPlan(card=cards[0], engines=0, engine=None, trainer=None)
    placed = "actor_llm" in cfg.debug.roles or cfg.debug.place_inference_workers
    if not placed or (len(cards) == 1 and not planner.serves):
        return MemoryPlan(card=cards[0], engines=0, engine=None, trainer=planner.trainer(len(cards)))
    if len(cards) == 1 and planner.trains:
        return planner.shared()
    return planner.divided(len(cards))


class _Planner:
    """The steps of `memory_plan`. Engines have the first cards of a host, the trainer those behind them."""

    def __init__(self, cfg: Config, shape: DecoderShape, cards: Sequence[Card], asked: Asked) -> None:
        self._cfg, self._shape, self._cards, self._asked = cfg, shape, cards, asked
        self.serves = "actor_llm" in cfg.debug.roles and not cfg.debug.use_existing_llms
        """Whether engines are started."""
        self.trains = "finetune" in cfg.debug.roles
        self._card = _least(cards)
        self._transport = transport_kind(cfg)
        self._kwargs = {key.replace("_", "-"): value for key, value in cfg.vllm_config.vllm_kwargs.items()}
        self._copies = cfg.vllm_config.parallel_size("data")

    def divided(self, total: int) -> MemoryPlan:
        """Engines on some cards, trainer ranks on the others."""
        world, trains = self._cfg.world, self.trains
        given = world.actor_fraction is not None or world.finetune_fraction is not None
        free = (
            self._asked.one_host and trains and self.serves and not given and not world.preprocessor_fraction
        )
        best: tuple[float, MemoryPlan] | None = None
        problem: DoesNotFit | None = None
        for cards in self._cards_of_an_engine(total - trains):
            if free:
                splits = [
                    (used // cards, total - used)
                    for used in range(cards, total - trains + 1, cards)
                    if (total - used) % self._cfg.finetune.seq_parallel == 0
                ]
            else:
                try:
                    splits = [self._as_asked(total, cards)]
                except ConfigError:
                    if problem is None:
                        raise
                    break  # larger engines leave no room for the others
            for engines, ranks in splits:
                try:
                    plan = self._division(cards, engines, ranks if trains else 0, free)
                except DoesNotFit as error:
                    problem = error
                    continue
                speed = self._speed(plan)
                # Of equals the one with fewer engines, whose samples are younger.
                if best is None or speed > 1.001 * best[0]:
                    best = speed, plan
            if best is not None:
                return best[1]
        left = f"leave none for an engine beside {_cards(self._cfg.finetune.seq_parallel)} of the trainer"
        raise problem or DoesNotFit(f"{_cards(total)} of {self._card} {left}")

    def _division(self, cards: int, engines: int, ranks: int, free: bool) -> MemoryPlan:
        """Engines of so many cards, and trainer ranks. Raises DoesNotFit."""
        if self.trains and ranks < 1:
            raise ConfigError(f"world: {len(self._cards)} GPUs leave none for the trainer")
        used, together = engines * cards, self._cfg.engine.per_card
        self._card = _least(self._cards[:used] or self._cards)
        others = self._card.free * (together - 1) / together
        engine = self.engine(cards, max(1, engines * together), others) if self.serves else None
        self._card = _least(self._cards[used:] or self._cards)
        trainer = self.trainer(ranks) if self.trains else None
        first = _least(self._cards[:used] or self._cards)
        return MemoryPlan(
            card=first,
            engines=engines * together,
            engine=engine,
            trainer=trainer,
            divided=free,
            behind=self._card,
        )

    def _speed(self, plan: MemoryPlan) -> float:
        """Sampled tokens a second that engines and trainer both keep up with."""
        if plan.engine is None or plan.trainer is None:
            return 1.0
        return min(plan.engines / self._sampling(plan.engine), self._training(plan.trainer.ranks))

    def _cards_of_an_engine(self, most: int) -> Iterator[int]:
        """Sizes of an engine: that which is given, or one card and then more, as heads can be divided."""
        if self._cfg.engine.per_card > 1:
            yield 1
            return
        if self._kwargs.get("tensor-parallel-size") is not None:
            yield self._cfg.vllm_config.parallel_size("tensor", "pipeline", "data")
            return
        other, heads = self._cfg.vllm_config.parallel_size("pipeline", "data"), self._shape.heads
        linear = self._shape.linear.key_heads if self._shape.linear else 0
        alone = self._cfg.weights.ahead is True and self._transport.into_several_cards is not None
        size, most = 1, other if alone else max(1, most)  # others are reached in their pause only
        while size * other <= most:
            if heads % size == 0 and linear % size == 0:  # vLLM gives each card the same number of heads
                yield size * other
            size *= 2

    def _as_asked(self, total: int, cards: int) -> tuple[int, int]:
        """Engines and trainer ranks by the shares that are given."""
        if self._asked.placed is not None:
            return self._asked.placed(cards)
        engines, _, ranks = split_devices(total, self._cfg.world.fractions, cards)
        return engines // cards, ranks

    def _work(self, cards: int) -> EngineWork:
        batched = self._kwargs.get("max-num-batched-tokens")
        return EngineWork(
            max_model_len=self._cfg.engine.max_model_len,
            batched_tokens=int(batched) if batched else 8192,
            cards=max(1, cards // self._copies),
            bytes_per_number=4 if engine_kind(self._cfg).dtype(self._cfg) == "float32" else 2,
            cache_bytes_per_number=1 if eight_bits(self._cfg) else 2,
            bounded=not self._kwargs.get("disable-hybrid-kv-cache-manager"),
            states=2 if self._kwargs.get("enable-prefix-caching") else 1,
            routes=self._shape.experts > 0 and may_replay(self._cfg),
        )

    def engine(self, cards: int, engines: int, beside: float = 0.0) -> EnginePlan:
        """An engine of so many cards, one of `engines`; `beside` bytes of each card are those of others."""
        cfg, shape, card, work = self._cfg, self._shape, self._card, self._work(cards)
        wanted, weights = self._wanted(engines), weight_bytes(shape, work)
        requests = self._asked.in_flight or max(FEWEST, wanted)
        can = self._transport.not_ahead(work.cards) is None
        copy = copy_bytes(shape, work) if self._transport.copy_on_card else 0.0
        ways = [True, False] if cfg.weights.ahead == "auto" else [bool(cfg.weights.ahead)]
        found: list[EnginePlan] = []
        steps = step_bytes(shape, work, requests) + FIXED
        about = {"card": card.name, "copies": self._copies, "sharing": cfg.engine.per_card}
        reads = decode_reads(shape, work).model_copy(update=about)
        for ahead in ways if can else [False]:
            second = copy if ahead and cfg.updates_engines else 0.0
            share = self._share(card.free - beside - second - UNCOUNTED, weights + steps)
            held = requests_held(shape, work, share * card.total, requests)
            if held and share * card.total + second + UNCOUNTED / 2 + beside <= card.free:
                parts = {
                    "weights": weights,
                    "second copy": second,
                    "activations and graphs": steps,
                    "keys and values": share * card.total - weights - steps,
                    "outside vLLM's share": UNCOUNTED,
                }
                cache = parts["keys and values"]
                records = self._copies * route_store_bytes(shape, work, cache) if work.routes else 0.0
                found.append(EnginePlan(cards, share, ahead, held * self._copies, parts, records, reads))
        if not found:
            raise self._engine_too_small(work, beside)
        # Without a second copy an update pauses longer, which costs less than half of the requests does.
        most = max(one.requests for one in found)
        return next(one for one in found if 2 * one.requests >= most)

    def _wanted(self, engines: int) -> int:
        return wanted_requests(self._asked.texts, engines)

    def _engine_too_small(self, work: EngineWork, beside: float) -> DoesNotFit:
        cfg, shape, card = self._cfg, self._shape, self._card
        weights, request = weight_bytes(shape, work), whole_request_bytes(shape, work)
        can = self._transport.not_ahead(work.cards) is None
        copies = cfg.weights.ahead is True and self._transport.copy_on_card and can
        second = copy_bytes(shape, work) if copies and cfg.updates_engines else 0.0
        other = step_bytes(shape, work, FEWEST) + FIXED
        needed = weights + second + other + request + UNCOUNTED
        copy = f"second copy {second / GIB:.0f}, " if second else ""
        given = self._kwargs.get("gpu-memory-utilization")
        said = "" if given is None else f" (gpu-memory-utilization={given})"
        return DoesNotFit(
            f"an engine on {_cards(work.cards)} of {card} needs {needed / GIB:.0f} GiB of each "
            f"(weights {weights / GIB:.0f}, {copy}activations {other / GIB:.0f}, a request of "
            f"{work.max_model_len} tokens {request / GIB:.1f}, beside vLLM's share {UNCOUNTED / GIB:.0f}); "
            f"{max(0.0, card.free - beside) / GIB:.0f} GiB are free{said}"
        )

    def _share(self, room: float, without_cache: float) -> float:
        """`gpu-memory-utilization` as it is given, or the largest that leaves what has to stay beside it.

        With `kv-cache-memory-bytes` the cache has a size of its own, whatever the share.
        """
        given, cache = (self._kwargs.get(key) for key in ("gpu-memory-utilization", "kv-cache-memory-bytes"))
        if cache is not None:
            return min((without_cache + int(cache)) / self._card.total, room / self._card.total)
        if given is not None:
            return float(given)
        return max(0.0, int(min(MOST_SHARE, room / self._card.total) * 100) / 100)

    def trainer(self, ranks: int, beside: float = 0.0) -> TrainerPlan:
        """Ranks of a trainer; `beside` bytes of each card are an engine's. Raises DoesNotFit."""
        room = self._card.free - beside
        ways = list(self._ways_of_sharding(ranks))
        modes = self._modes
        # As little recomputation as fits decides first, then the simpler way of keeping states.
        for mode in modes:
            for sharding, on_host in ways:
                last = mode == modes[-1]
                parts = self._trainer_parts(ranks, sharding, on_host, mode)
                if sum(parts.values()) <= (FITS if last else ROOM) * room:
                    return TrainerPlan(ranks, sharding, on_host, parts, mode)
        for sharding, on_host in ways if self._may_compile() else ():
            parts = self._trainer_parts(ranks, sharding, on_host, modes[-1], compiled_first=True)
            if sum(parts.values()) <= FITS * room:
                return TrainerPlan(ranks, sharding, on_host, parts, modes[-1], compiled_first=True)
        sharding, on_host = ways[-1]
        parts = self._trainer_parts(ranks, sharding, on_host, modes[-1])
        listed = ", ".join(f"{name} {size / GIB:.0f}" for name, size in parts.items() if size > GIB / 2)
        raise DoesNotFit(
            f"a trainer on {_cards(ranks)} of {self._card} needs {sum(parts.values()) / GIB:.0f} GiB of each "
            f"({listed}); {FITS * room / GIB:.0f} GiB can be used"
        )

    @property
    def _modes(self) -> tuple[Checkpointing, ...]:
        """What may be recomputed, the least first."""
        tune = self._cfg.finetune
        if tune.gradient_checkpointing != "auto":
            return (tune.gradient_checkpointing,)
        # What experts keep was not measured; for the others see `trainer_choice`.
        all_of_them = self._shape.experts or tune.reentrant_checkpointing or self._never_compiled
        return (True,) if all_of_them else (False, "selective", True)

    @property
    def _never_compiled(self) -> bool:
        without = self._shape.linear is not None and kernel_missing(self._card.hopper) is not None
        return bool(never_compiled(self._cfg.finetune, without))

    def _may_compile(self) -> bool:
        # Layers with experts are compiled in parts, and counted as if they were not.
        return self._cfg.finetune.compile == "auto" and not self._shape.experts and not self._never_compiled

    def _ways_of_sharding(self, ranks: int) -> Iterator[tuple[Sharding | None, bool]]:
        """Whole or sharded, and where sharded with the gathered copy on the card or in host memory."""
        cfg = self._cfg
        open_still = cfg.use_fsdp == "auto" and not cfg.use_deepspeed
        chosen = cfg.sharding_if(True) if open_still else cfg.sharding
        if cfg.finetune.optim == "adafactor" and chosen:  # which takes no shards
            if chosen.offload:
                raise ConfigError("fsdp.cpu_offload=true: adafactor takes no shards; set another optimizer")
            chosen = None if open_still else chosen  # the checks refuse what was asked for
        if ranks == 1 and not (chosen and chosen.offload):
            yield None, False
            return
        if chosen is None or (open_still and not chosen.offload):
            yield None, False
        if chosen is None:
            return
        yield chosen, False
        yield chosen, True

    def _trainer_parts(
        self,
        ranks: int,
        sharding: Sharding | None,
        on_host: bool,
        mode: Checkpointing,
        compiled_first: bool = False,
    ) -> dict[str, float]:
        cfg, shape = self._cfg, self._shape
        tune = cfg.finetune
        if problem := undivided(tune.seq_parallel, ranks, shape):
            raise ConfigError(problem)
        state = state_bytes(shape, tune, ranks, sharding, on_host)
        tokens = tokens_of_rank(tune)
        rows = needed_bytes(shape, mode, True, tokens, 0.0, tune.shares_prefixes) - OTHER
        if (
            tune.compile is not True and not compiled_first
        ):  # the first steps are not compiled, and recompute all if need be
            plain = True if tune.gradient_checkpointing == "auto" else mode
            needed = needed_bytes(shape, plain, False, tokens, 0.0, tune.shares_prefixes)
            rows = max(rows, needed - OTHER)
        # No row is there while weights are gathered.
        state = max(state, gathering_bytes(shape, cfg.finetune, ranks, sharding) - rows - OTHER)
        return {
            "weights, gradients, optimizer": state,
            f"rows of {tune.seq_length} tokens"
            + (f" over {tune.seq_parallel}" if tune.seq_parallel > 1 else ""): rows,
            "log-probabilities": OTHER,
            "teacher" if cfg.teacher.paths else "reference": frozen_bytes(cfg, shape),
        }

    def shared(self) -> MemoryPlan:
        """Engine and trainer on one card: the trainer's part first, the engine has the rest."""
        card = self._card
        if (given := self._kwargs.get("gpu-memory-utilization")) is not None:
            trainer = self.trainer(1, float(given) * card.total + UNCOUNTED)
            engine = self.engine(1, 1, sum(trainer.parts.values()))
            return MemoryPlan(card=card, engines=1, engine=engine, trainer=trainer, shared=True)
        wanted, modes = self._asked.in_flight or self._wanted(1), self._modes
        sharding = next(one for one, _ in self._ways_of_sharding(1))
        problem: DoesNotFit | None = None
        for mode in modes:
            parts = self._trainer_parts(1, sharding, False, mode)
            needed = sum(parts.values()) / (FITS if mode == modes[-1] else ROOM)
            try:
                engine = self.engine(1, 1, needed)
            except DoesNotFit as error:
                problem = error
                continue
            if mode == modes[-1] or engine.requests >= wanted:
                trainer = TrainerPlan(1, sharding, False, parts, mode)
                return MemoryPlan(card=card, engines=1, engine=engine, trainer=trainer, shared=True)
        assert problem is not None
        size = sum(self._trainer_parts(1, sharding, False, modes[-1]).values()) / GIB
        raise DoesNotFit(
            f"world.share_device=true: trainer ({size:.0f} GiB) and engine do not fit into "
            f"{card.free / GIB:.0f} GiB free: {problem.problems[0]}"
        )

    def _sampling(self, engine: EnginePlan) -> float:
        """Seconds of one engine for a sampled token."""
        bandwidth = self._card.speed.bandwidth / self._cfg.engine.per_card
        return seconds_per_token(self._shape, self._work(engine.cards), engine.requests, bandwidth)

    def _training(self, ranks: int) -> float:
        """Sampled tokens a second of the trainer, if prompts are as long as answers and groups share them."""
        flops = self._card.speed.flops
        computed = 1 + 1 / self._cfg.attempts if self._cfg.finetune.shares_prefixes else 2.0
        mfu = MFU_OF_EXPERTS if self._shape.experts else MFU
        return ranks * mfu * flops / (computed * 6 * self._shape.active_parameters)


def _cards(count: int) -> str:
    return f"{count} card{'s' * (count > 1)}"


def _least(cards: Sequence[Card]) -> Card:
    """The memory that each of these cards has."""
    return Card(min(one.total for one in cards), min(one.free for one in cards), cards[0].name)
