"""The agent: plan, search, choose, read, resolve, until all hops have answers or the budget is spent.

Each iteration works on the first hop without an answer. A wrong answer advances; an unanswered hop is tried
again until the cap. A stage error ends the rollout or spends the iteration (`on_stage_error`); a failed read
is a negative read.
"""

import time

from domains.privacy_hopqa.agent.calls import Caller, id_resolver
from domains.privacy_hopqa.agent.episode import (
    GOLD_ABSENT,
    GOLD_ALREADY,
    GOLD_NOT_YET,
    GOLD_VISIBLE,
    CallRecord,
    ChooseFacts,
    Episode,
    Event,
    HopState,
    PlanFacts,
)
from domains.privacy_hopqa.agent.errors import StageError
from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    HopView,
    Model,
    PlanContext,
    Prompts,
    Searcher,
    Stage,
)
from domains.privacy_hopqa.agent.pool import Parent, Pool, build_pool, make_cards
from domains.privacy_hopqa.agent.retrieval import Retrieval
from domains.privacy_hopqa.agent.settle import Settler
from domains.privacy_hopqa.agent.stages import PlanResult, parse_choice, parse_plan, query_key
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import Judge, judge_of
from domains.privacy_hopqa.settings import PrivacyHopQASettings


def iteration_cap(n_hops: int, settings: PrivacyHopQASettings) -> int:
    """Iterations of a whole rollout."""
    return min(settings.max_iterations, settings.iteration_budget_per_hop * n_hops)


