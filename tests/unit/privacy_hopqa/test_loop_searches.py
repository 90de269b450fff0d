"""Searches that fail, are refused or find nothing; what later questions show; no gold in prompts."""

import asyncio

import pytest

from domains.privacy_hopqa.agent.concurrency import run_limited
from domains.privacy_hopqa.agent.episode import GOLD_ABSENT, GOLD_ALREADY, GOLD_NOT_YET, GOLD_VISIBLE
from domains.privacy_hopqa.agent.errors import SearchActionError, TransportFailure
from domains.privacy_hopqa.agent.interfaces import Stage
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import (
    AUDIT,
    REGION,
    TWO_HOPS,
    Script,
    Searches,
    answering,
    chain_of,
    hop,
    others,
    play,
)


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
