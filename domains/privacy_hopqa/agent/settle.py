"""From chosen documents to an answer: read their windows, resolve, read more while that is asked for.

The loop calls it once per iteration that has anything to read or to resolve.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial

from domains.privacy_hopqa.agent.calls import Caller, id_resolver
from domains.privacy_hopqa.agent.concurrency import run_limited
from domains.privacy_hopqa.agent.episode import ANCHOR, Episode, Event, HopState, ReadFacts, ResolveFacts
from domains.privacy_hopqa.agent.errors import ErrorKind, StageError
from domains.privacy_hopqa.agent.interfaces import (
    HopView,
    ReadContext,
    ReadNote,
    ResolveContext,
    Stage,
    WindowView,
)
from domains.privacy_hopqa.agent.pool import Parent, Pool, make_cards, window_view, windows_to_read
from domains.privacy_hopqa.agent.stages import ReadResult, ResolveResult, parse_read, parse_resolution
from domains.privacy_hopqa.agent.windows import RankedWindow
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.settings import PrivacyHopQASettings

MAX_RESOLVE_READS = 12
MAX_UNREAD_CARDS = 80
UNUSABLE = ReadResult(False, "", "", 0.0, "the reply could not be used")


@dataclass(frozen=True, slots=True)
class Settler:
    """Reads and resolves for one rollout."""

    episode: Episode
    settings: PrivacyHopQASettings
    caller: Caller
    judge: Judge

    async def settle(self, state: HopState, view: HopView, pool: Pool, chosen: Sequence[Parent]) -> None:
        """Read what is chosen and resolve, again while the resolver asks for more and more is unread.

        At most `max_read_rounds` rounds. Raises StageError for an unusable resolution; an unusable read is a
        negative one.
        """
        for left in range(self.settings.max_read_rounds, 0, -1):
            await self._read(state, view, chosen)
            unread = pool.unread(state.read_ids)
            result = await self._resolve(state, view, unread)
            if result.answered:
                self._remember(state, result)
                return
            if result.next_step != "read_more":
                self.episode.log(state.hop_number, Event.SEARCH_MORE)
                return
            event = Event.READ_MORE if left > 1 else Event.ROUNDS_SPENT
            self.episode.log(state.hop_number, event, f"documents={len(result.doc_ids)}")
            by_id = {parent.doc_id: parent for parent in unread}
            chosen = [by_id[name] for name in result.doc_ids]

    async def _read(self, state: HopState, view: HopView, chosen: Sequence[Parent]) -> None:
        windows = [(parent, c) for parent in chosen for c in windows_to_read(parent, self.settings)]
        if not windows:
            return
        notes = await run_limited(
            [partial(self._read_one, state, view, *pair) for pair in windows],
            self.settings.max_parallel_doc_reads,
        )
        state.reads += notes
        state.read_ids.update(note.window_id for note in notes)
        self.episode.counts.windows_read += len(windows)
        self.episode.counts.parents_read += len({parent.doc_id for parent, _ in windows})
        for parent in chosen:
            state.read_documents[parent.doc_id] = parent.document

    async def _read_one(
        self, state: HopState, view: HopView, parent: Parent, candidate: RankedWindow
    ) -> ReadNote:
        """One read; an unusable answer counts as a negative read."""
        window = window_view(parent, candidate)
        gold = self.judge.is_gold(state.hop_number, parent.document.aliases)
        state.gold_read |= gold
        holds = (
            gold and self._is_asked_rightly(state) and self.judge.holds_answer(state.hop_number, window.text)
        )
        least = self.settings.reader_min_answer_confidence
        try:
            record, result = await self.caller.ask(
                Stage.READ,
                ReadContext(view, window),
                ANCHOR,
                lambda values, _: parse_read(values, min_confidence=least),
            )
        except StageError as error:
            self.episode.log(state.hop_number, Event.STAGE_ERROR, f"{Stage.READ}: {error.kind}")
            return _note(window, UNUSABLE)
        correct = result.positive and self.judge.correct(state.hop_number, result.answer)
        record.facts = ReadFacts(gold, holds, result.positive, correct)
        return _note(window, result)

    def _is_asked_rightly(self, state: HopState) -> bool:
        """Whether the answers filled into the hop's question are correct."""
        answers = self.episode.answers
        needed = self.episode.chain.hop(state.hop_number).dependencies
        return all(self.judge.correct(number, answers.get(number)) for number in needed)

    async def _resolve(self, state: HopState, view: HopView, unread: Sequence[Parent]) -> ResolveResult:
        positives = state.positive_reads
        unread = unread[:MAX_UNREAD_CARDS]
        context = ResolveContext(
            view=view,
            searches=tuple(state.searches[-self.settings.max_history_entries :]),
            reads=_resolver_reads(state),
            unread=make_cards(unread, self.settings.chooser_excerpt_chars),
            limit=self.settings.choose_top_k,
            constrained=self.settings.constrained_resolver,
        )
        offered = {parent.doc_id: parent.doc_id for parent in unread}
        was_read = {read.window_id: read.parent_id for read in state.reads}
        partly_read = {window: doc for window, doc in was_read.items() if doc in offered}
        read_documents = was_read | {doc: doc for doc in was_read.values()}
        record, result = await self.caller.ask(
            Stage.RESOLVE,
            context,
            ANCHOR,
            lambda values, prompt: parse_resolution(
                values,
                resolve_unread=id_resolver(prompt, offered | partly_read),
                resolve_read=id_resolver(prompt, read_documents),
                limit=self.settings.choose_top_k,
                has_reads=bool(state.reads),
                has_positive=bool(positives),
            ),
        )
        if result.error is ErrorKind.RESOLVER_WIPE:
            self.episode.log(state.hop_number, Event.WITHDRAW)
        correct = result.answered and self.judge.correct(state.hop_number, result.answer)
        answerable = any(self.judge.correct(state.hop_number, read.answer) for read in positives)
        record.facts = ResolveFacts(
            result.answered, correct, answerable, result.next_step, result.unknown_ids, result.error
        )
        return result

    def _remember(self, state: HopState, result: ResolveResult) -> None:
        """Take the answer, and keep the documents that support it for later hops."""
        state.answer, state.justification = result.answer, result.justification
        positives = state.positive_reads
        words = result.answer.casefold().split()
        agreeing = [read.parent_id for read in positives if read.answer.casefold().split() == words]
        supporting = result.supporting or agreeing or [read.parent_id for read in positives]
        for doc_id in supporting:
            self.episode.memory[doc_id] = state.read_documents[doc_id]
        self.episode.log(state.hop_number, Event.ANSWER, f"documents={len(set(supporting))}")


def _note(window: WindowView, read: ReadResult) -> ReadNote:
    return ReadNote(window.window_id, window.parent_id, window.title, *astuple(read))


def _resolver_reads(state: HopState) -> tuple[ReadNote, ...]:
    """The last positive reads and the last reads, each once, oldest first."""
    positive = [i for i, read in enumerate(state.reads) if read.positive][-MAX_RESOLVE_READS:]
    last = range(max(0, len(state.reads) - MAX_RESOLVE_READS), len(state.reads))
    return tuple(state.reads[i] for i in sorted({*positive, *last}))
