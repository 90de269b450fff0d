"""The launcher's word to the trainer: these engines are given up, and nobody starts them again.

Their restarts are used up, or their host is lost: without this word each update would wait for an answer of
a host that is cut off. An append-only file of addresses, `<output_dir>/launcher/lost_engines`, of this start
of the run.
"""

from collections.abc import Iterable
from pathlib import Path

from pipelinerl.base.line_file import LineFile, LineTail


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "launcher" / "lost_engines"


def begin(output_dir: Path) -> None:
    """None yet in this start; the file is there before anybody on another host looks for it."""
    _path(output_dir).unlink(missing_ok=True)
    LineFile(_path(output_dir)).close()


def tell_lost(output_dir: Path, urls: Iterable[str]) -> None:
    """Name engines that will not come back."""
    with LineFile(_path(output_dir)) as file:
        for url in urls:
            file.append(url.encode())


class LostEngines:
    """What was named since the last look."""

    def __init__(self, output_dir: Path) -> None:
        self._tail = LineTail(_path(output_dir))

    def take(self) -> list[str]:
        """Addresses of the engines, each once."""
        return [line.decode().strip() for line in self._tail.news()]
