"""Searches of one plan, run in parallel, and the candidate pool they give; called by the loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from domains.privacy_hopqa.agent.concurrency import run_limited
from domains.privacy_hopqa.agent.episode import CallRecord, Episode, HopState, PlanFacts
from domains.privacy_hopqa.agent.errors import SearchActionError, SearchFailure
from domains.privacy_hopqa.agent.interfaces import HopView, Search, Searcher, SearchNote
from domains.privacy_hopqa.agent.pool import Parent, Pool, RankedHit, build_pool
from domains.privacy_hopqa.agent.stages import Action, PlanResult, query_key
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.settings import PrivacyHopQASettings


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Runs the searches of one rollout and keeps its counts."""

    episode: Episode
    settings: PrivacyHopQASettings
    searcher: Searcher
    judge: Judge

    def searches(self, state: HopState, view: HopView, plan: PlanResult) -> list[tuple[Action, bool]]:
        """The actions to run, each with whether the model asked for it."""
        wanted = [(action, True) for action in plan.actions]
        settings = self.settings
        bootstrap = settings.enable_local_search_bootstrap and not state.searches
        fallback = settings.enable_generic_retrieval_fallback and not wanted and not plan.explicitly_empty
        if bootstrap or fallback:
            own = Action("local", view.question)
            if all(query_key(own.source, own.query) != query_key(a.source, a.query) for a, _ in wanted):
                wanted.append((own, False))
        return wanted

    async def run(
        self, state: HopState, view: HopView, searches: Sequence[tuple[Action, bool]], record: CallRecord
    ) -> Pool:
        """Run the searches, note them, and build the pool of this iteration.

        A plan without searches has what earlier hops remembered, and with `empty_plan_pool: retrieved` also
        what this hop has retrieved before and not read.
        """
        requests = [
            self._request(view, record, number, action) for number, (action, _) in enumerate(searches, 1)
        ]
        results = await run_limited(
            [partial(self._search, request) for request in requests],
            self.settings.max_parallel_retrieval_actions,
        )
        ranked: list[RankedHit] = []
        for (action, by_model), (hits, failed) in zip(searches, results):
            state.searches.append(SearchNote(action.source, action.query, len(hits), failed))
            ranked += hits
            state.retrieved.update((found.hit.document.doc_id, found.hit.document) for found in hits)
            gold = any(self.judge.is_gold(state.hop_number, found.hit.document.aliases) for found in hits)
            state.gold_before_cut |= gold
            if gold and by_model and isinstance(record.facts, PlanFacts):
                record.facts.gold_retrieved = True
        goes_back = not searches and self.settings.empty_plan_pool == "retrieved"
        memory = self.episode.memory | state.retrieved if goes_back else self.episode.memory
        pool = build_pool(list(memory.values()), ranked, state.read_ids, view.question, self.settings)
        self._count_pool(state, pool)
        return pool

    def _request(self, view: HopView, record: CallRecord, number: int, action: Action) -> Search:
        k = self.settings.web_top_k if action.source == "web" else self.settings.retrieval_top_k
        return Search(
            source=action.source,
            query=action.query,
            k=k,
            task_id=self.episode.chain.task_id,
            hop_number=view.hop_number,
            iteration=view.iteration,
            action_id=f"c{record.index}a{number}",
        )

    async def _search(self, request: Search) -> tuple[list[RankedHit], bool]:
        """Hits with their ranks, and whether the search failed."""
        self.episode.searches[request.source] += 1
        try:
            hits = await self.searcher.search(request)
        except SearchActionError as error:
            self.episode.counts.search_errors += 1
            if not error.of_request:
                self.episode.refusals[request.source].append(str(error))
            return [], True
        return [RankedHit(hit, rank, request.query) for rank, hit in enumerate(hits, 1)], False

    def check_answered(self) -> None:
        """Raises SearchFailure if the service refused every search of one source.

        Each source for itself: with the web alone, a policy would be taught that private documents are
        never found.
        """
        for source, refusals in self.episode.refusals.items():
            if refusals and len(refusals) == self.episode.searches[source]:
                raise SearchFailure(f"every {source} search was refused, the last one: {refusals[-1]}")

    def _count_pool(self, state: HopState, pool: Pool) -> None:
        counts = self.episode.counts
        counts.parents_before_cut += pool.parents_before_cut
        counts.parents_after_cut += len(pool.parents)
        counts.windows_before_cut += pool.windows_before_cut
        counts.windows_after_cut += pool.windows_after_cut
        if self.has_gold(state, pool.parents):
            state.gold_after_cut = True

    def has_gold(self, state: HopState, parents: Sequence[Parent]) -> bool:
        return any(self.judge.is_gold(state.hop_number, parent.document.aliases) for parent in parents)
