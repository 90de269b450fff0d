"""The trainer's word to the launcher: this engine may hold half a model, put a new process in its place.

An append-only file, `<output_dir>/finetune/broken_engines.jsonl`; the launcher reads what is new.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from pipelinerl.base.line_file import LineFile, LineTail


class _Request(msgspec.Struct):
    url: str
    cause: str


_decode = msgspec.json.Decoder(_Request).decode


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "finetune" / "broken_engines.jsonl"


def ask_for_replacement(output_dir: Path, urls: Iterable[str], cause: str) -> None:
    """Name engines that must not serve any more, and why."""
    with LineFile(_path(output_dir)) as file:
        for url in urls:
            file.append(msgspec.json.encode(_Request(url, cause)))


class Replacements:
    """What was asked for since this was made; an earlier start's engines are gone."""

    def __init__(self, output_dir: Path, shared: bool = False) -> None:
        """`shared`: the trainer may be on another host."""
        if shared:
            # A network file system asks the server about a file that it knows each time it is opened, but
            # believes for a minute that a missing one is still missing.
            LineFile(_path(output_dir)).close()
        # A resumed run starts all engines anew, often under the same URLs: old requests are not about them.
        self._tail = LineTail(_path(output_dir), from_end=True)

    def take(self) -> dict[str, str]:
        """URL of each engine to be replaced, with the cause; each request is given once."""
        return {row.url: row.cause for row in self._tail.records(_decode)}
