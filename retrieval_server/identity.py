"""Aliases of a document: the strings under which hits and gold references may name the same document.

Pure and without dependencies; the server uses it to find ambiguous aliases, clients to match hits with gold.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

KNOWN_EXTENSIONS = (".csv", ".docx", ".html", ".jsonl", ".md", ".pdf", ".pptx", ".txt", ".xlsx")
_TASK_FILES = re.compile(r"(?:^|/)([a-z0-9_-]{1,64})/files/(.+)$")
_TASK_LOCAL = re.compile(r"^local/([a-z0-9_-]{1,64})/(.+)$")
_QUARTER = re.compile(r"quarter(?=\d)")
_NOT_COMPACT = re.compile(r"[\W_]+")


def strip_extensions(name: str) -> str:
    """Remove known document extensions repeatedly: `x.pptx.txt` -> `x`."""
    while (lowered := name.lower()).endswith(KNOWN_EXTENSIONS):
        extension = next(one for one in KNOWN_EXTENSIONS if lowered.endswith(one))
        if len(name) <= len(extension):
            break
        name = name[: -len(extension)]
    return name


def normalise(value: str) -> str:
    """Lower-case path without window suffix, query string, fragment and trailing slash; accents composed."""
    path = unicodedata.normalize("NFC", value).strip().replace("\\", "/").lower()
    return path.split("#", 1)[0].split("?", 1)[0].rstrip("/")


def _compact(rest: str) -> str:
    folder, _, name = rest.rpartition("/")
    return f"{folder}/{_QUARTER.sub('q', _NOT_COMPACT.sub('', name))}"


def _local_parts(path: str) -> Iterable[tuple[str, str]]:
    """`(task, rest)` for each way in which the path names a document of a task."""
    if match := _TASK_LOCAL.match(path):
        yield match[1], match[2]
        if match[2].startswith("files/"):
            yield match[1], match[2].removeprefix("files/")
    start = 0
    while match := _TASK_FILES.search(path, start):
        yield match[1], match[2]
        start = match.end(1)


def aliases(value: str, local: bool = True) -> set[str]:
    """All aliases of one value. `local=False` (a web document) forms no task-relative aliases."""
    path = normalise(value)
    if not path:
        return set()
    bare = strip_extensions(path)
    found = {path, bare}
    if local:
        for task, rest in _local_parts(path):
            stem = strip_extensions(rest)
            found |= {f"local/{task}/{rest}", f"local/{task}/{stem}"}
            if compact := _compact(stem).strip("/"):
                found.add(f"compact:{task}/{compact}")
    return found


def shared_aliases(alias_sets: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """For each document id, those of its aliases that another document has too; only non-empty sets."""
    counts = Counter(alias for found in alias_sets.values() for alias in found)
    shared = {doc: {alias for alias in found if counts[alias] > 1} for doc, found in alias_sets.items()}
    return {doc: found for doc, found in shared.items() if found}
