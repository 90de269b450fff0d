"""What a run over several hosts cannot do."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelinerl.config.hosts import Host
from pipelinerl.config.tree import Config
from pipelinerl.engines.wire import SHARED_MEMORY


def check(cfg: Config, hosts: Sequence[Host]) -> Iterator[str]:
    """Problems of keys that are right on one host."""
    if len(hosts) == 1:
        return
    streams, directory = cfg.streams, cfg.weights.directory
    if streams.backend == "files":
        yield f"streams.backend=files: {len(hosts)} hosts need a server between them; set streams=redis"
    elif streams.host is not None and streams.is_local:
        yield f"streams.host={streams.host}: other hosts do not reach it; give an address or leave it null"
    if cfg.debug.use_existing_llms:
        yield "debug.use_existing_llms=true: such engines are those of this host; set world.backend=local"
    if directory is not None and Path(directory).is_relative_to(SHARED_MEMORY):
        yield f"weights.directory={directory}: engines of other hosts do not see it; leave it null"
