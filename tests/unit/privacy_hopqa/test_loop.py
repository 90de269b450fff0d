"""The control flow of a rollout, with a scripted model and a fake search that may fail or find nothing."""

import asyncio

import pytest

from domains.privacy_hopqa.agent.concurrency import run_limited
from domains.privacy_hopqa.agent.episode import GOLD_ABSENT, GOLD_ALREADY, GOLD_NOT_YET, GOLD_VISIBLE, Event
from domains.privacy_hopqa.agent.errors import ErrorKind, SearchActionError, StageError, TransportFailure
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.agent.loop import iteration_cap
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import (
    AUDIT,
    GOLD_LOCAL,
    REGION,
    TWO_HOPS,
    Script,
    Searches,
    answering,
    chain_of,
    document,
    hop,
    others,
    play,
    settings,
    solving,
)


@pytest.mark.parametrize(("hops", "cap"), [(1, 2), (2, 4), (3, 6), (4, 8), (6, 12), (7, 14), (20, 14)])
def test_cap_of_iterations(hops, cap):
    assert iteration_cap(hops, settings()) == cap


async def test_two_hops_answered_with_the_agents_own_answer_filled_in():
    script = solving()
    episode = await play(script, {"audit": [AUDIT], "coverage": [REGION]})
    assert episode.answers == {1: "15%", 2: "Northmere"}
    assert episode.iterations == 2
    assert episode.fatal is None
    second = script.of(Stage.PLAN)[1].context
    assert second.view.question == "Which region reports 15% coverage?"
    assert [card.doc_id for card in second.memory] == [GOLD_LOCAL]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"plan": "no json"}, ErrorKind.PARSE),
        ({"plan": '{"type":"web_search"}'}, ErrorKind.WRONG_TYPE),
        ({"choose": say.choose("d9")}, ErrorKind.INVALID_IDS),
        ({"choose": "[1]"}, ErrorKind.WRONG_TYPE),
        ({"resolve": "nothing"}, ErrorKind.PARSE),
        ({"plan": StageError(ErrorKind.CONTEXT_OVERFLOW, "full")}, ErrorKind.CONTEXT_OVERFLOW),
    ],
)
@pytest.mark.parametrize("policy", ["end_rollout", "spend_iteration"])
async def test_stage_errors_end_the_rollout_or_spend_the_iteration(said, kind, policy):
    script = Script(**({"plan": say.local("audit")} | said))
    episode = await play(script, {"audit": others(4)}, on_stage_error=policy)
    ends = policy == "end_rollout"
    assert episode.fatal is (kind if ends else None)
    assert episode.iterations == (1 if ends else 4)
    assert next(call.error for call in episode.calls if call.error) is kind


@pytest.mark.parametrize("said", ["garbage", StageError(ErrorKind.CONTEXT_OVERFLOW, "full")])
async def test_an_unusable_read_is_a_negative_read(said):
    script = answering("15%", read=[said, say.yes("15%")])
    episode = await play(script, {"audit": [*others(1), AUDIT]}, max_iterations=1)
    assert [read.positive for read in episode.hops[0].reads] == [False, True]
    assert (episode.fatal, episode.answers) == (None, {1: "15%"})


@pytest.mark.parametrize(("pool", "read"), [("memory", ["web/10"]), ("retrieved", ["web/10", "web/12"])])
async def test_what_an_empty_plan_may_read(pool, read):
    script = Script(plan=[say.local("audit"), "[]"], choose=[say.choose("d1"), say.choose("d2")])
    episode = await play(script, {"audit": others(4)}, max_iterations=2, empty_plan_pool=pool)
    assert script.read_from == read
    assert len(script.of(Stage.RESOLVE)) == 2
    assert (Event.RESOLVE_AGAIN in events(episode)) is (pool == "memory")


async def test_memory_that_leaves_the_hop_open_is_resolved_with_the_earlier_reads_of_the_hop():
    script = Script(
        plan=[say.local("audit"), say.plan("coverage"), "[]"],
        read=lambda r: say.yes("15%") if r.context.view.hop_number == 1 else say.NO,
        resolve=[say.done("15%"), say.SEARCH_MORE],
    )
    found = {"audit": [AUDIT], "coverage": others(2)}
    await play(script, found, max_iterations=3, choose_top_k=3)
    last = script.of(Stage.RESOLVE)[-1].context
    assert {read.parent_id for read in last.reads} == {GOLD_LOCAL, "web/10", "web/11"}


