"""The redis server that a run with `streams=redis` starts for itself; it is gone with the run.

It is reached over the loopback interface only or by the processes of several hosts, and with a password.
"""

import json
from pathlib import Path

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.files import write_whole
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config
from pipelinerl.launcher.placement import STREAMS_SERVICE
from pipelinerl.launcher.supervision import ChildSpec, HealthCheck
from pipelinerl.streams.kind import stream_settings, streams_kind

CHILD = f"services/{STREAMS_SERVICE}"
START_DEADLINE_S = 60.0


def server_job(cfg: Config) -> Job | None:
    """The job of the server, if this run starts one."""
    jobs = [job for job in cfg.jobs_of("service") if job.url.startswith("redis://")]
    return jobs[0] if jobs else None


def server_child(cfg: Config, output_dir: Path, job: Job) -> ChildSpec:
    """Its death ends the run: what it held cannot be read any more."""
    return ChildSpec(
        name=CHILD,
        argv=["redis-server", str(_config_path(output_dir))],
        log_dir=output_dir / CHILD,
        health=HealthCheck(
            url=job.url, start_deadline_s=START_DEADLINE_S, liveness_deadline_s=cfg.engine.stall_deadline_s
        ),
    )


def write_server_config(cfg: Config, output_dir: Path) -> None:
    """The server's configuration, readable by its owner only, because it may hold a password."""
    job = server_job(cfg)
    if job is None:
        return
    data = output_dir / "streams" / "redis"
    data.mkdir(parents=True, exist_ok=True)
    save = cfg.streams.save or '""'
    # Redis reads strings as JSON writes them.
    lines = [
        f"bind {job.hostname}",
        f"port {job.port}",
        "protected-mode yes",
        "daemonize no",
        f"dir {json.dumps(str(data), ensure_ascii=False)}",
        f"save {save}",
        "appendonly no",
        "maxmemory-policy noeviction",
    ]
    if cfg.streams.password is not None:
        lines.append(f"requirepass {json.dumps(cfg.streams.password.get_secret_value(), ensure_ascii=False)}")
    write_whole(_config_path(output_dir), "\n".join(lines) + "\n", mode=0o600)


def forget_earlier_records(cfg: Config, output_dir: Path) -> None:
    """Empty a server that outlives the run. Raises ConfigError when it cannot be reached."""
    if streams_kind(cfg.streams).on_disk or server_job(cfg) is not None:
        return
    from pipelinerl.streams import StreamError, list_streams, remove_stream, set_streams_backend
    from pipelinerl.streams.specs import is_for_people

    set_streams_backend(**stream_settings(cfg.streams))
    try:
        for topic in {spec.topic for spec in list_streams(output_dir) if not is_for_people(spec.topic)}:
            remove_stream(output_dir, topic)
    except StreamError as error:
        raise ConfigError(f"streams.host={cfg.streams.host}: {error}") from error


def _config_path(output_dir: Path) -> Path:
    return output_dir / CHILD / "redis.conf"
