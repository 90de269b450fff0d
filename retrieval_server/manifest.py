"""What an index on disk says about itself: format, parameters, the corpus it was made from, its files.

The manifest is the last file of a build, so a folder without one is no index. A mismatch is refused by name.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retrieval_server import tokens
from retrieval_server.corpus import CorpusError
from retrieval_server.ranking import K1, B

FORMAT = 1
NAME = "manifest.json"
_READ_BYTES = 1 << 22


class IndexMismatch(CorpusError):
    """An index that does not belong to this corpus or this program; the message says what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Identity of a corpus file: size in bytes, time of the last change, SHA-256."""

    bytes: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path, progress: Callable[[int], None] | None = None) -> "Corpus":
        """Read the whole file; `progress` is told every byte position reached."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
                if progress is not None:
                    progress(file.tell())
            stat = os.fstat(file.fileno())
        return cls(bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=digest.hexdigest())

    def is_same_file(self, path: Path) -> bool:
        """Whether the file is unchanged: by size and time, and by its content if only the time differs."""
        stat = path.stat()
        if stat.st_size != self.bytes:
            return False
        return stat.st_mtime_ns == self.mtime_ns or Corpus.of(path).sha256 == self.sha256


def parameters() -> dict[str, Any]:
    """What an index depends on beside its corpus."""
    return {"format": FORMAT, "k1": K1, "b": B, "tokens": tokens.VERSION}


def check_parameters(found: dict[str, Any], where: Path, remedy: str) -> None:
    """Raises `IndexMismatch` naming the first parameter that differs from this program's."""
    for name, value in parameters().items():
        if found.get(name) != value:
            raise IndexMismatch(f"{where} has {name}={found.get(name)}, this program uses {value}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`; `files` holds the size in bytes of each other file."""

    parameters: dict[str, Any]
    corpus: Corpus
    documents: int
    skipped_empty: int
    terms: int
    postings: int
    files: dict[str, int]

    @property
    def fingerprint(self) -> str:
        """Equal for equal corpora and parameters."""
        told = json.dumps([self.parameters, self.corpus.sha256], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self) | {"fingerprint": self.fingerprint}, indent=1, sort_keys=True)
        write_synced(folder / NAME, text.encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Raises `IndexMismatch` if there is none, it is damaged, or another program version wrote it."""
        remedy = f"build it again: python -m retrieval_server.index --index {folder} --replace"
        try:
            fields = json.loads((folder / NAME).read_bytes())
            check_parameters(fields["parameters"], folder, remedy)
            fields.pop("fingerprint", None)
            return cls(**(fields | {"corpus": Corpus(**fields["corpus"])}))
        except FileNotFoundError:
            raise IndexMismatch(f"{folder} holds no finished index ({NAME} is missing); {remedy}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, IndexMismatch):
                raise
            raise IndexMismatch(f"{folder / NAME} is damaged ({error!r}); {remedy}") from None

    def check(self, folder: Path, corpus: Path) -> None:
        """Raises `IndexMismatch` if a file is missing or cut short, or the corpus is another one."""
        remedy = f"build it again: python -m retrieval_server.index --web {corpus} --index {folder} --replace"
        for name, size in self.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                found = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
                raise IndexMismatch(f"{path} is {found}, expected {size} bytes; {remedy}")
        if not self.corpus.is_same_file(corpus):
            raise IndexMismatch(f"{folder} was built from another corpus than {corpus}; {remedy}")


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that survives a crash of the machine once this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder, and the content of its files, survive a crash of the machine."""
    for path in [*(path for path in folder.iterdir() if path.is_file()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
