"""What a run uses and why, in one table that the launcher prints before it starts: a view of its plan."""

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from pipelinerl.base.errors import counted, printable
from pipelinerl.base.files import write_whole
from pipelinerl.base.hub import of_hub
from pipelinerl.config.compose import Composition
from pipelinerl.config.environments import environment_specs
from pipelinerl.config.finetune import Checkpointing
from pipelinerl.config.hosts import Host
from pipelinerl.config.origins import DEFAULT
from pipelinerl.config.secrets import hidden
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import HOST_BACKENDS
from pipelinerl.domain import ServiceSpec
from pipelinerl.engines.kind import Why, engine_kind
from pipelinerl.launcher import mps
from pipelinerl.launcher.cards import GIB, imagined_cards
from pipelinerl.launcher.checks.inert import left_over
from pipelinerl.launcher.host_memory import listed as in_host
from pipelinerl.launcher.host_memory import most_at_once
from pipelinerl.launcher.memory_choice import (
    ACTOR,
    AHEAD,
    FINETUNE,
    FSDP,
    ROWS,
    SIZED,
    TRANSPORT,
    UTILIZATION,
)
from pipelinerl.launcher.plan import NO_ADDRESS, RunPlan
from pipelinerl.launcher.routing_choice import KEY as ROUTING
from pipelinerl.launcher.trainer_choice import TrainerChoice
from pipelinerl.observe.progress import Output
from pipelinerl.observe.report_page import CHOICES
from pipelinerl.observe.wandb_run import wandb_mode
from pipelinerl.weights.transports.base import adapters_alone, weights_ahead, why_merged

STEP_KEYS = ("finetune.attempts", "finetune.train_batch_size", "finetune.max_train_steps")


class Row(NamedTuple):
    """One row."""

    subject: str
    chosen: str
    because: str
    change: str


def table(plan: RunPlan) -> list[Row]:
    """Rows of the table, in the order in which a run uses them, without secrets."""
    return [Row(*(printable(hidden(cell, plan.secrets)) for cell in row)) for row in _rows(plan)]


def _rows(plan: RunPlan) -> Iterator[Row]:
    cfg, composition, hosts, checkpoint = plan.cfg, plan.configuration, plan.hosts, plan.facts.checkpoint
    given, reasons = set(composition.user_keys), plan.reasons

    def why(key: str, otherwise: str = "", *others: str) -> str:
        """Why a key has its value: it was given, a file says it, or `otherwise`.

        The row shows `others` too. Those that were given are named, and the files of those that were not.
        """
        also = ", ".join(dict.fromkeys(one for other in others if (one := composition.given(other))))
        unsaid = [
            one for one in others if not composition.given(one) and composition.source(one) not in reasons
        ]
        rest = composition.origin(*unsaid)
        if key in given:
            named = unsaid and (rest != DEFAULT or not otherwise)
            return f"given, else {rest}" if named else "given"
        if otherwise != reasons.get(key) and composition.decided(key):
            otherwise = ""
        if not otherwise:
            otherwise = composition.origin(*([] if composition.given(key) else [key]), *unsaid)
        elif rest != DEFAULT:
            otherwise += f"; {rest}"
        return f"{also} given, else {otherwise}" if also else otherwise

    yield Row("output folder", str(plan.output_dir), why("output_dir", "default"), "output_dir=DIR")
    yield _hardware(cfg, composition, hosts)
    yield from _hosts(cfg, hosts, why)
    model = str(checkpoint) if checkpoint else cfg.model_path
    because = "latest checkpoint" if checkpoint else why("model_path")
    change = "output_dir=DIR or force_restart=true" if checkpoint else "model_path=DIR"
    yield Row("model", model, because, change)
    roles = cfg.debug.roles  # what no role of this run reads was not chosen
    if "actor" in roles:
        yield _datasets(cfg, composition)
    if plan.problems:
        yield Row("problems", plan.problems, f"of {cfg.dataset_loader}", "dataset_loader=PATH")
    if {"actor", "actor_llm"} & roles:
        yield _engine(cfg, why)
    else:
        yield Row("engines", "none", f"debug.mode={cfg.debug.mode}", "debug.mode=''")
    yield from _memory(plan, why)
    yield from (Row(*row) for row in engine_kind(cfg).more_choices(cfg, hosts, why))
    if cfg.engine.per_card > 1:
        way = "beside each other through MPS" if mps.wanted(cfg) else f"in turns: no {mps.CONTROL} here"
        yield Row(
            "engines of a card", f"{cfg.engine.per_card}, {way}", why("engine.per_card"), "engine.per_card=N"
        )
    key, in_flight = "actor.llm_max_rollouts", f"{cfg.actor.llm_max_rollouts} for each engine"
    if "actor" in roles:
        yield Row("rollouts at once", in_flight, why(key, reasons.get(key, "")), f"{key}=N")
    if cfg.debug.evaluates_only:
        yield Row("evaluation", "once, nothing is trained", "debug.mode=evaluate", "debug.mode=''")
        yield _sampling(cfg, given)
    else:
        yield from _training(plan, why)
    yield _wandb(cfg)
    yield from _servers(cfg, plan.services, reasons.get("streams.backend", NO_ADDRESS), why)
    for service, said in plan.facts.named:
        shown = f"{service.url}, {said}" if said else service.url
        yield Row(f"service {service.name}", shown, "given", f"{service.url_key}=null")
    if plan.facts.changed:
        yield Row("changed", "; ".join(plan.facts.changed), "given to this resume", "the former values")
    yield from _rest(cfg)


