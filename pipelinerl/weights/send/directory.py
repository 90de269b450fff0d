"""Where weight files lie: in shared memory when there is room, else in the run's folder. No torch here."""

import hashlib
import shutil
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
    for leftover in chosen.glob("weights-*"):
        leftover.unlink()
    return chosen
