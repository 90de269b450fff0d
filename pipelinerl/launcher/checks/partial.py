"""Partial runs: which keys of `debug` a mode reads, and what it cannot do."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipelinerl.base.digests import last_written
from pipelinerl.base.errors import ConfigError, first_line
from pipelinerl.base.http import CallFailed, Connection
from pipelinerl.base.hub import model_folder, of_hub
from pipelinerl.base.ports import LOOPBACK
from pipelinerl.base.tokenizing import load_tokenizer
from pipelinerl.config.files import config_path, read_started
from pipelinerl.config.machine import ROLES_OF_MODE
from pipelinerl.config.staleness import Staleness
from pipelinerl.config.tree import Config
from pipelinerl.engines.engine_metrics import STARTED, parse_prometheus
from pipelinerl.finetune.rl.losses import declared
from pipelinerl.launcher.checks.same_ids import DEADLINE_S, other_tokens, other_vocabulary, posting
from pipelinerl.observe.history import read_evaluations
from pipelinerl.streams.files import UPSTREAM_NAME
from pipelinerl.streams.kind import streams_kind


def check(cfg: Config) -> Iterator[str]:
    """Problems with `debug` and with runs whose engines keep their first weights."""
    debug, shown = cfg.debug, cfg.debug.mode or "''"
    samples = "actor" in debug.roles
    if samples and debug.streams_from is not None:
        modes = ", ".join(mode for mode, roles in ROLES_OF_MODE.items() if "actor" not in roles)
        yield f"debug.streams_from={debug.streams_from}: debug.mode={shown} replays nothing; choose {modes}"
    if debug.streams_from is not None and not streams_kind(cfg.streams).on_disk:
        yield f"streams.backend={cfg.streams.backend}: recordings are replayed from files; set streams=files"
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
    if debug.evaluates_only and not cfg.eval_at_end:
        yield "eval_at_end=false: debug.mode=evaluate does nothing else; leave it at true"
    yield from _of_one_kind(cfg)
    if samples and not cfg.updates_engines and cfg.staleness.bounded and not debug.evaluates_only:
        cause = "finetune.send_weight_updates=false" if debug.mode == "" else f"debug.mode={shown}"
        yield f"{cfg.staleness}: {cause} sends no weights, so every sample grows old; set {Staleness(None)}"


def _of_one_kind(cfg: Config) -> Iterator[str]:
    """An evaluation in a folder of something else, or after another one, perhaps of other weights."""
    folder = Path(str(cfg.output_dir))
    if cfg.output_dir is None or cfg.force_restart or not config_path(folder).is_file():
        return
    with suppress(ConfigError, OSError):  # a damaged tree is no reason, as in `resumed`
        before = OmegaConf.select(read_started(folder), "debug.mode") == "evaluate"
        if before != cfg.debug.evaluates_only:
            kind = "an evaluation" if before else "a run that is none"
            now = "debug.mode=evaluate" if cfg.debug.evaluates_only else "a run that trains"
            yield f"output_dir={folder}: holds {kind}; give {now} a folder of its own"
        elif before and read_evaluations(folder):
            yield (
                f"output_dir={folder}: holds a finished evaluation, see report/ in it; give another "
                "output_dir, or force_restart=true"
            )


def of_another_model(cfg: Config, engines: int) -> Iterator[str]:
    """A recording, or running engines, whose ids stand for other text than those of `model_path`.

    Reads tokenizers and asks engines, so that a dry run leaves it out.
    """
    replays = cfg.debug.streams_from is not None and "actor" not in cfg.debug.roles
    if not (replays or cfg.debug.use_existing_llms):
        return
    try:
        policy = load_tokenizer(cfg.model_path)
    except Exception:  # `data` says what is wrong with the model
        return
    if replays:
        key, theirs = f"debug.streams_from={cfg.debug.streams_from}", _recorded_vocabulary(cfg)
        other = other_vocabulary(theirs or {}, policy.get_vocab(), "its", f"in {cfg.model_path}")
        if other is not None:
            yield f"{key}: recorded with another tokenizer: {other}; give that run's model_path"
        return
    for index in range(engines):
        url = f"http://{LOOPBACK}:{cfg.engine.port + index}"
        with closing(Connection(url)) as connection:
            try:
                other = other_tokens(posting(connection), policy)
                if other is None and _needs_the_weights(cfg):
                    other = _other_weights(connection, cfg.model_path)
            except CallFailed as error:
                other = None if error.status in (404, 405) else f"does not answer ({first_line(error)})"
            except ValueError as error:
                other = f"its answer to /tokenize cannot be read ({first_line(error)})"
        if other is not None:
            yield (
                f"debug.use_existing_llms=true: engine {url}: {other}; start there an engine with "
                f"model_path={cfg.model_path}, or set engine.port"
            )


def _needs_the_weights(cfg: Config) -> bool:
    """Whether what running engines sample is taken for the model's; who imitates may imitate another one."""
    imitates = not declared(cfg.finetune.rl.policy_loss).compares and not cfg.debug.evaluates_only
    return not cfg.updates_engines and not imitates


