"""What the files of a folder held when it was complete, so that a bit that flipped later is found.

The trainer notes it in each half of a checkpoint and compares it before it goes on from one. Of a model the
actor compares with the last start what is quickly read.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from xxhash import xxh3_64

from pipelinerl.base.hub import model_folder


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


_OF_MODEL = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json"),
    *("vocab*", "merges.txt", "*.jinja"),
)
_OF_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_END = 1 << 20
_OF_TENSOR = 512
_LONGEST_HEADER = 100_000_000
"""Bytes, as safetensors itself limits it."""


def model_digest(model: str) -> str:
    """What tells models of one name apart, without reading them whole; empty where no files of it are here.

    Configuration and tokenizer are read whole; of each weight file the length, the begin, the end, and the
    begin of every tensor of a safetensors file, because merged adapters change neither end.
    """
    folder = model_folder(model)
    if folder is None or not (folder / "config.json").is_file():
        return ""
    whole = xxh3_64()
    for path in _files_of_model(folder):
        weights = any(path.match(name) for name in _OF_WEIGHTS)
        whole.update(f"\0{path.name} {path.stat().st_size}\0".encode())
        with path.open("rb", buffering=0) as file:
            whole.update(file.read(_END if weights else -1))
            if weights:
                file.seek(max(0, path.stat().st_size - _END))
                whole.update(file.read())
                for start in _tensors(file):
                    file.seek(start)
                    whole.update(file.read(_OF_TENSOR))
    return whole.hexdigest()


def _tensors(file: BinaryIO) -> list[int]:
    """Where the tensors of a safetensors file begin; empty for a file of another kind, or a damaged one."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        starts = [one["data_offsets"][0] for name, one in header.items() if name != "__metadata__"]
        return sorted(8 + length + int(start) for start in starts if start >= 0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return []


def last_written(folder: Path) -> tuple[float, str]:
    """When a file of a folder's model was last put there, in seconds since 1970, and its name.

    A copy that keeps the time of its source counts as well. A folder without files gives `(0.0, "")`.
    """
    return max(((path.stat().st_ctime, path.name) for path in _files_of_model(folder)), default=(0.0, ""))


def _files_of_model(folder: Path) -> list[Path]:
    """Files alone: a link that leads nowhere has nothing to read, and a pipe would be waited for."""
    found = {path for name in (*_OF_MODEL, *_OF_WEIGHTS) for path in folder.glob(name)}
    return sorted(path for path in found if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxh3_64).hexdigest()
