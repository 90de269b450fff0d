"""Remarks of roles (`base/logs.py`), for the launcher to print: each once in a start, whoever makes it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pipelinerl.base.line_file import LineTail
from pipelinerl.base.logs import REMARKS

_decode = msgspec.json.Decoder(str).decode


class RemarkWatch:
    """What roles remark from now on; what is there already is of an earlier start."""

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._tails = {path: LineTail(path, from_end=True) for path in self._paths()}
        self._said: set[str] = set()

    def _paths(self) -> list[Path]:
        return sorted(self._output_dir.glob(f"*/{REMARKS}"))

    def lines(self) -> Iterator[str]:
        """What is to be said at this moment, behind the name of the role."""
        for path in self._paths():
            tail = self._tails.setdefault(path, LineTail(path))
            for remark in tail.records(_decode, on_damage=lambda line: None):  # the role's log has it too
                # Ranks, workers and several models of one run remark the same.
                if remark not in self._said:
                    self._said.add(remark)
                    yield f"{path.parent.name}: {remark}"