class AgentLoop:
    """One rollout on one chain."""

    def __init__(
        self,
        chain: Chain,
        settings: PrivacyHopQASettings,
        prompts: Prompts,
        model: Model,
        searcher: Searcher,
        judge: Judge | None = None,
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._caller = Caller(model, prompts, settings)
        self._judge = judge or judge_of(chain, settings)
        self.episode = Episode(chain, [HopState(hop.number) for hop in chain.hops], self._caller.records)
        self._retrieval = Retrieval(self.episode, settings, searcher, self._judge)
        self._settler = Settler(self.episode, settings, self._caller, self._judge)

    async def run(self) -> Episode:
        """Run to the end. Raises RolloutFailure; a stage error ends the run and is noted in the episode."""
        start = time.perf_counter()
        end, hop_number = await self._iterations()
        self._retrieval.check_answered()
        self.episode.log(hop_number, end)
        self.episode.duration_s = time.perf_counter() - start
        return self.episode

    async def _iterations(self) -> tuple[Event, int]:
        """Why the rollout ends, and the hop it was at."""
        state = self.episode.hops[0]
        for iteration in range(1, iteration_cap(len(self._chain.hops), self._settings) + 1):
            state = self._open_hop() or state
            self.episode.iterations = iteration
            try:
                await self._iterate(state, iteration)
            except StageError as error:
                self.episode.log(state.hop_number, Event.STAGE_ERROR, str(error.kind))
                if self._settings.on_stage_error == "end_rollout":
                    self.episode.fatal = error.kind
                    return Event.END_ERROR, state.hop_number
            if self._settings.stop_after_incorrect_hop and self._is_wrong(state):
                return Event.END_INCORRECT, state.hop_number
            if self._open_hop() is None:
                return Event.END_COMPLETE, state.hop_number
        return Event.END_CAP, state.hop_number

    def _open_hop(self) -> HopState | None:
        return next((hop for hop in self.episode.hops if hop.answer is None), None)

    def _is_wrong(self, state: HopState) -> bool:
        return state.answer is not None and not self._judge.correct(state.hop_number, state.answer)

    async def _iterate(self, state: HopState, iteration: int) -> None:
        """Plan, search, choose, read, resolve.

        A plan without searches goes through the unread windows of memory, and the resolution then sees the
        hop's earlier reads too; with nothing unread, only these are resolved.
        """
        view = self._view(state, iteration)
        record, plan = await self._plan(state, view)
        searches = self._retrieval.searches(state, view, plan)
        empty = Event.STOP if plan.explicitly_empty else Event.NO_ACTION
        self.episode.log(state.hop_number, Event.SEARCH if searches else empty, f"actions={len(searches)}")
        pool = await self._retrieval.run(state, view, searches, record)
        if pool.parents:
            chosen = await self._choose(state, view, pool)
            await self._settler.settle(state, view, pool, chosen)
        elif not searches and state.reads:
            self.episode.log(state.hop_number, Event.RESOLVE_AGAIN, f"reads={len(state.reads)}")
            await self._settler.settle(state, view, pool, [])
        else:
            self.episode.log(state.hop_number, Event.NOTHING_FOUND)

    def _view(self, state: HopState, iteration: int) -> HopView:
        hop = self._chain.hop(state.hop_number)
        answers = self.episode.answers | self._gold_answers()
        return HopView(
            hop_number=hop.number,
            n_hops=len(self._chain.hops),
            iteration=iteration,
            question=hop.filled(answers),
            questions=self._chain.questions,
            answers=self.episode.answered_hops(hop.number, answers),
            company=self._chain.company,
            company_description=self._chain.company_description,
        )

    def _gold_answers(self) -> dict[int, str]:
        """Canonical texts of accepted answers, with `answer_context: gold` only (never in evaluation)."""
        if self._settings.answer_context != "gold":
            return {}
        return {
            number: self._chain.hop(number).answer
            for number, answer in self.episode.answers.items()
            if self._judge.correct(number, answer)
        }

    # Plan

    async def _plan(self, state: HopState, view: HopView) -> tuple[CallRecord, PlanResult]:
        """Plan; asked again, up to `hop_plan_attempts` times, while a non-empty plan has no usable action."""
        context = PlanContext(
            view=view,
            searches=tuple(state.searches[-self._settings.max_history_entries :]),
            reads=tuple(state.reads[-self._settings.max_history_entries :]),
            memory=self._memory(view),
            action_limit=self._settings.max_parallel_retrieval_actions,
            no_web=self._settings.no_web,
            privacy_note=self._settings.planner_privacy_prompt,
        )
        for attempt in range(1, self._settings.hop_plan_attempts + 1):
            record, plan = await self._plan_once(state, context)
            if plan.actions or plan.explicitly_empty or attempt == self._settings.hop_plan_attempts:
                break
            self.episode.log(state.hop_number, Event.ASK_AGAIN, f"attempt={attempt}")
        return record, plan

    async def _plan_once(self, state: HopState, context: PlanContext) -> tuple[CallRecord, PlanResult]:
        # Decided before the call: what the model answers must not choose whom it is compared with.
        situation = GOLD_ALREADY if state.gold_after_cut or state.gold_read else GOLD_NOT_YET
        record, plan = await self._caller.ask(
            Stage.PLAN,
            context,
            situation,
            lambda items, _: parse_plan(
                items,
                limit=context.action_limit,
                no_web=context.no_web,
                earlier=[query_key(note.source, note.query) for note in context.searches],
            ),
        )
        right = self._chain.hop(state.hop_number).source
        record.facts = PlanFacts(
            explicitly_empty=plan.explicitly_empty,
            sources=tuple(action.source for action in plan.actions),
            web_queries=tuple(action.query for action in plan.actions if action.source == "web"),
            rejected=plan.rejected,
            right_source=any(action.source == right for action in plan.actions),
        )
        return record, plan

    def _memory(self, view: HopView) -> tuple[Card, ...]:
        """The remembered documents with all their windows, read in this hop or not."""
        pool = build_pool(list(self.episode.memory.values()), (), set(), view.question, self._settings)
        return make_cards(pool.parents, self._settings.chooser_excerpt_chars)

    # Choose

    async def _choose(self, state: HopState, view: HopView, pool: Pool) -> list[Parent]:
        """The documents to read: all if they are few, else the model's choice."""
        limit = self._settings.choose_top_k
        if len(pool.parents) <= limit:
            self.episode.log(state.hop_number, Event.TAKE_ALL, f"documents={len(pool.parents)}")
            return pool.parents
        context = ChooseContext(
            view=view,
            cards=make_cards(pool.parents, self._settings.chooser_excerpt_chars),
            memory=self._memory(view),
            limit=limit,
        )
        visible = self._retrieval.has_gold(state, pool.parents)
        by_id = {parent.doc_id: parent for parent in pool.parents}
        ids = {name: name for name in by_id}
        record, (doc_ids, unknown) = await self._caller.ask(
            Stage.CHOOSE,
            context,
            GOLD_VISIBLE if visible else GOLD_ABSENT,
            lambda values, prompt: parse_choice(values, resolve=id_resolver(prompt, ids), limit=limit),
        )
        chosen = [by_id[name] for name in doc_ids]
        record.facts = ChooseFacts(
            gold_visible=visible,
            gold_first=self._retrieval.has_gold(state, pool.parents[:1]),
            gold_selected=self._retrieval.has_gold(state, chosen),
            unknown_ids=unknown,
        )
        self.episode.log(
            state.hop_number, Event.CHOOSE, f"documents={len(chosen)} candidates={len(pool.parents)}"
        )
        return chosen
