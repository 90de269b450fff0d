"""Sentences without values, which make documents and pages as long and as plain as real ones."""

from __future__ import annotations

from typing import Final

from .draws import Draws
from .words import phrases

_WHO: Final = phrases(
    "The duty lead|The planning group|The shift clerk|The review board|The desk officer|The area lead|"
    "The records team|The control desk|The project group|The evening crew|The advice panel|"
    "The works council|The morning team|The reception desk|The support group|The compliance clerk"
)
_DID: Final = phrases(
    "read the notes|kept a copy of the file|agreed on the next steps|checked the entries twice|"
    "filed the papers|asked for a short summary|shared the minutes|closed the open points|"
    "thanked everyone involved|sent a reminder|compared the lists|confirmed the wording|"
    "noted no objections|updated the wall chart|collected the comments|answered the usual questions"
)
_WHEN: Final = phrases(
    "before the weekly call|after the break|at the end of the day|without further remarks|"
    "as agreed earlier|in the usual way|during the briefing|on request|with some delay|"
    "as in other periods|ahead of the review|by the close of the week|in plain language|in good time|"
    "for the record|as a precaution"
)
_PUBLIC_WHO: Final = phrases(
    "The editors|Local readers|The trade desk|The reporters|Most members|The library|A spokesperson|"
    "The organisers|Several visitors|The public office|The archive|The review panel|A reader|"
    "The printers' desk|Two columnists|The letters page"
)
_PUBLIC_DID: Final = phrases(
    "welcomed the results|asked for more detail|planned another look|corrected a misprint|"
    "published the method|thanked all who replied|collected the letters|kept the older issues|"
    "noted the usual limits|explained the terms|listed the sources|drew a simple map|quoted both sides|"
    "added a glossary|invited comments|praised the clear layout"
)
_COMPANY_DID: Final = phrases(
    "keeps this notice short|thanks its guests|answers letters within days|welcomes plain questions|"
    "prints its rules on paper|keeps its doors open|likes clear signs|updates its notice board|"
    "lends out umbrellas|plants trees nearby|reads every letter|posts its opening hours|"
    "greets new neighbours|repeats this every season|speaks plainly|invites local schools"
)


def office_sentence(draws: Draws) -> str:
    """A sentence of a private document."""
    return f"{draws.pick(_WHO)} {draws.pick(_DID)} {draws.pick(_WHEN)}."


def public_sentence(draws: Draws) -> str:
    """A sentence of a public page."""
    return f"{draws.pick(_PUBLIC_WHO)} {draws.pick(_PUBLIC_DID)} {draws.pick(_WHEN)}."


def company_sentence(draws: Draws, company: str) -> str:
    """A sentence that says the company's name and nothing private."""
    return f"{company} {draws.pick(_COMPANY_DID)}."
