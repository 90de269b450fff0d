"""Complete prompts for models with a context of about 16,000 tokens: all of a stage's inputs, in words.

Templates are the `.md` files beside this module. Documents are named by their own ids; cards and reads are
one JSON object per line, so that no text of a document can pass for another line of the prompt.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    Context,
    HopView,
    PlanContext,
    ReadContext,
    ReadNote,
    Rendered,
    ResolveContext,
    SearchNote,
)

NONE = "none"
_DESCRIPTION_CHARS = 2000
_QUERY_CHARS = 300
_ANSWER_CHARS = 200
_NOTE_CHARS = 300
_MISSING_CHARS = 120
_TYPES = {False: 'local_document_search" or "web_search', True: "local_document_search"}


def render(context: Context) -> Rendered:
    """One user message; documents keep their ids, so there are no aliases."""
    match context:
        case PlanContext():
            return Rendered(_plan(context))
        case ChooseContext():
            return Rendered(_choose(context))
        case ReadContext():
            return Rendered(_read(context))
        case ResolveContext():
            return Rendered(_resolve(context))


@cache
def _template(name: str) -> Template:
    return Template((Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").rstrip("\n"))


def _fill(name: str, view: HopView, **values: str) -> str:
    """The template with what every stage knows and its own values."""
    answers = _lines(
        {
            "number": a.hop_number,
            "question": a.question,
            "answer": a.answer,
            "justification": a.justification,
        }
        for a in view.answers
    )
    return _template(name).substitute(
        questions=view.questions,
        answers=answers,
        hop=str(view.hop_number),
        hops=str(view.n_hops),
        question=view.question,
        **values,
    )


def _plan(context: PlanContext) -> str:
    view = context.view
    description, note = view.company_description[:_DESCRIPTION_CHARS], _template("privacy_note").template
    return _fill(
        "plan",
        view,
        company=view.company,
        description=f"\n{description}" if description else "",
        searches=_searches(context.searches),
        reads=_reads(context.reads),
        memory=_cards(context.memory),
        limit=str(context.action_limit),
        sources=_template("sources_no_web" if context.no_web else "sources").template,
        types=_TYPES[context.no_web],
        privacy_note=f"\n{note}" if context.privacy_note else "",
    )


def _choose(context: ChooseContext) -> str:
    return _fill(
        "choose",
        context.view,
        memory=_cards(context.memory),
        cards=_cards(context.cards),
        limit=str(context.limit),
    )


def _read(context: ReadContext) -> str:
    window = context.window
    return _fill(
        "read",
        context.view,
        window_id=window.window_id,
        source=window.source,
        title=_flat(window.title) or NONE,
        locator=_flat(window.locator),
        index=str(window.index),
        count=str(window.count),
        text=window.text.replace("</document>", "</ document>"),
    )


def _resolve(context: ResolveContext) -> str:
    return _fill(
        "resolve_constrained" if context.constrained else "resolve",
        context.view,
        searches=_searches(context.searches),
        reads=_reads(context.reads),
        unread=_cards(context.unread),
        limit=str(context.limit),
    )


def _searches(notes: Iterable[SearchNote]) -> str:
    return _lines(
        {
            "type": "web_search" if note.source == "web" else "local_document_search",
            "query": note.query[:_QUERY_CHARS],
            "found": "failed" if note.failed else note.n_hits,
        }
        for note in notes
    )


def _reads(notes: Iterable[ReadNote]) -> str:
    return _lines(
        {
            "doc_id": note.window_id,
            "title": note.title,
            "can_answer": note.positive,
            "proposed_answer": note.answer[:_ANSWER_CHARS],
            "justification": note.justification[:_NOTE_CHARS],
            "confidence": round(note.confidence, 2),
            "missing_information": note.missing[:_MISSING_CHARS],
        }
        for note in notes
    )


def _cards(cards: Iterable[Card]) -> str:
    return _lines(map(_card, cards))


def _card(card: Card) -> dict[str, Any]:
    row = asdict(card) | {"best_score": round(card.best_score, 3)}
    return row | {"remembered": True} if row.pop("in_memory") else row


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    """One JSON object per line, or `none`."""
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) or NONE


def _flat(text: str) -> str:
    return " ".join(text.split())
