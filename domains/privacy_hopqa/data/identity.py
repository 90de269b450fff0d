"""Is this hit the gold document? It is if its aliases meet those of the gold values.

A hit is a dictionary as the retrieval server returns it, or any dictionary of a window or parent with a
document id and metadata. The agent's hits, the judge and the validation of datasets compare documents so.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from retrieval_server.identity import aliases, normalise

_TOP_LEVEL = ("doc_id", "docid", "parent_id", "parent_doc_id", "locator", "url")
_METADATA = (
    *("doc_ref", "document_id", "file_path", "file_paths", "filenames", "locator", "original_doc_id"),
    *("original_path", "original_paths", "parent_doc_id", "path", "relative_paths"),
    *("source_identifier", "source_identifiers", "source_path", "url"),
)


def alias_set(hit: Mapping[str, Any]) -> set[str]:
    """All aliases of a hit, less those that the index found to be shared with another document."""
    metadata = hit.get("metadata") or {}
    local = not _is_web(hit)
    values = [*_strings(hit, _TOP_LEVEL), *_strings(metadata, _METADATA)]
    if local:
        values += [*_strings(hit, ("title",)), *_strings(metadata, ("title",))]
    found = set().union(*(aliases(value, local) for value in values))
    if not local:
        found = {alias for alias in found if not alias.startswith("local/")}
    return found - set(metadata.get("ambiguous_aliases") or ())


def value_aliases(values: Iterable[str]) -> set[str]:
    """All aliases of a document given by values alone, such as the gold values of a hop."""
    return set().union(*(aliases(value, local=not _is_web_id(value)) for value in values))


def _is_web_id(value: str) -> bool:
    return normalise(value).startswith("web/")


def _is_web(hit: Mapping[str, Any]) -> bool:
    if hit.get("source") in ("web", "web_search"):
        return True
    return any(_is_web_id(value) for value in _strings(hit, ("doc_id", "docid", "parent_id")))


def _strings(fields: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """The string values under the keys; a list of strings counts as several values."""
    found: list[str] = []
    for key in keys:
        value = fields.get(key)
        values = value if isinstance(value, list | tuple) else [value]
        found += [entry for entry in values if isinstance(entry, str) and entry]
    return found
