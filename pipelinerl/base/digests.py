"""What the files of a folder held when it was complete, so that a bit that flipped later is found.

The trainer notes it in each half of a checkpoint and compares it before it goes on from one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xxhash import xxh3_64


def digests(folder: Path) -> dict[str, str]:
    """XXH3 of every file below `folder`, by its path in it; reads them at several GB a second."""
    return {
        str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def damaged_file(folder: Path, expected: Mapping[str, Any]) -> str | None:
    """The first file that is missing or holds something else than `digests` found; None if all are right."""
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file() or _digest(path) != digest:
            return name
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxh3_64).hexdigest()
