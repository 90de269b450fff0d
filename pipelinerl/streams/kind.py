"""What a back-end of streams is: one object that says all that depends on `streams.backend`.

The launcher asks it, and `set_streams_backend` lets it make the back-end of a process.
"""

import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from pipelinerl.config.machine import StreamsConfig
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import STREAM_BACKENDS, Variant
from pipelinerl.streams.files import FilesBackend

_SAVE = r"([1-9]\d* \d+( [1-9]\d* \d+)*)?"
OF_A_SERVER = ("host", "port", "save", "password", "namespace")


class StreamsKind(Variant):
    """A back-end of streams."""

    on_disk: bool
    """Whether records are files below `output_dir`; otherwise a server has them, which outlives processes."""

    def make(self, **settings: Any) -> FilesBackend:
        """The back-end of this process, with what `settings` gives: its own, or a run's section `streams`."""
        raise NotImplementedError

    def settings(self, streams: StreamsConfig) -> dict[str, Any]:
        """Arguments of `set_streams_backend`."""
        return {name: getattr(streams, name) for name in ("backend", "max_unread", "trim", "deadline_s")}

    def starts_server(self, streams: StreamsConfig) -> bool:
        """Whether the launcher starts a server for this run."""
        return False

    def problems_between(self, cfg: Config, hosts: int) -> Iterator[str]:
        """What is wrong with it between so many hosts, more than one."""
        return iter(())


class Files(StreamsKind):
    """Files below `output_dir`."""

    name = "files"
    on_disk = True

    def make(self, **settings: Any) -> FilesBackend:
        return FilesBackend(**{name: value for name, value in settings.items() if name not in OF_A_SERVER})

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        for key in OF_A_SERVER:
            if getattr(cfg.streams, key) != StreamsConfig.model_fields[key].default:
                yield f"streams.{key}: files have no server; leave it at its default or choose streams=redis"

    def problems_between(self, cfg: Config, hosts: int) -> Iterator[str]:
        yield f"streams.backend=files: {hosts} hosts need a server between them; set streams=redis"


class Redis(StreamsKind):
    """A redis server, the launcher's own or one that is there."""

    name = "redis"
    on_disk = False

    def make(self, **settings: Any) -> FilesBackend:
        from pipelinerl.streams.redis_streams import RedisBackend  # the client is an extra

        settings.pop("save", None)  # the server's own
        if settings.get("host") is None:
            settings.pop("host", None)
        return RedisBackend(**settings)

    def settings(self, streams: StreamsConfig) -> dict[str, Any]:
        password = streams.password.get_secret_value() if streams.password is not None else None
        server = {"host": streams.host or "127.0.0.1", "port": streams.port, "password": password}
        return {**super().settings(streams), **server, "namespace": streams.namespace}

    def starts_server(self, streams: StreamsConfig) -> bool:
        return streams.host is None

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        streams = cfg.streams
        if cfg.debug.streams_from:
            yield f"debug.streams_from={cfg.debug.streams_from}: recordings are files; set streams=files"
        if find_spec("redis") is None:
            yield "streams.backend=redis: the Python client is not installed; pip install 'pipelinerl[redis]'"
        if self.starts_server(streams) and not dry_run and shutil.which("redis-server") is None:
            yield "streams.backend=redis: no redis-server on this machine; install it or set streams.host"
        if not re.fullmatch(_SAVE, streams.save, re.ASCII):
            yield (
                f"streams.save={streams.save}: redis takes pairs of seconds and changes, such as '3600 1'; "
                "'' is never"
            )
        empty = streams.password is not None and not streams.password.get_secret_value()
        if self.starts_server(streams) and empty:
            yield "streams.password='': a run's redis-server asks for one; leave it null, and one is made"
        if not streams.is_local and streams.password is None:
            yield f"streams.host={streams.host}: beyond this machine; set streams.password"

    def problems_between(self, cfg: Config, hosts: int) -> Iterator[str]:
        host = cfg.streams.host
        if host is not None and cfg.streams.is_local:
            yield f"streams.host={host}: other hosts do not reach it; give an address or leave it null"


FILES, REDIS = Files(), Redis()


def streams_kind(streams: StreamsConfig) -> StreamsKind:
    """The back-end that a run has chosen."""
    found: StreamsKind = STREAM_BACKENDS.find(streams.backend)
    return found


def stream_settings(streams: StreamsConfig) -> dict[str, Any]:
    """Arguments of `set_streams_backend` for a run."""
    return streams_kind(streams).settings(streams)
