"""Rows of a data file with the place of each, for what is said of a bad one: JSON lines, JSON or parquet.

Called by the loaders of domains that read files; nothing is downloaded.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ENDINGS = (".jsonl", ".json", ".parquet")
"""What `rows` tells formats apart by; a file with any other is read as JSON lines."""


def rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row): `FILE:3` of JSON lines, counted from 1, `FILE, row 3` of the others, counted from 0.

    Raises ValueError in one line with the place of what cannot be read; OSError for an unreadable file.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".json":
        content = _parsed(path.read_bytes(), str(path))
        if not isinstance(content, list):
            raise ValueError(f"{path}: holds a {type(content).__name__}, expected a list of rows")
        yield from ((f"{path}, row {index}", row) for index, row in enumerate(content))
    else:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", _parsed(line, f"{path}:{number}")


def checked_rows(path: Path, checked: Callable[[Any], T]) -> Iterator[T]:
    """What `checked` makes of each row; the place is put before its ValueError. ValueError without rows."""
    found = False
    for where, row in rows(path):
        try:
            yield checked(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        found = True
    if not found:
        raise ValueError(f"{path}: holds no question")


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: no JSON: {' '.join(str(error).split())[:100]}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"{path}: parquet needs pyarrow; pip install 'pipelinerl[parquet]'") from None
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: no parquet file: {' '.join(str(error).split())[:100]}") from None
    yield from ((f"{path}, row {index}", row) for index, row in enumerate(table.to_pylist()))
