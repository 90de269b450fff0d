"""The control flow of a rollout: every branch, with a scripted model and a fake search."""

import asyncio

import pytest
from agent_harness import (
    GOLD_LOCAL,
    GOLD_WEB,
    NO,
    SEARCH_MORE,
    TWO_HOPS,
    Script,
    Searches,
    chain_of,
    choose,
    document,
    done,
    hop,
    local,
    plan,
    play,
    read_more,
    settings,
    yes,
)

from domains.privacy_hopqa.concurrency import run_limited
from domains.privacy_hopqa.errors import ErrorKind, SearchActionError, StageError, TransportFailure
from domains.privacy_hopqa.interfaces import Stage
from domains.privacy_hopqa.loop import iteration_cap
from domains.privacy_hopqa.trace import (
    ENDS,
    GOLD_ABSENT,
    GOLD_ALREADY,
    GOLD_NOT_YET,
    GOLD_VISIBLE,
    Event,
    PlanFacts,
    ResolveFacts,
)

AUDIT = document(GOLD_LOCAL, "# Audit\n\nIn the audit 15% of stores passed.")
REGION = document(GOLD_WEB, "# Regions\n\nNorthmere reports 15% coverage.")


def others(count: int, kind: str = "web/1") -> list:
    return [document(f"{kind}{n}") for n in range(count)]


@pytest.mark.parametrize(
    ("hops", "cap"), [(1, 2), (2, 4), (3, 6), (4, 8), (6, 12), (7, 14), (8, 14), (20, 14)]
)
def test_cap_of_iterations(hops, cap):
    assert iteration_cap(hops, settings()) == cap


async def test_two_hops_answered_with_the_agents_own_answer_filled_in():
    script = Script(
        plan=[local("audit"), plan("coverage")],
        read=lambda r: yes("15%") if r.context.view.hop_number == 1 else yes("Northmere"),
        resolve=[done("15%"), done("Northmere")],
    )
    episode = await play(script, Searches({"audit": [AUDIT], "coverage": [REGION]}))
    assert episode.answers == {1: "15%", 2: "Northmere"}
    assert episode.iterations == 2
    assert episode.fatal is None
    second = script.of(Stage.PLAN)[1].context
    assert second.view.question == "Which region reports 15% coverage?"
    assert [card.doc_id for card in second.memory] == [GOLD_LOCAL]


async def test_choose_is_skipped_when_all_parents_can_be_read():
    script = Script(plan=local("audit"))
    await play(script, Searches({"audit": others(2)}))
    assert not script.of(Stage.CHOOSE)
    assert len(script.of(Stage.READ)) == 2


async def test_choose_is_asked_above_the_limit_and_only_its_choice_is_read():
    script = Script(plan=local("audit"), choose=choose("d3"))
    await play(script, Searches({"audit": others(4)}), max_iterations=1)
    assert [r.context.window.parent_id for r in script.of(Stage.READ)] == ["web/12"]


async def test_a_wrong_answer_advances_to_the_next_hop():
    script = Script(plan=local("audit"), read=yes("99%"), resolve=done("99%"))
    episode = await play(script, Searches({"audit": [AUDIT]}), max_iterations=2)
    assert episode.hops[0].answer == "99%"
    assert [r.context.view.hop_number for r in script.of(Stage.PLAN)] == [1, 2]


async def test_an_unanswered_hop_is_tried_until_the_cap():
    episode = await play(Script(plan=local("nothing")))
    assert episode.iterations == 4
    assert {call.hop_number for call in episode.calls} == {1}
    assert not episode.answers


async def test_windows_already_read_in_the_hop_are_not_read_again():
    script = Script(plan=[local("audit"), local("audit again")])
    await play(script, Searches({"audit": [AUDIT], "audit again": [AUDIT]}), max_iterations=2)
    assert len(script.of(Stage.READ)) == 1
    assert len(script.of(Stage.RESOLVE)) == 1


