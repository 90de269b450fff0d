"""What each stage accepts from the model."""

import pytest

from domains.privacy_hopqa.agent.errors import ErrorKind, StageError
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.agent.stages import (
    parse_choice,
    parse_plan,
    parse_read,
    parse_resolution,
    query_key,
    read_reply,
)


def action(query, kind="web_search", **fields):
    return {"type": kind, "parameters": {"query": query}, **fields}


def parsed_plan(items, **changes):
    options = {"limit": 3, "no_web": False, "earlier": ()} | changes
    return parse_plan(items, **options)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("text", "not_an_object"),
        ({"parameters": {"query": "x"}}, "bad_type"),
        (action("x", "database"), "bad_type"),
        ({"type": ["web_search"], "parameters": {"query": "x"}}, "bad_type"),
        (action("  "), "empty_query"),
        ({"type": "web_search"}, "empty_query"),
        ({"type": "web_search", "parameters": "x"}, "empty_query"),
    ],
)
def test_unusable_actions_are_counted_by_reason(item, reason):
    result = parsed_plan([item, action("good")])
    assert [a.query for a in result.actions] == ["good"]
    assert result.rejected == {reason: 1}
    assert not result.explicitly_empty


@pytest.mark.parametrize(
    ("items", "queries", "rejected"),
    [
        ([action(q) for q in "abcd"], ["web: a", "web: b", "web: c"], {"over_limit": 1}),
        ([action("cold chain"), action("Audit"), action(" audit ")], ["web: Audit"], {"repeated": 2}),
        ([action("x"), action("x", "local_document_search")], ["web: x", "local: x"], {}),
        ([{"type": "web_search", "description": "find it"}], ["web: find it"], {}),
        *(([action("x", priority=p)], ["web: x"], {}) for p in (0.9, "high", None, True, [])),
        ([], [], {}),
    ],
)
def test_which_searches_of_a_plan_run(items, queries, rejected):
    """Case and spaces make no other search; only an empty array is explicitly empty."""
    result = parsed_plan(items, earlier=[query_key("web", "Cold  Chain")])
    assert [f"{a.source}: {a.query}" for a in result.actions] == queries
    assert (result.rejected, result.explicitly_empty) == (rejected, not items)


@pytest.mark.parametrize(
    ("text", "stage", "kind"),
    [
        ("{}", Stage.PLAN, ErrorKind.WRONG_TYPE),
        ("plan", Stage.PLAN, ErrorKind.PARSE),
        ("[", Stage.PLAN, ErrorKind.PARSE),
        ("[]", Stage.READ, ErrorKind.WRONG_TYPE),
        ("no", Stage.RESOLVE, ErrorKind.PARSE),
    ],
)
def test_a_plan_is_an_array_and_every_other_reply_an_object(text, stage, kind):
    with pytest.raises(StageError) as error:
        read_reply(text, stage)
    assert error.value.kind is kind


OFFERED = {"d1": "web/1", "d2": "web/2", "d3": "web/3", "d4": "web/4"}


def chosen(ids, limit=3):
    return parse_choice({"selected_doc_ids": ids}, resolve=OFFERED.get, limit=limit)


def test_a_choice_keeps_order_drops_repeats_and_unknown_ids_and_is_cut():
    assert chosen(["d4", "d9", "d4", 3, "d1", "d2", "d3"]) == (("web/4", "web/1", "web/2"), 2)
    assert chosen("d2") == (("web/2",), 0)  # a single name instead of a list


@pytest.mark.parametrize("ids", [[], ["d9"], None, [None], ["garbage", "web/77"], {}])
def test_a_choice_without_a_valid_id_is_an_error(ids):
    with pytest.raises(StageError) as error:
        chosen(ids)
    assert error.value.kind is ErrorKind.INVALID_IDS


@pytest.mark.parametrize(
    ("fields", "positive"),
    [
        ({"can_answer": True, "proposed_answer": "15%", "confidence": 0.75}, True),
        ({"can_answer": True, "proposed_answer": 15, "confidence": 7}, True),
        ({"can_answer": True, "proposed_answer": "15%", "confidence": 0.74}, False),
        ({"can_answer": True, "proposed_answer": "15%"}, False),
        ({"can_answer": True, "proposed_answer": " ", "confidence": 1}, False),
        ({"can_answer": True, "proposed_answer": "x", "confidence": 1, "missing_information": "y"}, False),
        ({"can_answer": True, "proposed_answer": "x", "confidence": 1, "missing_information": []}, True),
        ({"can_answer": True, "proposed_answer": "x", "confidence": 1, "missing_information": "None."}, True),
        ({"can_answer": True, "proposed_answer": "x", "confidence": 1, "missing_information": ["N/A"]}, True),
        (
            {"can_answer": True, "proposed_answer": "x", "confidence": 1, "missing_information": "a date"},
            False,
        ),
        (
            {"can_answer": True, "proposed_answer": "x", "confidence": 1, "missing_information": "no year"},
            False,
        ),
        ({"can_answer": False, "proposed_answer": "15%", "confidence": 1}, False),
    ],
)
def test_a_read_is_positive_only_with_everything_it_needs(fields, positive):
    result = parse_read(fields, min_confidence=0.75)
    assert result.positive is positive
    assert 0 <= result.confidence <= 1


@pytest.mark.parametrize("values", [{"can_answer": "yes"}, {}])
def test_a_read_without_a_flag_is_an_error(values):
    with pytest.raises(StageError) as error:
        parse_read(values, min_confidence=0.75)
    assert error.value.kind is ErrorKind.WRONG_TYPE


def resolved(has_reads=True, has_positive=True, **fields):
    return parse_resolution(
        fields,
        resolve_unread=OFFERED.get,
        resolve_read=OFFERED.get,
        limit=3,
        has_reads=has_reads,
        has_positive=has_positive,
    )


def test_an_answer_with_a_positive_read_is_taken():
    result = resolved(answered=True, answer="15%", next_step="search_more", supporting_doc_ids=["d1"])
    assert (result.answered, result.answer, result.next_step, result.error) == (True, "15%", "done", None)
    assert result.supporting == ("web/1",)


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"answered": False, "next_step": "read_more", "selected_doc_ids": ["d2"]}, "read_more"),
        ({"answered": False, "next_step": "look harder"}, "search_more"),
        ({"answered": False, "next_step": ["read_more"]}, "search_more"),
        ({"answered": False, "next_step": "done"}, "search_more"),
        ({"answered": False}, "search_more"),
    ],
)
def test_next_steps(fields, step):
    result = resolved(**fields)
    assert (result.answered, result.next_step, result.error) == (False, step, None)


@pytest.mark.parametrize(
    ("answer", "has_reads", "has_positive", "ids", "step"),
    [
        ("15%", True, False, ["d1"], "read_more"),
        ("15%", True, False, [], "search_more"),
        ("15%", False, False, ["d1"], "search_more"),
        ("", True, True, ["d1"], "read_more"),
    ],
)
def test_an_unsupported_answer_is_withdrawn(answer, has_reads, has_positive, ids, step):
    result = resolved(has_reads, has_positive, answered=True, answer=answer, selected_doc_ids=ids)
    assert (result.answered, result.answer, result.error) == (False, "", ErrorKind.RESOLVER_WIPE)
    assert result.next_step == step


def test_read_more_without_a_valid_id_becomes_search_more():
    result = resolved(answered=False, next_step="read_more", selected_doc_ids=["d9"])
    assert (result.next_step, result.error, result.unknown_ids) == ("search_more", ErrorKind.INVALID_IDS, 1)
