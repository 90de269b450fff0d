"""Every backend of streams behind one fixture."""

import contextlib
import io
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.streams import SingleStreamSpec, read_stream, set_streams_backend, write_to_streams
from pipelinerl.streams.__main__ import main
from tests.support.redis_server import redis_server

Choose = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(params=["inotify", "poll", "redis"])
def choose(request: pytest.FixtureRequest) -> Iterator[Choose]:
    """Selects the backend under test with further settings, and returns all of them."""
    if request.param == "redis":
        fixed = {"backend": "redis", "port": request.getfixturevalue("redis_port")}
    else:
        fixed = {"backend": "files", "use_inotify": request.param == "inotify"}

    def chosen(**settings: Any) -> dict[str, Any]:
        if fixed["backend"] == "redis":
            settings.pop("segment_bytes", None)
        set_streams_backend(**fixed, **settings)
        return fixed | settings

    chosen()
    yield chosen
    set_streams_backend("files")


def fill(spec: SingleStreamSpec, *records: Any, mode: str = "a") -> None:
    """Records of a writer that ends."""
    with write_to_streams(spec, mode) as out:
        for record in records:
            out.write(record)


class Bomb:
    """Goes off when its pickle is read."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was read",))


def print_stream(
    output_dir: Path, streams: dict[str, Any], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """The command that prints a stream, in the folder of a run with these settings."""
    config = output_dir / "conf" / "exp_config.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"streams": streams}))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(output_dir), *arguments])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def content(spec: SingleStreamSpec, offset: int = 0) -> list[Any]:
    """What a reader finds that begins at `offset`."""
    with read_stream(spec, offset) as stream:
        return stream.read_available()


@pytest.fixture
def spec(tmp_path: Path) -> SingleStreamSpec:
    return SingleStreamSpec(tmp_path, "actor")