def _training(plan: RunPlan, why: Why) -> Iterator[Row]:
    """What a run that only evaluates has none of."""
    cfg, reasons = plan.cfg, plan.reasons
    ahead = ", received ahead" if weights_ahead(cfg) else ""
    sent = f"{cfg.weights.transport}{ahead}, KV cache {cfg.weights.kv}"
    because = why(TRANSPORT, reasons.get(TRANSPORT, ""), "weights.kv", AHEAD)
    if not ahead and (copy := reasons.get(AHEAD)) not in (None, SIZED):
        because += f"; {copy}"
    if cfg.updates_engines:
        yield Row("weight updates", sent, because, "weights.kv=keep|recompute")
    elif cfg.debug.mode in ("", "open_loop"):
        # An evaluation after N trained samples is of the first weights as well.
        sends = "finetune.send_weight_updates"
        because, change = "debug.mode=open_loop", "debug.mode=''"
        if not cfg.debug.mode:
            because, change = f"{sends}=false", f"{sends}=true"
        yield Row("weight updates", "none: the engines keep model_path", because, change)
    if cfg.finetune.lora.enabled and cfg.updates_engines:
        sent = "sent alone" if adapters_alone(cfg) else "sent merged"
        because = why_merged(cfg) or "engines add them to their weights, so that no token costs more"
        yield Row("adapters", sent, why("weights.lora", because), "weights.lora=merged|adapter")
    step = f"{cfg.derived.texts_per_step} samples, {counted(cfg.attempts, 'rollout')} a problem"
    key = "finetune.gradient_accumulation_passes"
    epochs = cfg.finetune.max_epochs
    limits = f"{cfg.finetune.last_step} steps" + (f" or {epochs} epochs" if epochs is not None else "")
    if "finetune" in cfg.debug.roles:
        because = why(key, "", *STEP_KEYS, *(["finetune.max_epochs"] if epochs is not None else []))
        asked = cfg.finetune.train_batch_size * cfg.finetune.gradient_accumulation_passes
        if asked != cfg.derived.texts_per_step:
            because += f"; {asked} do not divide among {cfg.derived.trainer_ranks} trainer ranks"
        yield Row("optimizer step", f"{step}, {limits}", because, f"{key}=N")
    if cfg.trainer_on_gpu and cfg.jobs_of("finetune"):
        yield _trainer(cfg, why, reasons.get(FSDP, "default"))
        yield from _layers(plan.trainer, why)
    if plan.routing.mixture:
        shown = "replayed from the engines" if plan.routing.returned else "chosen by the trainer"
        yield Row("experts", shown, why(ROUTING, plan.routing.because), f"{ROUTING}=replay|free")
    yield _lag(cfg, why)
    if "actor" in cfg.debug.roles:
        yield _evaluation(cfg, why)