async def test_a_supporting_document_enters_memory_whole_and_others_do_not():
    long = document("web/2", "Long. " * 3000)
    script = Script(
        plan=[say.local("audit"), "[]"],
        read=say.yes("15%"),
        resolve=[
            '{"answered":true,"answer":"15%","next_step":"done","selected_doc_ids":["web/2#w01of02"]}',
            say.SEARCH_MORE,
        ],
    )
    episode = await play(script, {"audit": [AUDIT, long]}, max_iterations=2)
    assert set(episode.memory) == {"web/2"}
    again = [r.context.window.window_id for r in script.of(Stage.READ) if r.context.view.hop_number == 2]
    assert again == ["web/2#w01of02", "web/2#w02of02"]


def events(episode):
    return [transition.event for transition in episode.transitions]


async def test_every_transition_is_logged_without_any_text():
    script = Script(
        plan=[say.local("audit"), say.plan("none"), "[]", say.local("regions"), say.local("nothing at all")],
        choose=say.choose("d1"),
        read=["garbage", say.yes("15%"), say.NO],
        resolve=[say.read_more("d2"), say.done("15%"), say.SEARCH_MORE, say.done("made up"), say.SEARCH_MORE],
    )
    found = {"audit": [*others(1), AUDIT, *others(3, "web/3")], "regions": others(2, "web/2")}
    episode = await play(script, found, max_iterations=14, iteration_budget_per_hop=3)
    assert events(episode) == [
        *("search", "choose", "stage_error", "read_more", "answer"),
        *("search", "take_all", "search_more"),
        *("stop", "resolve_again", "withdraw", "search_more"),
        *("search", "take_all", "search_more"),
        *("search", "nothing_found"),
        *("no_action", "resolve_again", "search_more"),
        "end_cap",
    ]
    iterations = [transition.iteration for transition in episode.transitions]
    assert iterations == sorted(iterations) and iterations[-1] == 6
    details = " ".join(transition.detail for transition in episode.transitions)
    assert not {"audit", "web", "15%", "regions"} & set(details.replace("=", " ").split())


@pytest.mark.parametrize(
    ("said", "changes", "end"),
    [
        ({}, {}, Event.END_COMPLETE),
        ({"plan": "[]"}, {}, Event.END_CAP),
        ({"plan": "garbage"}, {}, Event.END_ERROR),
        ({"plan": "garbage"}, {"on_stage_error": "spend_iteration"}, Event.END_CAP),
        ({"resolve": say.done("9%")}, {"stop_after_incorrect_hop": True}, Event.END_INCORRECT),
    ],
)
async def test_how_a_rollout_ends(said, changes, end):
    chain = chain_of(hop(1, "What share passed?", "15%", GOLD_LOCAL))
    episode = await play(answering("15%", **said), {"audit": [AUDIT]}, chain, **changes)
    assert events(episode)[-1] is end
    assert sum(event.startswith("end_") for event in events(episode)) == 1


async def test_a_refused_search_fails_alone():
    searches = Searches({"bad": SearchActionError("400"), "audit": [AUDIT]})
    script = answering("15%", plan=say.local("bad", "audit"))
    episode = await play(script, searches, max_iterations=1)
    assert episode.answers == {1: "15%"}
    assert episode.counts.search_errors == 1
    assert [note.failed for note in episode.hops[0].searches] == [True, False]


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


async def test_no_more_run_at_a_time_than_the_limit():
    running = []

    async def work():
        running.append(running[-1] + 1 if running else 1)
        await asyncio.sleep(0)
        running.append(running[-1] - 1)

    await run_limited([work] * 5, 2)
    assert max(running) == 2


async def test_a_plan_is_asked_again_only_without_usable_actions():
    script = Script(plan=[say.plan(""), say.local("audit")])
    episode = await play(script, {"audit": [AUDIT]}, max_iterations=1, hop_plan_attempts=3)
    assert len(script.of(Stage.PLAN)) == 2
    assert [call.index for call in episode.calls] == list(range(len(episode.calls)))
    script = Script(plan="[]")
    await play(script, max_iterations=1, hop_plan_attempts=3)
    assert len(script.of(Stage.PLAN)) == 1