async def test_a_withdrawn_answer_is_recorded_and_the_hop_stays_open():
    script = Script(plan=local("audit"), read=NO, resolve=done("15%"))
    episode = await play(script, Searches({"audit": [AUDIT]}), max_iterations=1)
    facts = episode.calls[-1].facts
    assert isinstance(facts, ResolveFacts)
    assert facts.error is ErrorKind.RESOLVER_WIPE
    assert facts.next_step == "search_more"
    assert episode.fatal is None
    assert episode.hops[0].answer is None


async def test_read_more_reads_the_named_unread_document():
    script = Script(plan=local("audit"), choose=choose("d1"), resolve=[read_more("d2"), SEARCH_MORE])
    await play(script, Searches({"audit": others(4)}), max_iterations=1)
    assert [r.context.window.parent_id for r in script.of(Stage.READ)] == ["web/10", "web/11"]


async def test_read_more_without_a_valid_id_searches_more_and_is_recorded():
    script = Script(plan=local("audit"), choose=choose("d1"), resolve=read_more("d9"))
    episode = await play(script, Searches({"audit": others(4)}), max_iterations=1)
    facts = episode.calls[-1].facts
    assert isinstance(facts, ResolveFacts)
    assert (facts.error, facts.next_step) == (ErrorKind.INVALID_IDS, "search_more")
    assert len(script.of(Stage.RESOLVE)) == 1


async def test_rounds_of_read_more_are_bounded():
    next_unread = lambda r: read_more(r.context.unread[0].doc_id)  # noqa: E731
    script = Script(plan=local("audit", "more"), choose=choose("d1"), resolve=next_unread)
    found = {"audit": others(5), "more": others(5, "web/2")}
    await play(script, Searches(found), max_iterations=1, max_read_rounds=3)
    assert len(script.of(Stage.RESOLVE)) == 3
    assert len(script.of(Stage.READ)) == 3


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script(plan="no json"), ErrorKind.PARSE),
        (Script(plan='{"type":"web_search"}'), ErrorKind.WRONG_TYPE),
        (Script(plan=local("audit"), choose=choose("d9")), ErrorKind.INVALID_IDS),
        (Script(plan=local("audit"), choose="[1]"), ErrorKind.WRONG_TYPE),
        (Script(plan=local("audit"), resolve="nothing"), ErrorKind.PARSE),
        (Script(plan=StageError(ErrorKind.CONTEXT_OVERFLOW, "full")), ErrorKind.CONTEXT_OVERFLOW),
    ],
)
@pytest.mark.parametrize("policy", ["end_rollout", "spend_iteration"])
async def test_stage_errors_end_the_rollout_or_spend_the_iteration(script, kind, policy):
    script = Script(script.plan, script.choose, script.read, script.resolve)
    episode = await play(script, Searches({"audit": others(4)}), on_stage_error=policy)
    ends = policy == "end_rollout"
    assert episode.fatal is (kind if ends else None)
    assert episode.iterations == (1 if ends else 4)
    assert next(call.error for call in episode.calls if call.error) is kind


async def test_an_unusable_read_is_a_negative_read():
    script = Script(plan=local("audit"), read=["garbage", yes("15%")], resolve=done("15%"))
    episode = await play(script, Searches({"audit": [*others(1), AUDIT]}), max_iterations=1)
    assert [read.positive for read in episode.hops[0].reads] == [False, True]
    assert episode.answers == {1: "15%"}


async def test_context_overflow_of_a_read_is_a_negative_read():
    script = Script(plan=local("audit"), read=StageError(ErrorKind.CONTEXT_OVERFLOW, "full"))
    episode = await play(script, Searches({"audit": [AUDIT]}), max_iterations=1)
    assert episode.fatal is None
    assert [read.positive for read in episode.hops[0].reads] == [False]


async def test_an_empty_plan_with_nothing_known_only_spends_the_iteration():
    script = Script(plan="[]")
    episode = await play(script)
    assert {call.stage for call in episode.calls} == {Stage.PLAN}
    assert episode.iterations == 4


async def test_an_empty_plan_reads_unread_memory():
    script = Script(
        plan=[local("audit"), "[]"],
        read=yes("15%"),
        resolve=[done("15%"), SEARCH_MORE],
    )
    await play(script, Searches({"audit": [AUDIT]}), max_iterations=2)
    second = [r for r in script.of(Stage.READ) if r.context.view.hop_number == 2]
    assert [r.context.window.parent_id for r in second] == [GOLD_LOCAL]


