"""Partial runs: which keys of `debug` a mode reads, and what it cannot do."""

from collections.abc import Iterator
from pathlib import Path

from pipelinerl.config.machine import ROLES_OF_MODE
from pipelinerl.config.tree import Config


def check(cfg: Config) -> Iterator[str]:
    """Problems with `debug` and with runs whose engines keep their first weights."""
    debug, shown = cfg.debug, cfg.debug.mode or "''"
    samples = "actor" in debug.roles
    if samples and debug.streams_from is not None:
        modes = ", ".join(mode for mode, roles in ROLES_OF_MODE.items() if "actor" not in roles)
        yield f"debug.streams_from={debug.streams_from}: debug.mode={shown} replays nothing; choose {modes}"
    if debug.streams_from is not None and cfg.streams.backend != "files":
        yield f"streams.backend={cfg.streams.backend}: a recording is made of files; set streams=files"
    if not samples:
        yield from _recording(cfg)
    if not samples and debug.use_existing_llms:
        yield f"debug.use_existing_llms=true: debug.mode={shown} asks no engine; leave it at false"
    if not debug.place_inference_workers and (cfg.hardware.kind == "cpu" or samples):
        why = (
            "a CPU has no devices to reserve"
            if cfg.hardware.kind == "cpu"
            else f"debug.mode={shown} has engines"
        )
        yield f"debug.place_inference_workers=false: {why}; leave it at true"
    if samples and not cfg.updates_engines and cfg.max_lag is not None:
        cause = "finetune.send_weight_updates=false" if debug.mode == "" else f"debug.mode={shown}"
        yield f"max_lag={cfg.max_lag}: {cause} sends no weights, so every text grows old; set max_lag=null"


def _recording(cfg: Config) -> Iterator[str]:
    """Modes without an actor read what an earlier run has recorded."""
    source, mode = cfg.debug.streams_from, cfg.debug.mode
    topic = "actor" if "preprocessor" in cfg.debug.roles else "training_data"
    if source is None:
        yield f"debug.mode={mode}: nothing produces its input; set debug.streams_from=RUN_FOLDER"
    elif source == cfg.output_dir:
        yield f"debug.streams_from={source}: is output_dir itself; give another output_dir"
    elif Path(source).exists() and not (Path(source) / "streams" / topic).is_dir():
        yield f"debug.streams_from={source}: has no streams/{topic}; give the folder of a run"
