"""Partial runs: which keys of `debug` a mode reads, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from pipelinerl.config.tree import Config

REPLAYING = ("finetune", "preprocessor", "finetune+preprocessor")
"""Modes without an actor: what they read was recorded by an earlier run."""
SAMPLING = ("", "actor", "actor+preprocessor", "open_loop")
"""Modes with rollouts, and so with engines."""


def check(cfg: Config) -> Iterator[str]:
    """Problems with `debug` and with runs whose engines keep their first weights."""
    debug, mode = cfg.debug, cfg.debug.mode
    shown = mode or "''"
    if mode in REPLAYING and debug.streams_from is None:
        yield f"debug.mode={shown}: nothing produces its input; set debug.streams_from=RUN_FOLDER"
    if mode not in REPLAYING and debug.streams_from is not None:
        modes = ", ".join(REPLAYING)
        yield f"debug.streams_from={debug.streams_from}: debug.mode={shown} replays nothing; choose {modes}"
    if debug.streams_from is not None and cfg.streams.backend != "files":
        yield f"streams.backend={cfg.streams.backend}: a recording is made of files; set streams=files"
    if mode in REPLAYING and debug.streams_from is not None and debug.streams_from == cfg.output_dir:
        yield f"debug.streams_from={debug.streams_from}: is output_dir itself; give another output_dir"
    if mode not in SAMPLING and debug.use_existing_llms:
        yield f"debug.use_existing_llms=true: debug.mode={shown} asks no engine; leave it at false"
    if not debug.place_inference_workers and (cfg.hardware.kind == "cpu" or mode in SAMPLING):
        why = (
            "a CPU has no devices to reserve"
            if cfg.hardware.kind == "cpu"
            else f"debug.mode={shown} has engines"
        )
        yield f"debug.place_inference_workers=false: {why}; leave it at true"
    if mode in SAMPLING and not cfg.updates_engines and cfg.max_lag is not None:
        cause = "finetune.send_weight_updates=false" if mode == "" else f"debug.mode={shown}"
        yield f"max_lag={cfg.max_lag}: {cause} sends no weights, so every text grows old; set max_lag=null"
