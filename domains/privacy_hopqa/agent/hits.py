"""From the hits of the retrieval service to documents; both searchers, over HTTP and in process, parse so.

A service of somebody else may send halves of surrogate pairs, which no tokenizer takes: they are replaced.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

from domains.privacy_hopqa.agent.errors import SearchActionError
from domains.privacy_hopqa.agent.interfaces import Document, Hit
from domains.privacy_hopqa.data.identity import alias_set
from retrieval_server.surrogates import replaced

_TITLE_CHARS = 180
_HEADLINE_CHARS = 100
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


def parse_local(body: Any) -> list[Hit]:
    """Hits of `/local/search`. Raises SearchActionError for a malformed answer."""
    return [Hit(local_document(hit), _number(hit, "similarity_score")) for hit in _hits(body)]


def parse_web(body: Any) -> list[Hit]:
    """Hits of `/browsecomp/search`. Raises SearchActionError for a malformed answer."""
    return [Hit(web_document(hit), _number(hit, "score")) for hit in _hits(body)]


def local_document(hit: Mapping[str, Any]) -> Document:
    """A private document."""
    metadata = hit.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise SearchActionError(f"metadata of a hit is a {type(metadata).__name__}, not an object")
    text = _text(hit, "content")
    doc_id = _text(hit, "doc_id")
    title = replaced(str(metadata.get("title") or "")) or first_line(text)
    locator = replaced(str(metadata.get("file_path") or doc_id))
    return Document(doc_id, "local", title, locator, text, frozenset(alias_set(hit)))


def web_document(hit: Mapping[str, Any]) -> Document:
    """A public document; many have no title."""
    text = _text(hit, "text")
    doc_id = _text(hit, "docid")
    if not doc_id.startswith("web/"):
        doc_id = f"web/{doc_id}"
    url = hit.get("url")
    locator = replaced(url) if isinstance(url, str) and url else doc_id
    aliases = alias_set({"docid": doc_id, "url": locator, "source": "web"})
    return Document(doc_id, "web", web_title(text), locator, text, frozenset(aliases))


def web_title(text: str) -> str:
    """The first heading near the top, else a short first line that is no sentence, else nothing."""
    if heading := _HEADING.search(text, 0, 400):
        return heading[1].strip()[:_TITLE_CHARS]
    line = first_line(text)
    return line if len(line) <= _HEADLINE_CHARS and not line.endswith((".", "!", "?", ",", ";", ":")) else ""


def first_line(text: str) -> str:
    """The first line with words, without heading marks."""
    for line in text.splitlines():
        if title := line.lstrip("# ").strip():
            return title[:_TITLE_CHARS]
    return ""


def _hits(body: Any) -> list[Mapping[str, Any]]:
    hits = body.get("hits") if isinstance(body, Mapping) else None
    if not isinstance(hits, list) or not all(isinstance(hit, Mapping) for hit in hits):
        raise SearchActionError("the answer has no list of hits")
    return hits


def _text(hit: Mapping[str, Any], key: str) -> str:
    value = hit.get(key)
    if not isinstance(value, str) or not value:
        raise SearchActionError(f"a hit has {key}={value!r:.40}, expected text")
    return replaced(value)


def _number(hit: Mapping[str, Any], key: str) -> float:
    value = hit.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SearchActionError(f"a hit has {key}={value!r:.40}, expected a finite number")
    return float(value)
