"""Host memory that the trainer and its updates take, beside the cards: estimated before anything starts.

Two moments are compared: each sharded rank loads the whole model before the ranks share it out; afterwards
states, the engines' copy and the files of versions lie there. What the processes take for themselves is
little beside either, and is not counted.
"""

from collections.abc import Mapping
from pathlib import Path

from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.launcher.cards import GIB
from pipelinerl.launcher.decoder_shape import DecoderShape
from pipelinerl.launcher.engine_memory import route_bytes
from pipelinerl.launcher.memory_values import DoesNotFit, MemoryPlan
from pipelinerl.launcher.routing_choice import may_replay
from pipelinerl.launcher.trainer_memory import inputs_bytes, sharded_bytes
from pipelinerl.weights.transports.base import transport_kind

MEMORY = Path("/proc/meminfo")
LOADING = "loading"
"""Of the parts the one that is gone before the others are there."""
REMEDIES = {
    LOADING: "world.finetune_fraction to fewer ranks",
    "states of shards": "fsdp.cpu_offload=false",
    "copy for the engines": "more cards for the trainer (world.finetune_fraction), which then keep it",
    "inputs of layers": "finetune.gradient_checkpointing=true",
    "records of experts": "max_lag to fewer samples, or finetune.rl.routing=free",
    "versions in files": "weights.directory to a folder on a disk, or weights.transport=nccl",
}


def available_memory(meminfo: Path = MEMORY) -> int | None:
    """Bytes that the host can give without swapping; None where Linux does not say."""
    try:
        lines = meminfo.read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def host_bytes(cfg: Config, shape: DecoderShape, plan: MemoryPlan) -> dict[str, float]:
    """Bytes by what they are for, of one host that has the trainer and its engines."""
    trainer, numbers = plan.trainer, shape.policy_parameters
    parts = dict.fromkeys(REMEDIES, 0.0)
    if trainer is None:
        return parts
    if trainer.sharding is not None:
        parts[LOADING] = 4.0 * numbers * trainer.ranks  # float32, on each of them
        if trainer.sharding.offload:
            parts["states of shards"] = sharded_bytes(cfg.finetune) * shape.parameters
        if trainer.whole_on_host:
            parts["copy for the engines"] = 2.0 * numbers
    if cfg.finetune.gradient_checkpointing == "offload":
        parts["inputs of layers"] = trainer.ranks * inputs_bytes(shape, cfg.finetune)
    if plan.engine is not None and cfg.updates_engines:
        version = (4.0 if engine_kind(cfg).dtype(cfg) == "float32" else 2.0) * numbers
        readers = plan.engines * plan.engine.cards if plan.engine.ahead else 0
        parts["versions in files"] = transport_kind(cfg).host_bytes(cfg, version, readers)
    if plan.engine is not None and shape.experts and may_replay(cfg):
        # Of samples in flight and of those that wait, each as long as a context.
        samples = plan.engines * plan.engine.requests + cfg.staleness.waiting
        parts["records of experts"] = 1.0 * samples * cfg.engine.max_model_len * route_bytes(shape)
        parts["records of experts"] += plan.engines * plan.engine.records
    return parts


def most_at_once(parts: Mapping[str, float]) -> float:
    """The larger of both moments."""
    return max(parts[LOADING], sum(parts.values()) - parts[LOADING])


def check_host(parts: Mapping[str, float], available: int | None) -> None:
    """Raises DoesNotFit, in one line with the largest part's remedy, for more than is available."""
    needed = most_at_once(parts)
    if available is None or needed <= available:
        return
    at_once = {LOADING: parts[LOADING]} if parts[LOADING] == needed else {**parts, LOADING: 0.0}
    largest = max(at_once, key=lambda name: at_once[name])
    raise DoesNotFit(
        f"host memory: the trainer needs {needed / GIB:.0f} GiB ({listed(at_once)}), "
        f"{available / GIB:.0f} GiB are available; set {REMEDIES[largest]}, or use a host with more memory"
    )


def listed(parts: Mapping[str, float]) -> str:
    """The parts that are there, for people."""
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size > 0)
