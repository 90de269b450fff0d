"""The web corpus, streamed: bad lines, repeated ids, dangling gold ids, gold pages without the answer."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from domains.privacy_hopqa.data.identity import alias_set
from domains.privacy_hopqa.validate.problems import GoldReference, Problem
from retrieval_server.corpus import CorpusError, WebDocument, parse_web_line


@dataclass(slots=True)
class Pages:
    """What one pass over a web corpus found. Of the pages only ids are kept."""

    problems: list[Problem] = field(default_factory=list)
    pages: int = 0
    empty: int = 0


def check_pages(path: Path, references: Iterable[GoldReference]) -> Pages:
    """Problems of the corpus and of the gold ids that should lie there. Raises OSError."""
    waiting: dict[str, list[GoldReference]] = {}
    wanted = [reference for reference in references if reference.hop.source == "web"]
    for reference in wanted:
        for alias in reference.aliases:
            waiting.setdefault(alias, []).append(reference)
    found = Pages()
    seen: dict[str, int] = {}
    named: dict[GoldReference, list[str]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                page = parse_web_line(line, "")
            except CorpusError as error:
                found.problems.append(Problem(path, number, str(error).removeprefix(": ")))
                continue
            if (first := seen.setdefault(page.docid, number)) != number:
                message = f"duplicate docid {page.docid!r}, first in line {first}"
                found.problems.append(Problem(path, number, message))
                continue
            found.pages += 1
            found.empty += not page.text.strip()
            _meet(page, waiting, named, found.problems)
    for reference in wanted:
        documents = named.get(reference, [])
        if not documents:
            message = f"dangling gold id {reference.shown}: no such page in {path}"
            found.problems.append(reference.problem(message))
        elif len(documents) > 1:
            message = f"gold id {reference.shown} names {documents[0]} and {documents[1]}"
            found.problems.append(reference.problem(message))
    return found


def page_aliases(page: WebDocument) -> set[str]:
    """All names of a page of the corpus."""
    doc_id = f"web/{page.docid}"
    return alias_set({"docid": doc_id, "url": page.url or doc_id, "source": "web"})


def _meet(
    page: WebDocument,
    waiting: dict[str, list[GoldReference]],
    named: dict[GoldReference, list[str]],
    problems: list[Problem],
) -> None:
    """Note the hops whose gold page this is, and whether it holds their answers."""
    doc_id = f"web/{page.docid}"
    meeting = {id(r): r for alias in page_aliases(page) & waiting.keys() for r in waiting[alias]}
    for reference in meeting.values():
        named.setdefault(reference, []).append(doc_id)
        if page.text.strip():
            problems += reference.answer_problems(page.text, doc_id)
        else:
            problems.append(reference.problem(f"unanswerable, its gold page {doc_id} has no text"))
