"""The trainer's word to the launcher: this engine may hold half a model, put a new process in its place.

An append-only file, `<output_dir>/finetune/broken_engines.jsonl`; the launcher reads what is new. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def replacements_path(output_dir: Path) -> Path:
    return Path(output_dir) / "finetune" / "broken_engines.jsonl"


def ask_for_replacement(output_dir: Path, urls: Iterable[str], cause: str) -> None:
    """Name engines that must not serve any more, and why."""
    lines = "".join(json.dumps({"url": url, "cause": cause}) + "\n" for url in urls)
    path = replacements_path(output_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)


class Replacements:
    """What was asked for since this was made."""

    def __init__(self, output_dir: Path) -> None:
        self._path = replacements_path(output_dir)
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def take(self) -> dict[str, str]:
        """URL of each engine to be replaced, with the cause; each request is given once."""
        if not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        rows = [json.loads(line) for line in data[:complete].splitlines()]
        return {str(row["url"]): str(row["cause"]) for row in rows}
