"""Which side limits a run, trainer or engines, and which keys would change that.

The launcher prints it once after the first steps; the report has it for the whole run.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pipelinerl.base.line_file import LineTail
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.observe.history import metrics_record
from pipelinerl.weights.transports.base import transport_kind

STEPS, STEPS_S = 10, 10.0
"""The fewest steps that are spoken of, and the seconds that those of a start have to span."""
NOTABLE = 0.2
"""A side that does nothing for less than this share of the time keeps the other one waiting."""
PAUSE_S, PAUSE_STEPS = 10.0, 3
"""A pause between two steps, such as a compilation, is longer than both: samples pile up meanwhile, so that
the steps before and after it tell nothing together."""
SPARE_CORES = 4
_LAG_BUDGET = {
    "actor/reserved_texts",
    "actor/discarded_texts",
    "actor/problem_queue_size",
    "actor/trainer_model_version",
}

Side = Literal["trainer", "engines", "both", "neither"]
_SENTENCES: dict[Side, str] = {
    "trainer": "the trainer limits",
    "engines": "the engines limit",
    "both": "trainer and engines keep pace",
    "neither": "neither trainer nor engines limit, but what lies between them",
}


@dataclass(frozen=True)
class Balance:
    """How trainer and engines spent some trained steps; shares are in [0, 1]."""

    steps: int
    trainer_waits: float
    """Of the time of its steps, without updates of engines, checkpoints and compilations."""
    engines_idle: float | None
    """Looks at an engine at which no request was running on it; None if nobody looked."""
    updates: float = 0.0
    """Of the time of its steps and of updates: what the trainer spent on putting versions into engines."""

    @property
    def enough(self) -> bool:
        """Whether it is over enough steps to speak of; the first one is left out of it."""
        return self.steps + 1 >= STEPS

    @property
    def side(self) -> Side:
        """Which side the other one waits for."""
        waits, idle = self.trainer_waits >= NOTABLE, (self.engines_idle or 0.0) >= NOTABLE
        if waits:
            return "neither" if idle else "engines"
        return "trainer" if idle or self.engines_idle is None else "both"

    def __str__(self) -> str:
        shares = [f"the trainer waited for samples {self.trainer_waits:.0%} of the time"]
        if self.engines_idle is not None:
            shares.append(f"engines without requests {self.engines_idle:.0%}")
        if self.updates >= NOTABLE:
            shares.append(f"updates of the engines held the trainer {self.updates:.0%}")
        return f"{_SENTENCES[self.side]} ({', '.join(shares)})"


def balance(
    finetune: Sequence[dict[str, Any]], actor: Sequence[dict[str, Any]], launches: Sequence[float] = ()
) -> Balance | None:
    """The balance of some metric records, from the first trained step on; None if they hold too little.

    The first step of each start is left out: its samples were waited for while engines started. `launches`
    are when starts began, in ascending seconds since 1970.
    """
    steps, waited, total, updates = 0, 0.0, 0.0, 0.0
    for before, after in pairwise(record for record in finetune if _is_step(record)):
        more = int(after["stats/completed_steps"] - before["stats/completed_steps"])
        if more > 0 and not any(before["time"] < at <= after["time"] for at in launches):
            steps += more
            waited += after["stats/time_waiting_for_data"] - before["stats/time_waiting_for_data"]
            total += after["throughput/sec_per_step"] * more
            # Runs of before updates went on beside steps have the latter alone.
            updates += after.get("weights/held_s", after.get("weights/total_s", 0.0))
    if total <= 0:
        return None
    return Balance(steps, min(1.0, max(0.0, waited / total)), _idle(actor), updates / (total + updates))


def _is_step(record: dict[str, Any]) -> bool:
    needed = {"stats/completed_steps", "stats/time_waiting_for_data", "throughput/sec_per_step"}
    return needed <= record.keys()


def _idle(actor: Sequence[dict[str, Any]]) -> float | None:
    """Share of looks between the first and the last record of the actor's last start.

    A record has the share since the actor began, which looks at each engine once a second.
    """
    share, since = "actor/requests/engine_idle_share", "actor/time_since_start"
    looks = [(record[since], record[share]) for record in actor if {share, since} <= record.keys()]
    if not looks:
        return None
    starts = [at for at, (one, other) in enumerate(pairwise(looks), 1) if other[0] < one[0]]
    (began, idle_then), (now, idle) = looks[starts[-1] if starts else 0], looks[-1]
    if now - began < STEPS_S:  # too few looks for a difference
        return float(idle)
    return min(1.0, max(0.0, (idle * now - idle_then * began) / (now - began)))


def after_last_pause(finetune: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The records behind the last long pause between two steps."""
    steps, first = [record for record in finetune if _is_step(record)], 0
    for at, (before, after) in enumerate(pairwise(steps), 1):
        step_s = after["throughput/sec_per_step"]
        more = max(1, int(after["stats/completed_steps"] - before["stats/completed_steps"]))
        if after["time"] - before["time"] - more * step_s > max(PAUSE_S, PAUSE_STEPS * step_s):
            first = at
    return steps[first:]


def lag_binds(cfg: Config, actor: Sequence[dict[str, Any]]) -> bool:
    """Whether the bound on age, and not its slots, held back the actor's next group before most versions.

    A rollout may have many samples, so that slots, which count rollouts, say little about a bound in samples.
    """
    if (bound := cfg.staleness.admitted) is None:
        return False
    held = list[bool]()
    for before, record in pairwise(record for record in actor if record.keys() >= _LAG_BUDGET):
        # A record is written when a version has come, before the room that it makes is used.
        ahead = record["actor/reserved_texts"] - record["actor/discarded_texts"]
        ahead -= before["actor/trainer_model_version"]
        held.append(ahead >= bound and not record["actor/problem_queue_size"])
    return 2 * sum(held) > len(held)