def _other_weights(connection: Connection, model_path: str) -> str | None:
    """What an engine that is sent no weights says of its own, where these are not the model's.

    Raises CallFailed or ValueError for an answer that cannot be read. A trainer also compares what both
    compute.
    """

    def said(route: str) -> Any:
        try:
            return json.loads(connection.call("GET", route, DEADLINE_S))
        except CallFailed as error:
            if error.status in (404, 405):
                return None
            raise

    info, models = said("/weight_info"), said("/v1/models")
    version = info.get("weight_version") if isinstance(info, dict) else None
    if isinstance(version, str) and version.isdecimal() and int(version) > 0:
        return f"has weights of version {version} of another run"
    cards = models.get("data") if isinstance(models, dict) else None
    root = cards[0].get("root") if isinstance(cards, list) and cards and isinstance(cards[0], dict) else None
    here, there = model_folder(model_path), model_folder(str(root)) if root else None
    names = of_hub(model_path) and of_hub(str(root)) and root != model_path
    if names or (here is not None and there is not None and not here.samefile(there)):
        return f"has the model of {root}"
    if here is None or (root and there is None):  # of a hub or a container, say
        return None
    counters = parse_prometheus(connection.call("GET", "/metrics", DEADLINE_S).decode())
    started, (written, name) = counters.get(STARTED, math.inf), last_written(here)
    if written > started:
        return f"has started at {_clock(started)}, and {name} of its model was written at {_clock(written)}"
    return None


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S on %d %b", time.localtime(seconds))


def remarks(cfg: Config) -> Iterator[str]:
    """A recording of which nobody can tell whether its ids are those of the policy."""
    if (
        cfg.debug.streams_from is not None
        and "actor" not in cfg.debug.roles
        and not _recorded_vocabulary(cfg)
    ):
        yield (
            f"debug.streams_from={cfg.debug.streams_from}: no tokenizer of that run can be read, so whether "
            f"its token ids are those of model_path={cfg.model_path} is not known"
        )


def _recorded_vocabulary(cfg: Config) -> dict[str, int] | None:
    """The vocabulary of the model that a recording was sampled with, or None where it cannot be read."""
    source = Path(str(cfg.debug.streams_from))
    places = [str(source / "finetune/current")]
    with suppress(ConfigError, OSError):
        places.append(str(OmegaConf.select(read_started(source), "model_path")))
    for place in places:
        with suppress(Exception):  # a folder that is gone, a hub that cannot be reached
            return load_tokenizer(place).get_vocab()
    return None


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
    elif theirs := sorted((Path(source) / "streams" / topic).glob(f"*/*/{UPSTREAM_NAME}")):
        yield f"debug.streams_from={source}: {theirs[0]} is upstream's; give a run of this project"
    elif topic == "actor" and (attempts := _recorded_attempts(Path(source))) not in (None, cfg.attempts):
        yield (
            f"finetune.attempts={cfg.attempts}: the groups of debug.streams_from={source} have {attempts} "
            f"rollouts; set finetune.attempts={attempts}"
        )


def _recorded_attempts(source: Path) -> int | None:
    """Rollouts of a group in the recording of a run, or None where its configuration cannot be read."""
    with suppress(ConfigError, OSError):
        return OmegaConf.select(read_started(source), "attempts")
    return None