@pytest.mark.parametrize(("pool", "read"), [("memory", ["web/10"]), ("retrieved", ["web/10", "web/12"])])
async def test_what_an_empty_plan_may_read(pool, read):
    script = Script(plan=[local("audit"), "[]"], choose=[choose("d1"), choose("d2")])
    searches = Searches({"audit": others(4)})
    episode = await play(script, searches, max_iterations=2, empty_plan_pool=pool)
    assert [r.context.window.parent_id for r in script.of(Stage.READ)] == read
    assert len(script.of(Stage.RESOLVE)) == 2
    assert (Event.RESOLVE_AGAIN in events(episode)) is (pool == "memory")


async def test_memory_that_leaves_the_hop_open_is_resolved_with_the_earlier_reads_of_the_hop():
    script = Script(
        plan=[local("audit"), plan("coverage"), "[]"],
        read=lambda r: yes("15%") if r.context.view.hop_number == 1 else NO,
        resolve=[done("15%"), SEARCH_MORE],
    )
    found = {"audit": [AUDIT], "coverage": others(2)}
    await play(script, Searches(found), max_iterations=3, choose_top_k=3)
    last = script.of(Stage.RESOLVE)[-1].context
    assert {read.parent_id for read in last.reads} == {GOLD_LOCAL, "web/10", "web/11"}


async def test_a_supporting_document_enters_memory_whole_and_others_do_not():
    long = document("web/2", "Long. " * 3000)
    script = Script(
        plan=[local("audit"), "[]"],
        read=yes("15%"),
        resolve=[
            '{"answered":true,"answer":"15%","next_step":"done","selected_doc_ids":["web/2#w01of02"]}',
            SEARCH_MORE,
        ],
    )
    episode = await play(script, Searches({"audit": [AUDIT, long]}), max_iterations=2)
    assert set(episode.memory) == {"web/2"}
    again = [r.context.window.window_id for r in script.of(Stage.READ) if r.context.view.hop_number == 2]
    assert again == ["web/2#w01of02", "web/2#w02of02"]


def events(episode):
    return [transition.event for transition in episode.transitions]


async def test_every_transition_is_logged_without_any_text():
    script = Script(
        plan=[local("audit"), plan("none"), "[]", local("regions"), local("nothing at all")],
        choose=choose("d1"),
        read=["garbage", yes("15%"), NO],
        resolve=[read_more("d2"), done("15%"), SEARCH_MORE, done("made up"), SEARCH_MORE],
    )
    found = {"audit": [*others(1), AUDIT, *others(3, "web/3")], "regions": others(2, "web/2")}
    episode = await play(script, Searches(found), max_iterations=14, iteration_budget_per_hop=3)
    assert events(episode) == [
        Event.SEARCH,
        Event.CHOOSE,
        Event.STAGE_ERROR,
        Event.READ_MORE,
        Event.ANSWER,
        Event.SEARCH,
        Event.TAKE_ALL,
        Event.SEARCH_MORE,
        Event.STOP,
        Event.RESOLVE_AGAIN,
        Event.WITHDRAW,
        Event.SEARCH_MORE,
        Event.SEARCH,
        Event.TAKE_ALL,
        Event.SEARCH_MORE,
        Event.SEARCH,
        Event.NOTHING_FOUND,
        Event.NO_ACTION,
        Event.RESOLVE_AGAIN,
        Event.SEARCH_MORE,
        Event.END_CAP,
    ]
    iterations = [transition.iteration for transition in episode.transitions]
    assert iterations == sorted(iterations) and iterations[-1] == 6
    details = " ".join(transition.detail for transition in episode.transitions)
    assert not {"audit", "web", "15%", "regions"} & set(details.replace("=", " ").split())