def remedies(
    cfg: Config, side: Side, actor: Sequence[dict[str, Any]] = (), updates: float = 0.0
) -> list[str]:
    """Keys, with a value or a word, that would help the side that limits in this run.

    `actor` are its records, without which only the configuration says whether `max_lag` binds; `updates` is
    the share of `Balance`.
    """
    if side in ("trainer", "both") and updates >= NOTABLE:
        return [*transport_kind(cfg).remedies(cfg), *_for_the_trainer(cfg)]
    if side == "trainer":
        return list(_for_the_trainer(cfg)) or list(_less_or_more(cfg))
    held = lag_binds(cfg, actor)
    if side == "engines":
        return list(_for_the_engines(cfg, held)) or list(_less_or_more(cfg))
    return list(_between(cfg, held)) if side == "neither" else []


def _less_or_more(cfg: Config) -> Iterator[str]:
    """Where no key makes a side faster: less to do for both, or a larger machine."""
    yield f"a smaller llm.parameters.max_tokens ({cfg.llm.parameters.max_tokens})"
    yield "a smaller model_path"
    yield "more GPUs" if cfg.hardware.kind == "gpu" else f"more cores than {_cores()}"


def _for_the_trainer(cfg: Config) -> Iterator[str]:
    tune, engines = cfg.finetune, cfg.jobs_of("actor_llm")
    if not tune.shares_prefixes:
        yield "finetune.share_prefixes=true" if tune.seq_packing else "finetune.seq_packing=true"
    if not cfg.trainer_on_gpu:
        if cfg.hardware.threads_per_process == 1 and _cores() >= SPARE_CORES:
            yield "hardware.threads_per_process=2"
        return
    if tune.gradient_checkpointing not in ("auto", False):
        yield "finetune.gradient_checkpointing=auto"
    if tune.compile is False and tune.load_as_bf16 and tune.use_flash_attention:
        yield "finetune.compile=auto"
    if len({(job.node_rank, *job.gpus) for job in engines}) > 1:  # several may be on one card
        yield f"a larger world.finetune_fraction ({cfg.world.fractions[2]})"
    elif cfg.hardware.devices:
        yield f"more GPUs for the trainer, hardware.devices ({cfg.hardware.devices})"


def _for_the_engines(cfg: Config, held: bool) -> Iterator[str]:
    kind = engine_kind(cfg)
    yield from kind.remedies(cfg, spare_cores=_cores() >= SPARE_CORES)
    if not kind.batches:
        return
    if cfg.hardware.kind == "gpu" and sum(len(job.gpus) for job in cfg.jobs_of("finetune")) > 1:
        yield f"a larger world.actor_fraction ({cfg.world.fractions[0]})"
    yield from _in_flight(cfg, held)


def _between(cfg: Config, held: bool) -> Iterator[str]:
    yield from _in_flight(cfg, held)
    if cfg.actor.rollout_workers < _cores() // 2:
        yield f"more actor.rollout_workers ({cfg.actor.rollout_workers})"


def _in_flight(cfg: Config, held: bool) -> Iterator[str]:
    """What holds back further rollouts: the lag bound, or the slots."""
    slots = cfg.actor.llm_max_rollouts * len(cfg.jobs_of("actor_llm"))
    if (admitted := cfg.staleness.admitted) is not None and (held or admitted <= slots):
        yield cfg.staleness.looser()
    else:
        yield f"more actor.llm_max_rollouts ({cfg.actor.llm_max_rollouts})"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class BalanceWatch:
    """Says once, after the first `STEPS` trained steps of a start, which side limits and what to change."""

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        folder = Path(str(cfg.output_dir))
        # What is there already is of an earlier start.
        self._tails = {
            role: LineTail(folder / role / "metrics.jsonl", from_end=True) for role in ("finetune", "actor")
        }
        self._records: dict[str, list[dict[str, Any]]] = {role: [] for role in self._tails}
        self._said = not cfg.jobs_of("finetune") or not cfg.jobs_of("actor")

    def line(self) -> str | None:
        """The sentence, the first time that enough is known; None before and afterwards."""
        if self._said:
            return None
        finetune, actor = self._read("finetune"), self._read("actor")
        steps = after_last_pause(finetune)
        if len(steps) < 2:
            return None
        actor = _since(actor, steps[0]["time"])
        if (found := balance(steps, actor)) is None:
            return None
        if not found.enough or steps[-1]["time"] - steps[0]["time"] < STEPS_S:
            return None
        self._said = True
        self._records.clear()
        advice = remedies(self._cfg, found.side, actor, found.updates)
        change = f"; to change: {', or '.join(advice)}" if advice else ""
        return f"after {steps[-1]['stats/completed_steps']:.0f} steps: {found}{change}"

    def _read(self, role: str) -> list[dict[str, Any]]:
        # A damaged line is said by the progress line, which reads the same file.
        self._records[role] += self._tails[role].records(metrics_record, on_damage=lambda line: None)
        return self._records[role]


def _since(records: Iterable[dict[str, Any]], time: float) -> list[dict[str, Any]]:
    """Records from the last one before a moment on."""
    found = sorted(records, key=lambda record: record["time"])
    before = sum(record["time"] <= time for record in found)
    return found[max(0, before - 1) :]
