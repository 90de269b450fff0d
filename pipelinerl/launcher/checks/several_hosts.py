"""What a run over several hosts cannot do."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelinerl.config.hosts import Host
from pipelinerl.config.tree import Config
from pipelinerl.engines.wire import SHARED_MEMORY
from pipelinerl.streams.kind import streams_kind


def check(cfg: Config, hosts: Sequence[Host]) -> Iterator[str]:
    """Problems of keys that are right on one host."""
    if len(hosts) == 1:
        return
    directory = cfg.weights.directory
    yield from streams_kind(cfg.streams).problems_between(cfg, len(hosts))
    if cfg.debug.use_existing_llms:
        yield "debug.use_existing_llms=true: finds engines on this host only; set world.backend=local"
    if directory is not None and Path(directory).is_relative_to(SHARED_MEMORY):
        yield f"weights.directory={directory}: engines of other hosts do not see it; leave it null"
