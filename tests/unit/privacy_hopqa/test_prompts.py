"""The compact prompts, line by line, and the token budget of a call."""

import pytest

from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    HopView,
    PlanContext,
    ReadContext,
    ReadNote,
    ResolveContext,
    SearchNote,
    Stage,
    WindowView,
)
from domains.privacy_hopqa.agent.llm import output_budget
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import Script, document, play

PROMPTS = PROMPT_SETS["compact"]
VIEW = HopView(1, 2, 1, "What share\nof stores passed?", "(1) ...", (), "Harlow Foods", "")


def card(doc_id, source="web", title="Title", snippet="One. Two.", in_memory=False):
    return Card(doc_id, source, title, doc_id, 1, 1.0, 1, 1, (), doc_id, snippet, in_memory)


def note(window_id, answer=""):
    return ReadNote(window_id, window_id, "Title", bool(answer), answer, "", 0.9, "")


@pytest.mark.parametrize(
    ("prompt_tokens", "output"), [(12_000, 4096), (13_000, 3256), (16_255, 1), (16_256, 0), (17_000, -744)]
)
def test_output_budget(prompt_tokens, output):
    assert output_budget(prompt_tokens, 4096, 16_384, 128) == output


def test_plan():
    context = PlanContext(
        VIEW,
        (SearchNote("web", "cold  chain", 5, False), SearchNote("local", "audit", 0, True)),
        (note("a"), note("b", "15%")),
        (card("m"),),
        3,
        False,
        False,
    )
    assert PROMPTS(context).text.split("\n") == [
        "plan",
        "company: Harlow Foods",
        "question: What share of stores passed?",
        "web: cold chain",
        "local: audit",
        "read: no",
        "read: yes 15%",
    ]


def test_plan_with_notes():
    context = PlanContext(VIEW, (), (), (), 3, True, True)
    assert PROMPTS(context).text.split("\n")[3:] == [
        "no web",
        "never put private values in web queries",
    ]


def test_choose_names_documents_by_alias():
    context = ChooseContext(VIEW, (card("web/9"), card("local/x", "local", in_memory=True)), (), 2)
    rendered = PROMPTS(context)
    assert rendered.text.split("\n") == [
        "choose",
        "question: What share of stores passed?",
        "d1 web One.",
        "d2 mem One.",
    ]
    assert rendered.aliases == {"d1": "web/9", "d2": "local/x"}
    assert rendered.messages == [{"role": "user", "content": rendered.text}]


def test_read_shows_the_window_without_its_heading():
    window = WindowView("w", "w", "web", "Regions", "w", 1, 1, "# Regions\n\nNorthmere has 15%.\n\n\nMore.")
    assert PROMPTS(ReadContext(VIEW, window)).text.split("\n") == [
        "read",
        "question: What share of stores passed?",
        "doc: Regions",
        "Northmere has 15%.",
        "More.",
    ]


def test_resolve_lists_reads_and_unread_documents():
    context = ResolveContext(VIEW, (), (note("w1", "15%"), note("w2")), (card("web/3"),), 2, False)
    rendered = PROMPTS(context)
    assert rendered.text.split("\n") == [
        "resolve",
        "question: What share of stores passed?",
        "d1 yes 15%",
        "d2 no",
        "d3 new Title",
    ]
    assert rendered.aliases == {"d1": "w1", "d2": "w2", "d3": "web/3"}


def test_resolve_never_needs_more_than_nine_names_and_keeps_positive_reads():
    reads = (note("first", "15%"), *(note(f"w{n}") for n in range(12)))
    context = ResolveContext(VIEW, (), reads, tuple(card(f"web/{n}") for n in range(9)), 2, False)
    rendered = PROMPTS(context)
    assert len(rendered.aliases) <= 9
    assert rendered.aliases["d1"] == "first"
    assert "d1 yes 15%" in rendered.text


def test_line_breaks_in_values_do_not_break_the_format():
    context = ChooseContext(VIEW, (card("web/9", title="A\nd2 web B", snippet="x\ny."),), (), 2)
    assert len(PROMPTS(context).text.split("\n")) == 3


@pytest.mark.parametrize(
    ("prompt_set", "chosen", "wanted"), [("compact", "d4", "d2"), ("full", "web/3#w01of01", "web/0")]
)
async def test_short_names_or_document_ids_in_answers_are_mapped_back(prompt_set, chosen, wanted):
    script = Script(
        plan=say.local("audit"),
        choose=say.choose(chosen),
        read=lambda r: say.yes("15%") if r.context.window.parent_id == "web/0" else say.NO,
        resolve=[say.read_more(wanted), say.done("15%")],
    )
    found = {"audit": [document(f"web/{n}") for n in range(4)]}
    episode = await play(script, found, max_iterations=1, prompt_set=prompt_set)
    assert [r.window_id for r in episode.hops[0].reads] == ["web/3#w01of01", "web/0#w01of01"]
    assert episode.answers == {1: "15%"}
    assert {request.stage for request in script.requests} == set(Stage)
    assert set(episode.memory) == {"web/0"}
