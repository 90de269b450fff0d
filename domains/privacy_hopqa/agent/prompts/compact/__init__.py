"""Very short, regular prompts for models of a few million parameters: fixed keywords, one fact per line.

Documents and windows are called d1 to d9. Only what the decision needs is shown: the question comes with its
references filled in, so neither the chain nor earlier answers are repeated.

    plan                      choose                      read                    resolve
    company: ...              question: ...               question: ...           question: ...
    question: ...             d1 web SENTENCE             doc: TITLE              d1 yes ANSWER
    web: EARLIER QUERY        d2 local SENTENCE           TEXT                    d2 no
    read: yes ANSWER                                                              d3 new TITLE
    read: no
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from string import Template

from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    Context,
    PlanContext,
    ReadContext,
    ReadNote,
    Rendered,
    ResolveContext,
)
from domains.privacy_hopqa.agent.pool import opening

MAX_READS = 6
MAX_UNREAD = 1
_QUERY_CHARS = 100
_ANSWER_CHARS = 60
_TITLE_CHARS = 60
_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_BLANK_LINES = re.compile(r"\n\s*\n+")


def render(context: Context) -> Rendered:
    """One user message and its aliases."""
    match context:
        case PlanContext():
            return _plan(context)
        case ChooseContext():
            return _choose(context)
        case ReadContext():
            return _read(context)
        case ResolveContext():
            return _resolve(context)


@cache
def _template(name: str) -> Template:
    return Template((Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8"))


def _fill(name: str, **values: str) -> str:
    """The template with its values; lines left empty are dropped."""
    text = _template(name).substitute(values)
    return "\n".join(line for line in text.split("\n") if line.strip())


def _plan(context: PlanContext) -> Rendered:
    notes = [f"{note.source}: {clip(note.query, _QUERY_CHARS)}" for note in context.searches]
    notes += [f"read: {_verdict(read)}" for read in context.reads]
    if context.no_web:
        notes.append("no web")
    if context.privacy_note:
        notes.append(_fill("privacy_note"))
    view = context.view
    return Rendered(
        _fill("plan", company=clip(view.company), question=clip(view.question), notes="\n".join(notes))
    )


def _choose(context: ChooseContext) -> Rendered:
    aliases = alias_names(card.doc_id for card in context.cards)
    lines = [_card_line(alias, card) for alias, card in zip(aliases, context.cards)]
    return Rendered(_fill("choose", question=clip(context.view.question), cards="\n".join(lines)), aliases)


def _card_line(alias: str, card: Card) -> str:
    where = "mem" if card.in_memory else card.source
    return f"{alias} {where} {first_sentence(card.snippet) or clip(card.title, _TITLE_CHARS)}"


def _read(context: ReadContext) -> Rendered:
    window = context.window
    return Rendered(
        _fill(
            "read",
            question=clip(context.view.question),
            title=clip(window.title, _TITLE_CHARS) or window.source,
            text=_BLANK_LINES.sub("\n", opening(window.text, window.title).strip()),
        )
    )


def _resolve(context: ResolveContext) -> Rendered:
    reads = _shown_reads(context.reads)
    unread = context.unread[:MAX_UNREAD]
    aliases = alias_names([*(read.window_id for read in reads), *(card.doc_id for card in unread)])
    names = list(aliases)
    read_lines = [f"{name} {_verdict(read)}" for name, read in zip(names, reads)]
    unread_lines = [
        f"{name} new {clip(card.title or card.snippet, _TITLE_CHARS)}"
        for name, card in zip(names[len(reads) :], unread)
    ]
    return Rendered(
        _fill(
            "resolve",
            question=clip(context.view.question),
            reads="\n".join(read_lines),
            unread="\n".join(unread_lines),
        ),
        aliases,
    )


def _shown_reads(reads: tuple[ReadNote, ...]) -> list[ReadNote]:
    """The last positive reads and, where room is left, the last others, oldest first."""
    newest_first = range(len(reads) - 1, -1, -1)
    order = sorted(newest_first, key=lambda index: not reads[index].positive)
    return [reads[index] for index in sorted(order[:MAX_READS])]


def _verdict(read: ReadNote) -> str:
    return f"yes {clip(read.answer, _ANSWER_CHARS)}" if read.positive else "no"


def alias_names(ids: Iterable[str]) -> dict[str, str]:
    """d1, d2, ... for the ids in order."""
    return {f"d{index}": name for index, name in enumerate(ids, 1)}


def clip(text: str, limit: int = 400) -> str:
    """On one line and at most `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[:limit].rstrip()


def first_sentence(text: str) -> str:
    """Up to the first sentence end, on one line."""
    flat = " ".join(text.split())
    found = _SENTENCE_END.search(flat)
    return flat[: found.end()] if found else flat