def _hardware(cfg: Config, composition: Composition, hosts: Sequence[Host]) -> Row:
    devices = sum(len(host.devices) for host in hosts)
    found = f"{counted(len(composition.devices), 'GPU')} found" if composition.devices else "no GPU found"
    used, given, change = "cpu", "hardware" in composition.user_keys, "hardware=cpu|gpu"
    if cfg.hardware.kind == "gpu":
        used = f"gpu, {counted(devices, 'GPU')}"
        if not composition.devices:
            used, change = f"{used}, none of them here", f"{change} hardware.devices=4xH100-80GB"
    elif composition.devices:
        used = f"cpu, though {found}"
    because = "given" if given else found
    if devices and not composition.devices and not cfg.hardware.devices and not HOST_BACKENDS.of(cfg).several:
        because += "; as many GPUs as the shares of world"  # which a dry run imagines
    return Row("hardware", used, because, change)


def _hosts(cfg: Config, hosts: Sequence[Host], why: Why) -> Iterator[Row]:
    """Which process runs on which host, with its GPUs; nothing for the usual one."""
    for host in hosts if HOST_BACKENDS.of(cfg).several else ():
        gpus = {job.name: f" ({','.join(map(str, job.gpus))})" if job.gpus else "" for job in cfg.jobs}
        here = [f"{job.name}{gpus[job.name]}" for job in cfg.jobs if job.node_rank == host.rank]
        because = why("world.hosts", "in the Ray cluster") if host.rank else "the launcher's"
        shown = f"{host.name}, {host.address}: {', '.join(here) or 'nothing'}"
        yield Row(f"host {host.rank}", shown, because, "world.hosts=N")


def _datasets(cfg: Config, composition: Composition) -> Row:
    train, test = (", ".join(names) or "none" for names in (cfg.train_dataset_names, cfg.test_dataset_names))
    given = {"train_dataset_names", "test_dataset_names"} & set(composition.user_keys)
    because = "of this domain" if cfg.domain_name else "of your file"
    if cfg.debug.evaluates_only:  # which loads no other
        if "test_dataset_names" in given or not composition.datasets_named:
            because = "given" if given else "nobody names any"
        return Row("datasets", f"evaluation: {test}", because, "test_dataset_names=[...]")
    if not composition.datasets_named:
        because = "nobody names any"
    elif len(given) == 2:
        because = "given"
    elif given:
        because = (
            f"given, evaluation {because}"
            if "train_dataset_names" in given
            else f"{because}, evaluation given"
        )
    return Row("datasets", f"{train}; evaluation: {test}", because, "train_dataset_names=[...]")


def _engine(cfg: Config, why: Why) -> Row:
    engines = len(cfg.jobs_of("actor_llm"))
    size = f"{cfg.engine.max_num_seqs} requests of {cfg.engine.max_model_len} tokens"
    if cfg.debug.use_existing_llms:
        shown = f"{engines}, which run already"
        return Row("engines", shown, why("debug.use_existing_llms"), "debug.use_existing_llms=false")
    shown = f"{engines} x {cfg.engine.kind}, {size}"
    return Row("engines", *engine_kind(cfg).choice(cfg, shown, why))


def _memory(plan: RunPlan, why: Why) -> Iterator[Row]:
    """How the cards are divided, and what lies on them."""
    cfg, memory, reasons = plan.cfg, plan.memory, plan.reasons
    trainers, engines = cfg.jobs_of("finetune"), cfg.jobs_of("actor_llm")
    if cfg.hardware.kind != "gpu" or not (trainers and engines):
        return
    ranks, key = sum(len(job.gpus) for job in trainers), ACTOR
    each = f" of {len(engines[0].gpus)} GPUs" if len(engines[0].gpus) > 1 else ""
    shown = f"{counted(len(engines), 'engine')}{each}, {counted(ranks, 'trainer rank')}"
    if engines[0].node_rank == trainers[0].node_rank and set(engines[0].gpus) & set(trainers[0].gpus):
        change = "world.share_device=false hardware.devices=N"  # several are refused while one is shared
        yield Row("division of GPUs", "one for engine and trainer", "there is one", change)
    elif cfg.world.actor_hosts:  # whole hosts are the engines', whatever the fractions say of the others
        yield Row("division of GPUs", shown, why("world.actor_hosts"), "world.actor_hosts=K")
    else:
        because = why(key, reasons.get(key, "halves, the remainder to the trainer"), FINETUNE)
        yield Row("division of GPUs", shown, because, f"{key}=N {FINETUNE}=M")
    if memory is None:
        imagined = imagined_cards(cfg.hardware.devices) is not None
        unknown = ("" if imagined else "the card's memory or ") + "the model's sizes cannot be read"
        named = imagined or bool(plan.configuration.devices)
        change = "model_path=DIR" if named else "hardware.devices=4xH100-80GB imagines cards"
        if named and of_hub(cfg.model_path):
            change = f"hf download {cfg.model_path} config.json"
        yield Row("bytes of GPUs", "not planned", unknown, change)
        return
    changes = {"engine": UTILIZATION, "trainer": "finetune.seq_length"}
    for role, parts in memory.lines():
        listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size > GIB / 20)
        total = f"{sum(parts.values()) / GIB:.1f} of {memory.card.total / GIB:.1f} GiB"
        because = str(memory.card)
        if role == "trainer" and (shorter := reasons.get(ROWS)):
            because += f"; {shorter}"
        yield Row(f"bytes for {role}", f"{total}: {listed}", because, f"{changes[role]}=N")
    if memory.host is not None and (most := most_at_once(memory.host)):
        known = memory.host_available
        of = "unknown" if known is None else f"{known / GIB:.1f} GiB"
        said = f"{most / GIB:.1f} of {of}: {in_host(memory.host)}"
        because = "the larger of loading and of the run after it"
        yield Row("bytes of host memory", said, because, "fsdp.cpu_offload, weights.transport")


