"""The redis server of a run: what it is started with, who may read its password, who waits for it."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipelinerl.config import ConfigError, load
from pipelinerl.config.files import config_path
from pipelinerl.launcher.streams_server import forget_earlier_records
from pipelinerl.launcher.supervision.liveness import is_healthy
from pipelinerl.streams import (
    SingleStreamSpec,
    StreamError,
    read_stream,
    set_streams_backend,
    write_to_streams,
)
from pipelinerl.streams.kind import stream_settings
from pipelinerl.streams.local_server import answers
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import DryRun

PASSWORD = 'a "quoted" \\ secret'


def test_the_server_starts_as_written_and_wants_the_password(dry_run: DryRun, tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    quoted = PASSWORD.replace('"', '\\"')
    status, out, err = dry_run("+domain=guessing", "streams=redis", f'streams.password="{quoted}"')
    assert (status, err) == (0, "") and "service redis" in out
    run = tmp_path / "run"
    cfg = load(run)
    assert stream_settings(cfg.streams)["password"] == PASSWORD
    assert PASSWORD not in str(cfg.model_dump(mode="json")), "what goes to wandb holds no password"
    assert "quoted" not in config_path(run).read_text()
    for secret in (run / "conf/exp_config.secrets.json", run / "services/redis/redis.conf"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    job = next(job for job in cfg.jobs if job.name == "redis")
    assert (job.url, job.port) == (f"redis://127.0.0.1:{job.port}", cfg.streams.port)
    server = subprocess.Popen(["sh", run / "services/redis/start.sh"], stdout=subprocess.DEVNULL)
    try:
        while not is_healthy(job.url):
            assert server.poll() is None
        set_streams_backend(**stream_settings(cfg.streams))
        with write_to_streams(SingleStreamSpec(run, "actor")) as out_stream:
            out_stream.write(1)
        set_streams_backend(**stream_settings(cfg.streams) | {"password": None})
        with pytest.raises(StreamError, match=r"set streams.password"):
            read_stream(SingleStreamSpec(run, "actor"))
    finally:
        set_streams_backend("files")
        server.terminate()
        server.wait(300)
    assert (run / "streams/redis/dump.rdb").is_file(), "it saves its data when it stops"
    assert not answers("127.0.0.1", job.port or 0)


def test_the_server_of_a_run_on_one_host_asks_for_a_password_too(dry_run: DryRun, tmp_path: Path) -> None:
    """Every user of the machine reaches the loopback interface; without a password one writes samples."""
    status, out, err = dry_run("+domain=guessing", "streams=redis")
    run = tmp_path / "run"
    password = stream_settings(load(run).streams)["password"]
    assert (status, err) == (0, "") and len(password) >= 32
    assert password not in out + config_path(run).read_text()
    assert f'requirepass "{password}"' in (run / "services/redis/redis.conf").read_text().splitlines()


def test_every_role_waits_for_the_server_and_nothing_restarts_it(dry_run: DryRun, tmp_path: Path) -> None:
    from pipelinerl.launcher.commands import commands

    dry_run("+domain=guessing", "streams=redis")
    cfg = load(tmp_path / "run")
    children = {child.name: child for child in commands(cfg, tmp_path / "run", [], one_host(), None)}
    for role in ("actor", "preprocess", "finetune"):
        assert "services/redis" in children[role].depends
    assert children["services/redis"].max_restarts == 0
    assert not children["actor_vllm_0"].depends


def test_a_server_of_ones_own_is_not_started_but_asked(dry_run: DryRun, tmp_path: Path) -> None:
    dry_run("+domain=guessing", "streams=redis", "streams.host=localhost", "streams.port=1")
    run = tmp_path / "run"
    assert not (run / "services").exists()
    with pytest.raises(ConfigError, match=r"streams.host=localhost: redis at localhost:1 cannot be reached"):
        forget_earlier_records(load(run), run)
    set_streams_backend("files")
    assert OmegaConf.load(config_path(run)).streams.port == 1
