"""Rows of a data file with the place of each, for what is said of a bad one: JSON lines, JSON or parquet.

Called by the loaders of domains that read files; nothing is downloaded.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ENDINGS = (".jsonl", ".json", ".parquet")
"""What `rows` tells formats apart by; a file with any other is read as JSON lines."""
HALF_EMOJI = "holds half an emoji, which no tokenizer takes; repair it"
"""Half a surrogate pair, such as "\\ud83d": JSON may hold it, but no record and no request."""


def find_file(name: str, data_dir: str | None, remedy: str, *stems: str) -> Path:
    """The file that a dataset's name means: of that name, or with an ending behind it or one of `stems`.

    Raises ValueError with every place that was looked at, and the remedy.
    """
    base = Path(name) if data_dir is None else Path(data_dir) / name
    names = [base.name + ending for ending in ENDINGS]
    names += [stem + ending for stem in stems for ending in ENDINGS]
    tried = [base] if base.suffix in ENDINGS else [base.with_name(one) for one in dict.fromkeys(names)]
    found = next((path for path in tried if path.is_file()), None)
    if found is None and base.is_file():
        raise ValueError(
            f"dataset {name!r}: {base} is none of {', '.join(ENDINGS)}; convert it, or rename it"
        )
    if found is None:
        raise ValueError(f"dataset {name!r}: no file {', '.join(map(str, tried))}; {remedy}")
    return found


def rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row): `FILE:3` of JSON lines, counted from 1, `FILE, row 3` of the others, counted from 0.

    A column that holds NaN, as tables write a missing value, is None.
    Raises ValueError in one line with the place of what cannot be read, or sent on as UTF-8; OSError for an
    unreadable file.
    """
    for where, row in _rows(path):
        if (column := half_emoji_in(row)) is not None:
            raise ValueError(f"{where}: {column or 'the row'} {HALF_EMOJI}")
        if isinstance(row, dict):
            row = {key: None if _is_missing(value) else value for key, value in row.items()}
        yield where, row


def asked(messages: Any, what: str) -> str:
    """The text of the only message of a user; a system message may stand before it and is left out.

    Raises ValueError for anything else, such as a dialogue of several turns.
    """
    listed = messages if isinstance(messages, list) else []
    users = [one for one in listed if not (isinstance(one, dict) and one.get("role") == "system")]
    text = users[0].get("content") if len(users) == 1 and isinstance(users[0], dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{what}: expected a list of messages in which a user asks once, in a text")
    return text


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def half_emoji_in(value: Any) -> str | None:
    """Where in a parsed JSON value such a text or key stands, as in `hops[0].question`; None for nowhere."""
    # No recursion: what was parsed may be nested deeper than Python's stack.
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        name, inside = left.pop()
        if isinstance(inside, str):
            if not _is_unicode(inside):
                return name
        elif isinstance(inside, dict):
            if not all(_is_unicode(key) for key in inside if isinstance(key, str)):
                return name
            left += [(f"{name}.{key}" if name else str(key), item) for key, item in inside.items()]
        elif isinstance(inside, list):
            left += [(f"{name}[{index}]", item) for index, item in enumerate(inside)]
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".json":
        content = _parsed(path.read_bytes(), str(path))
        if not isinstance(content, list):
            raise ValueError(f"{path}: holds a {type(content).__name__}, expected a list of rows")
        yield from ((f"{path}, row {index}", row) for index, row in enumerate(content))
    else:
        with path.open("rb") as file:
            yield from parsed_lines(file, str(path))


def parsed_lines(lines: Iterable[bytes], name: str) -> Iterator[tuple[str, Any]]:
    """(`NAME:3`, row) of JSON lines, counted from 1, without blank ones. ValueError with the place."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{name}:{number}", _parsed(line, f"{name}:{number}")


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
