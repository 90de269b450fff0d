"""Files of a model folder that are damaged on their face: found before a process loads them. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

LONGEST_HEADER = 100 << 20
"""Bytes; safetensors allows no more."""


def damaged_files(folder: Path) -> Iterator[str]:
    """One line per JSON file that does not parse, shard that is absent and weight file that is cut."""
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        if (folder / name).is_file():
            yield from _json_problem(folder, name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        yield from _shard_problems(folder, index)
    for path in sorted(folder.glob("*.safetensors")):
        problem = safetensors_problem(path)
        if problem is not None:
            yield f"model_path={folder}: {path.name} {problem}; copy or save it again"


def _json_problem(folder: Path, name: str) -> Iterator[str]:
    try:
        content = json.loads((folder / name).read_bytes())
    except (ValueError, RecursionError):
        yield f"model_path={folder}: {name} is not valid JSON; save the model again"
        return
    if not isinstance(content, dict):
        yield f"model_path={folder}: {name} holds a {type(content).__name__}, no object; save the model again"


def _shard_problems(folder: Path, index: Path) -> Iterator[str]:
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        yield f"model_path={folder}: {index.name} names no shards; save the model again"
        return
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        yield f"model_path={folder}: {len(missing)} of {len(shards)} shards are missing, first {missing[0]}"


def safetensors_problem(path: Path) -> str | None:
    """Why a file is no whole safetensors file, or None. Reads the header only."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            return f"has {size} bytes and no header of a safetensors file"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return "has a damaged header"
    expected = 8 + length + max(ends, default=0)
    return f"has {size} of {expected} bytes" if size != expected else None
