"""What is served, in a word: a generated world's fingerprint, from the `manifest.json` beside its files."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from retrieval_server.corpus import TEXT_SUFFIXES, CorpusError

NAME = "manifest.json"
HEADER = "X-World"
"""Of every answer: what is served, so that a client sees when a server was exchanged for another."""
_PLAIN = re.compile(r"[!-~]{1,200}")


def in_header(fingerprint: str) -> str:
    """The fingerprint as a header may hold it: itself, or its SHA-256."""
    return fingerprint if _PLAIN.fullmatch(fingerprint) else hashlib.sha256(fingerprint.encode()).hexdigest()


def world_fingerprint(tasks: Path | None, web: Path | None) -> str | None:
    """That of the world to which all of these files belong; None where they are of none, or not all of one.

    Raises `CorpusError` where a file is not the one that its world was made with, and for two worlds.
    """
    found = {path: _of(path) for path in (tasks, web) if path is not None}
    told = {told for told in found.values() if told is not None}
    if len(told) > 1:
        raise CorpusError(
            f"{' and '.join(map(str, found))} belong to two worlds ({NAME} beside each); "
            "serve the files of one, or name the data with --fingerprint"
        )
    return None if None in found.values() else next(iter(told), None)


def _of(path: Path) -> str | None:
    place = path.resolve()
    manifest = place.parent / NAME
    try:
        content: Any = json.loads(manifest.read_bytes())
        fingerprint, files = content["fingerprint"], content["files"]
        listed = {name: sha for name, sha in files.items() if Path(name).parts[0] == place.name}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None  # none there, or one of something else
    if not listed or not isinstance(fingerprint, str):
        return None
    served = (file for file in place.glob("*/files/**/*") if file.suffix.lower() in TEXT_SUFFIXES)
    if more := [file for file in served if file.relative_to(place.parent).as_posix() not in listed]:
        raise CorpusError(
            f"{min(more)} was added after {manifest} was written; take it away, remove that manifest, or "
            "name the data with --fingerprint"
        )
    for name, expected in listed.items():
        file = place.parent / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise CorpusError(
                f"{file} is missing or was changed since {manifest} was written; make the world again, "
                "remove that manifest, or name the data with --fingerprint"
            )
    return fingerprint
