"""One public page: what it says, the question it answers, and its text; `web.py` makes and numbers pages."""

from dataclasses import dataclass
from typing import Final

from .companies import WorldFact
from .documents import LONG, SHORT
from .draws import Draws
from .filler import public_sentence
from .topics import ATTRIBUTES, WORDING, Attribute, Subject
from .values import Value, draw_value
from .words import capital

WORDY: Final = (980, 1040)


@dataclass(slots=True, eq=False)
class Page:
    """One public page about one group of firms: `subject` has the value `answer`."""

    docid: str
    topic: str
    """`selected`, `companion` or `open`."""
    subject: Subject
    qualifier: str
    """A phrase such as "in Keldolund"."""
    answer: Value
    selector: Value | None = None
    attribute: Attribute | None = None
    """What the selector is a value of, on selected pages."""
    fact: WorldFact | None = None
    """The private fact that selects the page."""
    side: str = ""
    """Split whose chains may use it, empty for a page that only distracts."""
    wording: int = 0
    wordy: bool = False
    """Longer than its siblings, so that search ranks it behind them unless the value is searched for."""
    text: str = ""

    @property
    def url(self) -> str:
        """Its address, which no server answers."""
        return f"https://public.example/pages/{self.docid}"

    @property
    def about_a_year(self) -> bool:
        """Whether the qualifier is a year, so that no statement about the page's firms may hold another."""
        return self.qualifier[-4:].isdigit()

    def _clause(self, value: str) -> str:
        """What the page says about its group, with its value or what stands for it."""
        return self.attribute.clause(value) if self.attribute else value

    def opening(self) -> str:
        """The first sentence: topic, qualifier and selecting value."""
        about_year = self.topic == "companion" and self.selector and self.selector.kind == "year"
        templates = WORDING["pages"][self.topic]["year_openings" if about_year else "openings"]
        clause = self._clause(self.selector.text if self.selector else "")
        return self._fill(templates[self.wording % len(templates)], w=clause, v=clause)

    def answering(self) -> str:
        """The second sentence: the value that questions ask for."""
        templates = WORDING["pages"][self.topic]["answers"][self.answer.kind]
        return capital(self._fill(templates[self.wording // 7 % len(templates)], v=self.answer.text))

    def question(self, reference: str | None = None) -> str:
        """The question about this page, its selecting value hidden behind a reference such as "(1)"."""
        hidden = reference or (self.selector.text if self.selector else "")
        templates = WORDING["pages"][self.topic]["questions"][self.answer.kind]
        return self._fill(templates[self.wording // 49 % len(templates)], w=self._clause(hidden), e=hidden)

    def _fill(self, template: str, **values: str) -> str:
        return template.format(n=self.subject.noun, q=self.qualifier, Q=capital(self.qualifier), **values)


def page_text(seed: int, page: Page, long: bool) -> str:
    """The page as text: what it is about first, then prose and one statement about something else."""
    draws = Draws(seed, "page text", int(page.docid))
    low, high = LONG if long else WORDY if page.wordy else SHORT
    target = draws.between(low, high)
    parts = [f"{page.opening()} {page.answering()} {public_sentence(draws)}"]
    other = draws.pick(ATTRIBUTES)
    while other is page.attribute or (other.kind == "year" and page.about_a_year):
        other = draws.pick(ATTRIBUTES)
    clause = other.clause(draw_value(draws, other.kind).text)
    aside = f"{capital(page.qualifier)}, an older page says that {clause}."
    length, at = len(parts[0]), draws.between(1, 2)
    while length < target or len(parts) <= at:
        sentences = [public_sentence(draws) for _ in range(draws.between(2, 3))]
        if len(parts) == at:
            sentences[0] = aside
        parts.append(" ".join(sentences))
        length += 2 + len(parts[-1])
    return "\n\n".join(parts) + "\n"