@pytest.mark.parametrize(
    ("script", "changes", "end"),
    [
        (Script(plan=local("audit"), read=yes("15%"), resolve=done("15%")), {}, Event.END_COMPLETE),
        (Script(plan="[]"), {}, Event.END_CAP),
        (Script(plan="garbage"), {}, Event.END_ERROR),
        (Script(plan="garbage"), {"on_stage_error": "spend_iteration"}, Event.END_CAP),
        (
            Script(plan=local("audit"), read=yes("9%"), resolve=done("9%")),
            {"stop_after_incorrect_hop": True},
            Event.END_INCORRECT,
        ),
    ],
)
async def test_how_a_rollout_ends(script, changes, end):
    script = Script(script.plan, script.choose, script.read, script.resolve)
    chain = chain_of(hop(1, "What share passed?", "15%", GOLD_LOCAL))
    episode = await play(script, Searches({"audit": [AUDIT]}), chain, **changes)
    assert events(episode)[-1] is end
    assert sum(event in ENDS for event in events(episode)) == 1


async def test_an_empty_plan_resolves_on_earlier_reads():
    script = Script(plan=[local("audit"), "[]"], read=yes("15%"), resolve=[SEARCH_MORE, done("15%")])
    episode = await play(script, Searches({"audit": [AUDIT]}), max_iterations=2)
    assert len(script.of(Stage.READ)) == 1
    assert len(script.of(Stage.RESOLVE)) == 2
    assert episode.hops[0].answer == "15%"


async def test_a_plan_without_usable_actions_counts_as_without_searches():
    script = Script(
        plan=[local("audit"), local("Audit ")], read=yes("15%"), resolve=[SEARCH_MORE, done("15%")]
    )
    episode = await play(script, Searches({"audit": [AUDIT]}), max_iterations=2)
    assert episode.hops[0].answer == "15%"
    facts = episode.calls[3].facts
    assert isinstance(facts, PlanFacts)
    assert facts.rejected == {"repeated": 1}
    assert not facts.explicitly_empty


async def test_a_refused_search_fails_alone():
    searches = Searches({"bad": SearchActionError("400"), "audit": [AUDIT]})
    script = Script(plan=local("bad", "audit"), read=yes("15%"), resolve=done("15%"))
    episode = await play(script, searches, max_iterations=1)
    assert episode.answers == {1: "15%"}
    assert episode.search_errors == 1
    assert [note.failed for note in episode.hops[0].searches] == [True, False]


async def test_an_unreachable_service_fails_the_rollout():
    searches = Searches({"audit": TransportFailure("down"), "other": [AUDIT]})
    with pytest.raises(TransportFailure, match="down"):
        await play(Script(plan=local("audit", "other")), searches)


async def test_siblings_of_a_failure_are_cancelled_and_awaited():
    ended = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")

    async def failing():
        await asyncio.sleep(0)
        raise TransportFailure("down")

    with pytest.raises(TransportFailure):
        await run_limited([slow, failing], 5)
    assert ended == ["slow"]


async def test_a_plan_is_asked_again_only_without_usable_actions():
    script = Script(plan=[plan(""), local("audit")])
    episode = await play(script, Searches({"audit": [AUDIT]}), max_iterations=1, hop_plan_attempts=3)
    assert len(script.of(Stage.PLAN)) == 2
    assert [call.index for call in episode.calls] == list(range(len(episode.calls)))
    script = Script(plan="[]")
    await play(script, max_iterations=1, hop_plan_attempts=3)
    assert len(script.of(Stage.PLAN)) == 1


async def test_no_web_drops_web_actions():
    searches = Searches({"x": [REGION]})
    episode = await play(Script(plan=plan("x")), searches, max_iterations=1, no_web=True)
    assert not searches.requests
    assert episode.calls[0].facts.rejected == {"no_web": 1}


async def test_situations_are_those_before_the_call():
    script = Script(plan=[local("a"), local("b"), local("c")], choose=choose("d3"))
    found = {"a": others(4), "b": [*others(3, "web/2"), AUDIT], "c": others(4, "web/3")}
    episode = await play(script, Searches(found), max_iterations=3)
    plans = [call.situation for call in episode.calls if call.stage == Stage.PLAN]
    choices = [call.situation for call in episode.calls if call.stage == Stage.CHOOSE]
    assert plans == [GOLD_NOT_YET, GOLD_NOT_YET, GOLD_ALREADY]
    assert choices == [GOLD_ABSENT, GOLD_VISIBLE, GOLD_ABSENT]