def _trainer(cfg: Config, why: Why, chosen: str) -> Row:
    """What is sharded; a CPU has no such choice."""
    gpus, sharding = sum(len(job.gpus) for job in cfg.jobs_of("finetune")), cfg.sharding
    if sharding is None:
        shared = "nothing sharded"
    else:
        shared = "all sharded, layers gathered once a pass" if sharding.keep_gathered else "all sharded"
        shared += ", states in host memory" if sharding.offload else ""
    if cfg.derived.whole_on_host:
        shared += ", the engines' copy in host memory"
    because = f"deepspeed_config={cfg.deepspeed_config}" if cfg.use_deepspeed else why("use_fsdp", chosen)
    if sharding is not None and sharding.offload:
        because = "fsdp.cpu_offload=true"
    if (together := cfg.finetune.seq_parallel) > 1:
        shared += f", each row over {together}"
        because += f"; finetune.seq_parallel={together}"
    return Row("trainer", f"{counted(gpus, 'GPU')}, {shared}", because, "use_fsdp=true|false")


def _layers(trainer: TrainerChoice, why: Why) -> Iterator[Row]:
    """What is compiled and what is recomputed."""
    shown = {True: "from the start", False: "no", "later": "later"}[trainer.compile]
    because = trainer.because_compile or why("finetune.compile")
    yield Row("compilation", shown, because, "finetune.compile=BOOL")
    plain, compiled = _recomputed(trainer.gradient_checkpointing), _recomputed(trainer.compiled_checkpointing)
    shown = compiled if trainer.compile is True else plain
    if trainer.compile == "later" and plain != compiled:
        shown += f"; once compiled {compiled}"
    key = "finetune.gradient_checkpointing"
    because = trainer.because_checkpointing or why(key)
    yield Row("recomputation", shown, because, f"{key}=WAY")
    if (missing := trainer.missing) is not None:
        yield Row("layers with a state", "torch's own form, slow", missing.because, missing.remedy)


def _recomputed(mode: Checkpointing) -> str:
    if mode == "selective":
        return "selective"
    if mode == "offload":
        return "all, from inputs in host memory"
    if isinstance(mode, bool):
        return "all" if mode else "none"
    return f"one in {mode}"


def _lag(cfg: Config, why: Why) -> Row:
    bound = cfg.staleness
    shown, cut = bound.shown()
    because = why(bound.KEY)
    return Row("age of weights", shown, f"{because}; {cut}" if cut else because, f"{bound.KEY}={bound.UNIT}")


def _evaluation(cfg: Config, why: Why) -> Row:
    if not cfg.test_dataset_names:
        return Row("evaluation", "none", "no test datasets", "test_dataset_names=[...]")
    every = cfg.eval_every_n_versions
    parts = ["first version"] if every else []
    parts += [f"every {every} samples"] if 0 < every < cfg.total_texts() else []
    parts += ["last version"] if cfg.eval_at_end else []
    key = "eval_every_n_versions"
    because = why(key, "", "eval_at_end")
    return Row("evaluation", ", ".join(parts) or "none", because, f"{key}=SAMPLES")