async def test_no_web_drops_web_actions():
    searches = Searches({"x": [REGION]})
    episode = await play(Script(plan=say.plan("x")), searches, max_iterations=1, no_web=True)
    assert not searches.requests
    assert episode.calls[0].facts.rejected == {"no_web": 1}


async def test_situations_are_those_before_the_call():
    script = Script(plan=[say.local("a"), say.local("b"), say.local("c")], choose=say.choose("d3"))
    found = {"a": others(4), "b": [*others(3, "web/2"), AUDIT], "c": others(4, "web/3")}
    episode = await play(script, found, max_iterations=3)
    plans = [call.situation for call in episode.calls if call.stage == Stage.PLAN]
    choices = [call.situation for call in episode.calls if call.stage == Stage.CHOOSE]
    assert plans == [GOLD_NOT_YET, GOLD_NOT_YET, GOLD_ALREADY]
    assert choices == [GOLD_ABSENT, GOLD_VISIBLE, GOLD_ABSENT]


async def test_gold_beyond_the_cut_counts_as_retrieved_but_not_as_seen():
    script = Script(plan=[say.local("a"), say.local("b")])
    found = {"a": [*others(4), AUDIT], "b": others(2, "web/2")}
    episode = await play(script, found, max_iterations=2, max_candidate_cards=4)
    plans = [call for call in episode.calls if call.stage == Stage.PLAN]
    assert plans[0].facts.gold_retrieved
    assert plans[1].situation == GOLD_NOT_YET
    assert episode.hops[0].gold_before_cut
    assert not episode.hops[0].gold_after_cut


@pytest.mark.parametrize(
    ("context", "said", "shown"),
    [("agent", "15 percent", "15 percent"), ("gold", "15 percent", "15%"), ("gold", "3%", "3%")],
)
async def test_later_questions_hold_the_agents_answer_or_the_canonical_form_of_a_right_one(
    context, said, shown
):
    script = answering(said, plan=[say.local("audit"), "[]"], resolve=[say.done(said), say.SEARCH_MORE])
    await play(script, {"audit": [AUDIT]}, max_iterations=2, answer_context=context)
    assert script.of(Stage.PLAN)[1].context.view.question == f"Which region reports {shown} coverage?"


async def test_bootstrap_search_is_private_and_not_the_plans_merit():
    question = TWO_HOPS.hop(1).question
    searches = Searches({question: [AUDIT]})
    episode = await play(Script(plan="[]"), searches, max_iterations=1, enable_local_search_bootstrap=True)
    assert [(s.source, s.query) for s in searches.requests] == [("local", question)]
    assert not episode.calls[0].facts.gold_retrieved


@pytest.mark.parametrize(("text", "searched"), [(say.plan(""), 1), ("[]", 0)])
async def test_generic_fallback_searches_when_no_action_was_usable(text, searched):
    searches = Searches()
    await play(Script(plan=text), searches, max_iterations=1, enable_generic_retrieval_fallback=True)
    assert len(searches.requests) == searched


@pytest.mark.parametrize(("prompt_set", "constrained"), [("compact", False), ("full", False), ("full", True)])
async def test_no_gold_reaches_a_prompt_unless_model_or_document_said_it(prompt_set, constrained):
    chain = chain_of(
        hop(1, "What did the audit find?", "zqxgold1", "local/DR90001/f/zqxdoc1.md"),
        hop(2, "Who reported (1)?", "zqxgold2", "web/zqxdoc2", accepted_answer_variants=["zqxvariant"]),
        global_answer="zqxfinal",
        private_questions=[{"question": "zqxquestion", "answer": "zqxprivate", "doc_id": "zqxdoc3"}],
        split="test",
    )
    script = Script(
        plan=[say.plan("a"), say.plan("b"), say.plan("c")],
        choose=lambda r: say.choose(r.context.cards[0].doc_id),
        read=say.yes("wrong"),
        resolve=say.done("wrong"),
    )
    found = {"a": others(4), "b": others(3)}
    options = {"prompt_set": prompt_set, "constrained_resolver": constrained, "privacy_facts": "task"}
    await play(script, found, chain, choose_top_k=1, **options)
    assert {request.stage for request in script.requests} == set(Stage)
    for request in script.requests:
        assert "zqx" not in request.prompt.text
        assert "zqx" not in repr(request.context)