async def test_gold_beyond_the_cut_counts_as_retrieved_but_not_as_seen():
    script = Script(plan=[local("a"), local("b")])
    found = {"a": [*others(4), AUDIT], "b": others(2, "web/2")}
    episode = await play(script, Searches(found), max_iterations=2, max_candidate_cards=4)
    plans = [call for call in episode.calls if call.stage == Stage.PLAN]
    assert plans[0].facts.gold_retrieved
    assert plans[1].situation == GOLD_NOT_YET
    assert episode.hops[0].gold_before_cut
    assert not episode.hops[0].gold_after_cut


async def test_stop_after_an_incorrect_hop():
    script = Script(plan=local("audit"), read=yes("99%"), resolve=done("99%"))
    episode = await play(script, Searches({"audit": [AUDIT]}), stop_after_incorrect_hop=True)
    assert episode.iterations == 1


@pytest.mark.parametrize(("context", "shown"), [("agent", "15 percent"), ("gold", "15%")])
async def test_later_questions_hold_the_agents_answer_or_its_canonical_form(context, shown):
    script = Script(
        plan=[local("audit"), "[]"], read=yes("15 percent"), resolve=[done("15 percent"), SEARCH_MORE]
    )
    await play(script, Searches({"audit": [AUDIT]}), max_iterations=2, answer_context=context)
    assert script.of(Stage.PLAN)[1].context.view.question == f"Which region reports {shown} coverage?"


async def test_a_wrong_answer_is_never_replaced_by_gold():
    script = Script(plan=[local("audit"), "[]"], read=yes("3%"), resolve=[done("3%"), SEARCH_MORE])
    await play(script, Searches({"audit": [AUDIT]}), max_iterations=2, answer_context="gold")
    assert script.of(Stage.PLAN)[1].context.view.question == "Which region reports 3% coverage?"


async def test_bootstrap_search_is_private_and_not_the_plans_merit():
    question = TWO_HOPS.hop(1).question
    searches = Searches({question: [AUDIT]})
    episode = await play(Script(plan="[]"), searches, max_iterations=1, enable_local_search_bootstrap=True)
    assert [(s.source, s.query) for s in searches.requests] == [("local", question)]
    assert not episode.calls[0].facts.gold_retrieved


@pytest.mark.parametrize(("text", "searched"), [(plan(""), 1), ("[]", 0)])
async def test_generic_fallback_searches_when_no_action_was_usable(text, searched):
    searches = Searches()
    await play(Script(plan=text), searches, max_iterations=1, enable_generic_retrieval_fallback=True)
    assert len(searches.requests) == searched


@pytest.mark.parametrize("prompt_set", ["compact", "full"])
@pytest.mark.parametrize("constrained", [False, True])
async def test_no_gold_reaches_a_prompt_unless_model_or_document_said_it(prompt_set, constrained):
    if prompt_set == "compact" and constrained:
        return
    chain = chain_of(
        hop(1, "What did the audit find?", "zqxgold1", "local/DR90001/f/zqxdoc1.md"),
        hop(2, "Who reported (1)?", "zqxgold2", "web/zqxdoc2", accepted_answer_variants=["zqxvariant"]),
        global_answer="zqxfinal",
        private_questions=[{"question": "zqxquestion", "answer": "zqxprivate", "doc_id": "zqxdoc3"}],
        split="test",
    )
    script = Script(
        plan=[plan("a"), plan("b"), plan("c")],
        choose=lambda r: choose(r.context.cards[0].doc_id),
        read=yes("wrong"),
        resolve=done("wrong"),
    )
    found = Searches({"a": others(4), "b": others(3)})
    options = {"prompt_set": prompt_set, "constrained_resolver": constrained, "privacy_facts": "task"}
    await play(script, found, chain, choose_top_k=1, **options)
    assert {request.stage for request in script.requests} == set(Stage)
    for request in script.requests:
        assert "zqx" not in request.prompt.text
        assert "zqx" not in repr(request.context)