def _sampling(cfg: Config, given: Collection[str]) -> Row:
    """How an evaluation draws: with `test_llm`, whatever was given for training."""
    drawn = cfg.test_llm.parameters
    shown = f"temperature {drawn.temperature:g}, top_p {drawn.top_p:g}, top_k {drawn.top_k}"
    unread = ", ".join(key for key in given if key.startswith("llm.parameters."))
    because = f"test_llm.parameters; {unread} not read" if unread else "test_llm.parameters"
    return Row(
        "sampling",
        f"{shown}, at most {drawn.max_tokens} tokens",
        because,
        "test_llm.parameters.temperature=N",
    )


def _wandb(cfg: Config) -> Row:
    if not cfg.wandb.use_wandb:
        return Row("wandb", "off", "wandb.use_wandb=false", "wandb.use_wandb=true")
    mode = wandb_mode()
    shown = f"online, project {cfg.wandb.wandb_project_name}" if mode == "online" else mode
    if given := os.environ.get("WANDB_MODE"):
        return Row("wandb", shown, f"WANDB_MODE={given}", "WANDB_MODE=MODE")
    if mode == "online":
        return Row("wandb", shown, "there is a key", "WANDB_MODE=offline")
    return Row("wandb", shown, "WANDB_API_KEY is not set", "wandb.use_wandb=false")


def _servers(cfg: Config, services: Sequence[ServiceSpec], why_redis: str, why: Why) -> Iterator[Row]:
    """Where services listen, and how many servers each environment got, with those that got none."""
    specs = {spec.name: spec for spec in services}  # not of the launcher's redis, which no domain asks for
    for job in cfg.jobs_of("service"):
        spec = specs.get(job.name)
        address = f"{job.url}, {spec.note}" if spec and spec.note else job.url
        because = "no address is configured" if spec else why_redis
        change = f"{spec.url_key}=URL" if spec else "streams.host=HOST"
        yield Row(f"service {job.name}", address, because, change)
    served = Counter(job.environment_key for job in cfg.jobs_of("environment"))
    specs_of, number = environment_specs(cfg), "world.env_replicas"
    shown = [f"{key}: {counted(served[key], 'server')}" for key in specs_of]
    because = "shares of actor.domain_mix" if cfg.actor.domain_mix else f"mode {cfg.world.environment_mode}"
    own = any(spec.get("replicas_per_actor") is not None for spec in specs_of.values())
    if served and not (cfg.actor.domain_mix or own):
        because = why(number, because, f"{number}_per_actor")
    if shown:
        yield Row("environments", ", ".join(shown), because, f"{number}=N")


def _rest(cfg: Config) -> Iterator[Row]:
    """What few runs have."""
    if cfg.domain_keys:
        keys = ", ".join(cfg.domain_keys)
        named = f"+domain={cfg.domain_name}" if cfg.domain_name else "--config-name=FILE"
        yield Row("keys of the domain", keys, "brought by its file", named)
    if unread := left_over(cfg):
        yield Row("without effect", ", ".join(unread), "no run reads them", "leave them out")
    if cfg.attempt:
        start = f"start number {cfg.attempt + 1}"
        yield Row("resuming", start, "same output folder", "force_restart=true")


_FOUR_COLUMNS = 110
"""Characters of a terminal from which on the table has four columns that can be read."""


def print_choices(plan: RunPlan) -> None:
    """Print the table; plain lines where the output is no terminal keep it readable in logs."""
    output = Output(width=None if os.isatty(1) else 144)
    output.print(choices_table(table(plan), output.width))


def choices_table(rows: Sequence[Row], width: int) -> Table:
    """What is chosen, why, and the key; on a narrow terminal the last two stand below the first."""
    if width < _FOUR_COLUMNS:
        shown = Table(title="What this run uses", title_justify="left", box=None, show_header=False)
        shown.add_column(no_wrap=True)
        shown.add_column(overflow="fold")
        for row in rows:
            shown.add_row(row.subject, row.chosen)
            shown.add_row("", f"{row.because}; change with {row.change}", style="dim")
        return shown
    shown = Table(title="What this run uses", title_justify="left", show_lines=False)
    for column in ("", "chosen", "because", "change with"):
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def keep_choices(output_dir: Path, rows: Sequence[Row]) -> None:
    """Store the table, for the report as a page."""
    write_whole(output_dir / CHOICES, json.dumps([row._asdict() for row in rows], indent=1) + "\n")
