"""Print a stream as JSON, one record per line: python -m pipelinerl.streams OUTPUT_DIR TOPIC [--follow]."""

import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf

from pipelinerl.base.errors import CommandParser, leave, printable
from pipelinerl.config.files import config_path, read_started
from pipelinerl.config.machine import StreamsConfig
from pipelinerl.streams import (
    EARLIEST,
    SingleStreamSpec,
    StreamError,
    StreamReader,
    is_for_people,
    list_streams,
    read_stream,
    set_streams_backend,
    wait_any,
)
from pipelinerl.streams.errors import WrongPassword
from pipelinerl.streams.kind import stream_settings, streams_kind
from pipelinerl.streams.local_server import answers, local_server
from pipelinerl.streams.segments import plain


def find_partitions(
    output_dir: Path, topic: str, instance: int | None, partition: int | None
) -> list[SingleStreamSpec]:
    """All partitions of a topic; FileNotFoundError names the topics there are."""
    specs = list_streams(output_dir)
    topics = sorted({spec.topic for spec in specs})
    if topic not in topics:
        there = f"there are {', '.join(topics)}" if topics else "there is none at all"
        raise FileNotFoundError(f"there is no stream {topic} in {output_dir}; {there}")
    found = [spec for spec in specs if spec.topic == topic and instance in (None, spec.instance)]
    return [spec for spec in found if partition in (None, spec.partition)]


@contextmanager
def backend_of(output_dir: Path) -> Iterator[None]:
    """Use the streams of the run in `output_dir` as its configuration says; files where it has none."""
    if not config_path(output_dir).is_file():
        yield
        return
    streams = OmegaConf.select(read_started(output_dir), "streams")
    chosen = StreamsConfig.model_validate(OmegaConf.to_container(streams))
    settings = stream_settings(chosen)
    saved = output_dir / "streams" / "redis" / "dump.rdb"
    if streams_kind(chosen).on_disk or _has_run(settings, output_dir, saved.is_file()):
        set_streams_backend(**settings)
        yield
    elif saved.is_file():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy2(saved, folder)
            password = secrets.token_urlsafe()
            with local_server(Path(folder), password=password) as port:
                set_streams_backend("redis", port=port, password=password, namespace=settings["namespace"])
                yield
    else:
        raise StreamError(
            f"redis at {settings['host']}:{settings['port']} has nothing of this run; there is no {saved}"
        )


def _has_run(settings: dict[str, Any], output_dir: Path, saved: bool) -> bool:
    """Whether the server of the run is still there, and not that of a later run at the same port, which asks
    for another password."""
    if not answers(settings["host"], settings["port"]):
        return False
    set_streams_backend(**settings)
    try:
        return any(not is_for_people(spec.topic) for spec in list_streams(output_dir))
    except WrongPassword:
        if not saved:
            raise
        return False


def records(readers: list[StreamReader], follow: bool) -> Iterator[Any]:
    """All records, partition after partition; with `follow`, for ever."""
    while True:
        for reader in readers:
            while (record := reader.next_record()) is not None:
                yield record[0]
        if not follow:
            return
        sys.stdout.flush()
        wait_any(readers, 1.0)


def print_streams(specs: list[SingleStreamSpec], follow: bool, limit: int | None) -> None:
    """Write the records of all partitions to stdout, and incomplete ones at their ends to stderr."""
    encoder = msgspec.json.Encoder(enc_hook=plain)
    with ExitStack() as stack:
        readers = [stack.enter_context(read_stream(spec, EARLIEST)) for spec in specs]
        for tree in islice(records(readers, follow), limit):
            sys.stdout.write(printable(encoder.encode(tree).decode(), "\\u{:04x}") + "\n")  # JSON's own form
        for reader in readers:
            if "incomplete" in (end := reader.describe_end()):
                print(f"stream {reader.spec}: {end}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = CommandParser(prog="python -m pipelinerl.streams", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="the run's folder")
    parser.add_argument("topic", help="actor, training_data, stats, weight_update_request, ...")
    parser.add_argument("--follow", action="store_true", help="go on and wait for more")
    parser.add_argument("--limit", type=int, default=None, help="stop after N records")
    parser.add_argument("--instance", type=int, default=None)
    parser.add_argument("--partition", type=int, default=None)
    args = parser.parse_args(argv)
    try:
        with backend_of(args.output_dir):
            specs = find_partitions(args.output_dir, args.topic, args.instance, args.partition)
            if not specs:
                print(f"stream {args.topic} has no such instance or partition", file=sys.stderr)
                return 1
            print_streams(specs, args.follow, args.limit)
    except (StreamError, FileNotFoundError, ValueError) as error:
        print(printable(f"streams: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    leave("streams", main)
