"""Documents, pages and questions: sizes, one value of a kind per paragraph, sentences that stand alone."""

import re
from collections import Counter

import pytest

from domains.privacy_hopqa.world import World, build, world_config
from domains.privacy_hopqa.world.documents import READ_STEP, READ_WINDOW
from domains.privacy_hopqa.world.names import SECTORS, STEMS, company_name, is_famous
from domains.privacy_hopqa.world.topics import ATTRIBUTES, SUBJECTS
from domains.privacy_hopqa.world.values import MONTHS

NAME = r"\b[A-Z][a-z]{{3,}}(?:{})\b"
PATTERNS = {
    "percent": r"\b\d+%",
    "money": r"\$\d{3},000\b",
    "count": r"(?<![\d$,])\b\d{3}\b(?![,%\d])",
    "month": rf"\b(?:{'|'.join(MONTHS)})\b",
    "year": r"\b20\d\d\b",
    "id": r"\b[A-Z]{2}\d{4}\b",
    "vendor": NAME.format("tec|corp|works|trade|line"),
    "product": NAME.format("ix|ron|ium|eo|pad"),
    "place": NAME.format("ford|stead|haven|minster|port"),
}


@pytest.fixture(scope="module")
def world() -> World:
    return build(world_config("tiny", seed=3))


def test_documents_have_the_stated_lengths_and_formats(world: World) -> None:
    for documents in world.private_docs.values():
        assert len(documents) == 24
        lengths = [len(document.text) for document in documents]
        assert all(600 <= n <= 2500 or n > 12_000 for n in lengths)
        assert sum(n > 12_000 for n in lengths) >= 0.05 * len(lengths)
        assert sum(document.side == "" for document in documents) >= len(documents) / 2
    assert len(world.web_docs) == 200
    lengths = [len(page.text) for page in world.web_docs]
    assert all(600 <= n <= 2500 or n > 12_000 for n in lengths)
    assert sum(n > 12_000 for n in lengths) >= 0.05 * len(lengths)
    formats = {document.name.rpartition(".")[2] for docs in world.private_docs.values() for document in docs}
    assert formats == {"md", "csv", "txt"}


def test_paragraphs_are_short_and_hold_one_value_of_each_kind(world: World) -> None:
    texts = [document.text for documents in world.private_docs.values() for document in documents]
    texts += [page.text for page in world.web_docs]
    for text in texts:
        for paragraph in re.split(r"\n+", text):
            assert len(paragraph) <= 350, paragraph
            for kind, pattern in PATTERNS.items():
                assert len(set(re.findall(pattern, paragraph))) <= 1, (kind, paragraph)


def test_facts_open_their_paragraph_whole_in_one_reading_window(world: World) -> None:
    for documents in world.private_docs.values():
        for document in documents:
            for fact in document.facts:
                assert document.text.count(fact.sentence) == 1
                at = document.text.index(fact.sentence)
                assert document.text[at - 1] in '\n"', "first in its paragraph"
                assert at % READ_STEP + len(fact.sentence) <= READ_WINDOW
                assert len(fact.sentence) <= 115
                for part in (fact.company, fact.scope, fact.value.text, fact.attribute.about):
                    assert part in fact.sentence


def test_a_fact_lies_in_exactly_one_document(world: World) -> None:
    for documents in world.private_docs.values():
        keys = Counter(fact.key for document in documents for fact in document.facts)
        assert set(keys.values()) == {1}


def test_a_page_opens_with_topic_qualifier_and_selecting_value(world: World) -> None:
    for page in world.web_docs:
        snippet = page.text[:140]
        assert page.subject.noun in snippet
        assert page.qualifier.lower() in snippet.lower()
        assert page.selector is None or page.selector.text in snippet
        assert page.answer.text not in page.opening()
        assert page.answer.text in page.text[:READ_WINDOW]
        assert len(page.opening()) <= 120


def test_the_web_never_names_a_company(world: World) -> None:
    for document in world.web_docs:
        assert not any(company.name.split()[0] in document.text for company in world.companies)


def test_siblings_share_a_topic_and_a_qualifier_narrows_them_to_two_to_four(world: World) -> None:
    topics: dict[tuple[int, str, str], list] = {}
    for number, pages in world.pages.items():
        for page in pages:
            if page.topic == "selected":
                key = (number, page.attribute.key, page.subject.noun)
                topics.setdefault(key, []).append(page)
    for pages in topics.values():
        assert 8 <= len(pages) <= 12
        values = [page.selector.text for page in pages]
        assert len(set(values)) == len(values)
        assert set(Counter(page.qualifier for page in pages).values()) <= {2, 3, 4}


def test_every_attribute_has_a_key_of_its_own() -> None:
    assert len({attribute.key for attribute in ATTRIBUTES}) == len(ATTRIBUTES)


def test_company_words_never_meet_topic_words() -> None:
    topic_words = {word for a in ATTRIBUTES for word in f"{a.about} {a.done}".split()}
    topic_words |= {word for subject in SUBJECTS for word in subject.noun.split()}
    assert not topic_words & {sector.lower() for sector in SECTORS}


def test_company_names_are_unique_and_invented() -> None:
    names = [company_name(7, number) for number in range(10_000)]
    assert len({name.split()[0] for name in names}) == len(names) < STEMS
    assert not any(map(is_famous, names))
    assert is_famous("Tesla Motors") and is_famous("Googleron") and not is_famous("Keldoford")
