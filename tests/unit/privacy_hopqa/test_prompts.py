"""The compact prompts, line by line, and the token budget of a call."""

import pytest

from domains.privacy_hopqa.interfaces import (
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
from domains.privacy_hopqa.llm import output_budget
from domains.privacy_hopqa.pool import Pool, RankedHit, build_pool, make_cards, windows_to_read
from domains.privacy_hopqa.prompts import load_prompts
from domains.privacy_hopqa.prompts.compact import MAX_ALIASES
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from tests.support.agent_harness import (
    TWO_HOPS,
    Script,
    Searches,
    chain_of,
    document,
    done,
    hop,
    local,
    play,
    read_more,
    yes,
)

PROMPTS = load_prompts("compact")
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
    assert PROMPTS.render(context).text.split("\n") == [
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
    assert PROMPTS.render(context).text.split("\n")[3:] == [
        "no web",
        "never put private values in web queries",
    ]


def test_choose_names_documents_by_alias():
    context = ChooseContext(VIEW, (card("web/9"), card("local/x", "local", in_memory=True)), (), 2)
    rendered = PROMPTS.render(context)
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
    assert PROMPTS.render(ReadContext(VIEW, window)).text.split("\n") == [
        "read",
        "question: What share of stores passed?",
        "doc: Regions",
        "Northmere has 15%.",
        "More.",
    ]


def test_resolve_lists_reads_and_unread_documents():
    context = ResolveContext(VIEW, (), (note("w1", "15%"), note("w2")), (card("web/3"),), 2, False)
    rendered = PROMPTS.render(context)
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
    rendered = PROMPTS.render(context)
    assert len(rendered.aliases) <= MAX_ALIASES
    assert rendered.aliases["d1"] == "first"
    assert "d1 yes 15%" in rendered.text


def test_line_breaks_in_values_do_not_break_the_format():
    context = ChooseContext(VIEW, (card("web/9", title="A\nd2 web B", snippet="x\ny."),), (), 2)
    assert len(PROMPTS.render(context).text.split("\n")) == 3


def test_an_unknown_prompt_set_names_those_there_are():
    with pytest.raises(ValueError, match="prompt_set=long: available are full, compact"):
        load_prompts("long")


async def test_names_in_answers_are_mapped_back():
    script = Script(
        plan=local("audit"),
        choose='{"selected_doc_ids":["d4"]}',
        read=yes("15%"),
        resolve=[read_more("d2"), done("15%")],
    )
    found = Searches({"audit": [document(f"web/{n}") for n in range(4)]})
    episode = await play(script, found, max_iterations=1)
    assert [r.window_id for r in episode.hops[0].reads] == ["web/3#w01of01", "web/0#w01of01"]
    assert set(episode.memory) == {"web/3", "web/0"}


def long_document(windows, hot, size=100):
    """A web document of so many windows without overlap; those in `hot` hold that many query terms."""
    words = ["alpha", "bravo", "charlie", "delta", "echo"]
    parts = [" ".join(words[: hot.get(i, 0)]).ljust(size, ".") for i in range(windows)]
    return document("web/1", "".join(parts), "t")


def windows_config(**changes):
    values = {
        "reader_window_chars": 100,
        "reader_window_overlap_chars": 0,
        "retrieval_chunk_chars": 100,
        "retrieval_chunk_overlap_chars": 0,
    }
    return PrivacyHopQASettings(**(values | changes))


def pool_of(doc, config, read=frozenset(), query="alpha bravo charlie delta echo") -> Pool:
    from domains.privacy_hopqa.interfaces import Hit

    return build_pool([], [RankedHit(Hit(doc, 5.0), 1, query)], set(read), query, config)


def test_of_a_large_document_the_best_windows_and_their_neighbours_are_read():
    doc = long_document(12, {1: 5, 2: 4, 6: 3, 7: 2})
    (parent,) = pool_of(doc, windows_config()).parents
    read = [c.window.index for c in windows_to_read(parent, windows_config())]
    assert read == [1, 2, 3, 4, 6, 7, 8, 9]


def test_a_small_document_is_read_whole_and_read_windows_stay_out():
    doc = long_document(5, {3: 2})
    pool = pool_of(doc, windows_config(), read={"web/1#w02of05"})
    assert [c.window.index for c in windows_to_read(pool.parents[0], windows_config())] == [1, 3, 4, 5]
    assert (pool.windows_before_cut, pool.parents_before_cut) == (4, 1)


def test_pool_merges_by_window_and_orders_by_rank_score_and_id():
    from domains.privacy_hopqa.interfaces import Hit

    config = windows_config(max_candidate_cards=3)
    docs = {name: document(f"web/{name}", "x") for name in "abcd"}
    hits = [
        RankedHit(Hit(docs["a"], 1.0), 2, "q1"),
        RankedHit(Hit(docs["b"], 9.0), 1, "q1"),
        RankedHit(Hit(docs["a"], 2.0), 1, "q2"),
        RankedHit(Hit(docs["c"], 2.0), 1, "q3"),
        RankedHit(Hit(docs["d"], 9.0), 2, "q3"),
    ]
    pool = build_pool([document("local/T/m.md", "x")], hits, set(), "q", config)
    assert [p.doc_id for p in pool.parents] == ["local/T/m.md", "web/b", "web/a"]
    assert pool.parents_before_cut == 5
    cards = make_cards(pool.parents, 500)
    assert cards[2].top_queries == ("q1", "q2")
    assert (cards[2].best_rank, cards[2].best_score) == (1, 2.0)
    assert cards[0].in_memory


def test_gold_answers_are_not_in_the_questions_text():
    chain = chain_of(hop(1, "Q?", "zqx", "web/1"), hop(2, "R (1)?", "zqy", "web/2"))
    assert "zq" not in chain.questions
    assert TWO_HOPS.questions.startswith("(1) What share")
    assert Stage.PLAN == "hop_plan"
