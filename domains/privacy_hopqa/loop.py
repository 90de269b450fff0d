"""The agent: plan, search, choose, read, resolve, until all hops have answers or the budget is spent.

Each iteration works on the first hop without an answer. A wrong answer advances; an unanswered hop is tried
again until the cap. A stage error ends the rollout or spends the iteration (`on_stage_error`); a failed read
is a negative read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from domains.privacy_hopqa.calls import Caller, id_resolver
from domains.privacy_hopqa.chains import Chain
from domains.privacy_hopqa.concurrency import run_limited
from domains.privacy_hopqa.errors import StageError
from domains.privacy_hopqa.interfaces import (
    ChooseContext,
    HopView,
    Model,
    PlanContext,
    ReadContext,
    ReadNote,
    ResolveContext,
    Searcher,
    Stage,
)
from domains.privacy_hopqa.judge import Judge
from domains.privacy_hopqa.pool import (
    Candidate,
    Parent,
    Pool,
    make_cards,
    memory_parents,
    window_view,
    windows_to_read,
)
from domains.privacy_hopqa.prompts import PromptSet
from domains.privacy_hopqa.retrieval import Retrieval
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.stages.choose import parse_choice
from domains.privacy_hopqa.stages.plan import PlanResult, parse_plan
from domains.privacy_hopqa.stages.read import parse_read
from domains.privacy_hopqa.stages.resolve import ResolveResult, parse_resolution
from domains.privacy_hopqa.trace import (
    ANCHOR,
    GOLD_ABSENT,
    GOLD_ALREADY,
    GOLD_NOT_YET,
    GOLD_VISIBLE,
    CallRecord,
    ChooseFacts,
    Episode,
    HopState,
    PlanFacts,
    ReadFacts,
    ResolveFacts,
)

MAX_RESOLVE_READS = 12
MAX_UNREAD_CARDS = 80


def iteration_cap(n_hops: int, settings: PrivacyHopQASettings) -> int:
    """Iterations of a whole rollout."""
    return min(settings.max_iterations, settings.iteration_budget_per_hop * n_hops)


class AgentLoop:
    """One rollout on one chain."""

    def __init__(
        self,
        chain: Chain,
        settings: PrivacyHopQASettings,
        prompts: PromptSet,
        model: Model,
        searcher: Searcher,
        judge: Judge | None = None,
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._caller = Caller(model, prompts, settings)
        self._judge = judge or Judge(chain, settings.answer_match_mode, settings.answer_match_f1_threshold)
        self.episode = Episode(chain, [HopState(hop.number) for hop in chain.hops], self._caller.records)
        self._retrieval = Retrieval(self.episode, settings, searcher, self._judge)

    async def run(self) -> Episode:
        """Run to the end. Raises RolloutFailure; a stage error ends the run and is noted in the episode."""
        start = time.perf_counter()
        for iteration in range(1, iteration_cap(len(self._chain.hops), self._settings) + 1):
            state = next((hop for hop in self.episode.hops if hop.answer is None), None)
            if state is None:
                break
            self.episode.iterations = iteration
            try:
                await self._iterate(state, iteration)
            except StageError as error:
                if self._settings.on_stage_error == "end_rollout":
                    self.episode.fatal = error.kind
                    break
            if self._settings.stop_after_incorrect_hop and self._is_wrong(state):
                break
        self.episode.duration_s = time.perf_counter() - start
        return self.episode

    def _is_wrong(self, state: HopState) -> bool:
        return state.answer is not None and not self._judge.correct(state.hop_number, state.answer)

    async def _iterate(self, state: HopState, iteration: int) -> None:
        view = self._view(state, iteration)
        record, plan = await self._plan(state, view)
        searches = self._retrieval.searches(state, view, plan)
        pool = await self._retrieval.run(state, view, searches, record)
        if pool.parents:
            chosen = await self._choose(state, view, pool)
            await self._settle(state, view, pool, chosen)
        elif not searches and state.reads:
            await self._settle(state, view, pool, [])

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
            memory=make_cards(self._memory(view), self._settings.chooser_excerpt_chars),
            action_limit=self._settings.max_parallel_retrieval_actions,
            no_web=self._settings.no_web,
            privacy_note=self._settings.planner_privacy_prompt,
        )
        for attempt in range(1, self._settings.hop_plan_attempts + 1):
            record, plan = await self._plan_once(state, context)
            if plan.actions or plan.explicitly_empty or attempt == self._settings.hop_plan_attempts:
                break
        return record, plan

    async def _plan_once(self, state: HopState, context: PlanContext) -> tuple[CallRecord, PlanResult]:
        situation = GOLD_ALREADY if state.gold_after_cut or state.gold_read else GOLD_NOT_YET
        record, _ = await self._caller.ask(Stage.PLAN, context, situation)
        with _recorded(record):
            plan = parse_plan(
                record.text,
                limit=context.action_limit,
                no_web=context.no_web,
                earlier=state.query_keys[-self._settings.max_history_entries :],
            )
        right = self._chain.hop(state.hop_number).source
        record.json_path = plan.json_path
        record.facts = PlanFacts(
            explicitly_empty=plan.explicitly_empty,
            sources=tuple(action.source for action in plan.actions),
            web_queries=tuple(action.query for action in plan.actions if action.source == "web"),
            rejected=plan.rejected,
            right_source=any(action.source == right for action in plan.actions),
        )
        return record, plan

    def _memory(self, view: HopView) -> list[Parent]:
        return memory_parents(list(self.episode.memory.values()), view.question, self._settings)

    # Choose

    async def _choose(self, state: HopState, view: HopView, pool: Pool) -> list[Parent]:
        """The documents to read: all if they are few, else the model's choice."""
        limit = self._settings.choose_top_k
        if len(pool.parents) <= limit:
            return pool.parents
        context = ChooseContext(
            view=view,
            cards=make_cards(pool.parents, self._settings.chooser_excerpt_chars),
            memory=make_cards(self._memory(view), self._settings.chooser_excerpt_chars),
            limit=limit,
        )
        visible = self._retrieval.has_gold(state, pool.parents)
        record, prompt = await self._caller.ask(
            Stage.CHOOSE, context, GOLD_VISIBLE if visible else GOLD_ABSENT
        )
        by_id = {parent.doc_id: parent for parent in pool.parents}
        with _recorded(record):
            choice = parse_choice(
                record.text, resolve=id_resolver(prompt, {name: name for name in by_id}), limit=limit
            )
        chosen = [by_id[name] for name in choice.doc_ids]
        record.json_path = choice.json_path
        record.facts = ChooseFacts(
            n_cards=len(pool.parents),
            gold_visible=visible,
            gold_first=self._retrieval.has_gold(state, pool.parents[:1]),
            gold_selected=self._retrieval.has_gold(state, chosen),
            unknown_ids=choice.unknown_ids,
        )
        return chosen

    # Read and resolve

    async def _settle(self, state: HopState, view: HopView, pool: Pool, chosen: Sequence[Parent]) -> None:
        """Read what is chosen and resolve, again while the resolver asks for more and more is unread."""
        for _ in range(self._settings.max_read_rounds):
            await self._read(state, view, chosen)
            unread = pool.unread(state.read_ids)
            result = await self._resolve(state, view, unread)
            if result.answered:
                self._remember(state, result, view.iteration)
                return
            if result.next_step != "read_more":
                return
            by_id = {parent.doc_id: parent for parent in unread}
            chosen = [by_id[name] for name in result.doc_ids]

    async def _read(self, state: HopState, view: HopView, chosen: Sequence[Parent]) -> None:
        windows = [(parent, c) for parent in chosen for c in windows_to_read(parent, self._settings)]
        if not windows:
            return
        notes = await run_limited(
            [lambda pair=pair: self._read_one(state, view, *pair) for pair in windows],  # type: ignore[misc]
            self._settings.max_parallel_doc_reads,
        )
        state.reads += notes
        state.read_ids.update(note.window_id for note in notes)
        self.episode.windows_read += len(windows)
        self.episode.parents_read += len({parent.doc_id for parent, _ in windows})
        for parent in chosen:
            state.read_documents[parent.doc_id] = parent.document

    async def _read_one(
        self, state: HopState, view: HopView, parent: Parent, candidate: Candidate
    ) -> ReadNote:
        """One read; an unusable answer counts as a negative read."""
        window = window_view(parent, candidate)
        gold = self._judge.is_gold(state.hop_number, parent.document)
        state.gold_read |= gold
        holds = (
            gold and self._is_asked_rightly(state) and self._judge.holds_answer(state.hop_number, window.text)
        )
        try:
            record, _ = await self._caller.ask(Stage.READ, ReadContext(view, window), ANCHOR)
            with _recorded(record):
                result = parse_read(record.text, min_confidence=self._settings.reader_min_answer_confidence)
        except StageError as error:
            return ReadNote(
                window.window_id, window.parent_id, window.title, False, "", "", 0.0, str(error.kind)
            )
        correct = result.positive and self._judge.correct(state.hop_number, result.answer)
        record.json_path = result.json_path
        record.facts = ReadFacts(gold, holds, result.positive, correct)
        return ReadNote(
            window_id=window.window_id,
            parent_id=window.parent_id,
            title=window.title,
            positive=result.positive,
            answer=result.answer,
            justification=result.justification,
            confidence=result.confidence,
            missing=result.missing,
        )

    def _is_asked_rightly(self, state: HopState) -> bool:
        """Whether the answers filled into the hop's question are correct."""
        answers = self.episode.answers
        needed = self._chain.hop(state.hop_number).dependencies
        return all(self._judge.correct(number, answers.get(number)) for number in needed)

    async def _resolve(self, state: HopState, view: HopView, unread: Sequence[Parent]) -> ResolveResult:
        positives = state.positive_reads
        unread = unread[:MAX_UNREAD_CARDS]
        context = ResolveContext(
            view=view,
            searches=tuple(state.searches[-self._settings.max_history_entries :]),
            reads=_resolver_reads(state),
            unread=make_cards(unread, self._settings.chooser_excerpt_chars),
            limit=self._settings.choose_top_k,
            constrained=self._settings.constrained_resolver,
        )
        record, prompt = await self._caller.ask(Stage.RESOLVE, context, ANCHOR)
        offered = {parent.doc_id: parent.doc_id for parent in unread}
        was_read = {read.window_id: read.parent_id for read in state.reads}
        partly_read = {window: doc for window, doc in was_read.items() if doc in offered}
        with _recorded(record):
            result = parse_resolution(
                record.text,
                resolve_unread=id_resolver(prompt, offered | partly_read),
                resolve_read=id_resolver(prompt, was_read | {doc: doc for doc in was_read.values()}),
                limit=self._settings.choose_top_k,
                has_reads=bool(state.reads),
                has_positive=bool(positives),
            )
        correct = result.answered and self._judge.correct(state.hop_number, result.answer)
        answerable = any(self._judge.correct(state.hop_number, read.answer) for read in positives)
        record.json_path = result.json_path
        record.facts = ResolveFacts(
            result.answered, correct, answerable, result.next_step, result.unknown_ids, result.error
        )
        return result

    def _remember(self, state: HopState, result: ResolveResult, iteration: int) -> None:
        """Take the answer, and keep the documents that support it for later hops."""
        state.answer, state.justification, state.answered_in = result.answer, result.justification, iteration
        positives = state.positive_reads
        agreeing = [read.parent_id for read in positives if _same(read.answer, result.answer)]
        supporting = result.supporting or agreeing or [read.parent_id for read in positives]
        for doc_id in supporting:
            self.episode.memory[doc_id] = state.read_documents[doc_id]


@contextmanager
def _recorded(record: CallRecord) -> Iterator[None]:
    """Note the kind of a StageError that the block raises."""
    try:
        yield
    except StageError as error:
        record.error = error.kind
        raise


def _resolver_reads(state: HopState) -> tuple[ReadNote, ...]:
    """The last positive reads and the last reads, each once, oldest first."""
    positive = [i for i, read in enumerate(state.reads) if read.positive][-MAX_RESOLVE_READS:]
    last = range(max(0, len(state.reads) - MAX_RESOLVE_READS), len(state.reads))
    return tuple(state.reads[i] for i in sorted({*positive, *last}))


def _same(left: str, right: str) -> bool:
    return left.casefold().split() == right.casefold().split()
