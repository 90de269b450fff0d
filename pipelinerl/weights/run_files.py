"""What trainer and launcher tell each other in files: where weights lie, and which engines are to be replaced.

The launcher imports this, so no torch here.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
COPIES = 3
"""Two versions are kept while a third is written."""


def shared_directory(output_dir: Path) -> Path:
    """The run's folder in shared memory; the same for every process and every start of that run."""
    name = hashlib.sha256(str(output_dir.resolve()).encode()).hexdigest()[:16]
    return SHARED_MEMORY / f"pipelinerl-{name}"


def weights_directory(output_dir: Path, model_bytes: int, configured: Path | None = None) -> Path:
    """An existing, empty folder with room for the versions kept.

    `configured` wins where it is given; otherwise shared memory with room for three copies of `model_bytes`,
    else `output_dir/weights`. Files left there by an earlier start are removed.
    """
    if configured is not None:
        chosen = configured
    elif SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > COPIES * model_bytes:
        chosen = shared_directory(output_dir)
    else:
        chosen = output_dir / "weights"
    chosen.mkdir(parents=True, exist_ok=True)
    for leftover in chosen.glob(
        "*weights-*"
    ):  # with `~weights-…`, which a killed trainer had not renamed yet
        leftover.unlink()
    return chosen


def replacements_path(output_dir: Path) -> Path:
    """An append-only file of the trainer's requests; the launcher reads what is new."""
    return Path(output_dir) / "finetune" / "broken_engines.jsonl"


def ask_for_replacement(output_dir: Path, urls: Iterable[str], cause: str) -> None:
    """Name engines that may hold half a model, so that the launcher puts new processes in their place."""
    path = replacements_path(output_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"url": url, "cause": cause}) + "\n" for url in urls)


class Replacements:
    """Requests since this was made; those of an earlier start are none of this run's engines."""

    def __init__(self, output_dir: Path) -> None:
        self._path = replacements_path(output_dir)
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def take(self) -> dict[str, str]:
        """URL of each engine to be replaced, with the cause; each request is given once."""
        if not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = [line for line in file if line.endswith(b"\n")]  # the last one may still be written
        self._offset += sum(map(len, lines))
        return {row["url"]: row["cause"] for row in map(json.loads, lines)}
