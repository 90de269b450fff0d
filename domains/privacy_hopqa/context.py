"""Whether a model's tokenizer and the context fit the prompts; the domain's hooks ask before anything starts.

How long the prompts of a run become is not known before it. What the first question of a chain takes is: the
agent's own functions make its calls here, with as many hits as the settings allow its plan, a full window, no
history and no memory, and a scripted answer beside each. Later questions take more.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from domains.privacy_hopqa.agent.interfaces import (
    ChooseContext,
    Context,
    Document,
    Hit,
    HopView,
    PlanContext,
    ReadContext,
    ReadNote,
    Rendered,
    ResolveContext,
    Stage,
)
from domains.privacy_hopqa.agent.pool import RankedHit, build_pool, make_cards, window_view
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.services import KEY
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.teacher.answers import ANSWERS
from domains.privacy_hopqa.teacher.script import SKELETONS
from pipelinerl.base.hub import model_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PRESET = f"+preset={KEY}_pretrained"
_LOWEST = {"max_candidate_cards": 6, "chooser_excerpt_chars": 80, "reader_window_chars": 500}
"""What a stage can still be played with, by the setting that shortens its prompt."""
_PIECE = re.compile(r"_?[^\W\d_]+|\d{1,3}|[^\w\s]+")
_QUESTION = "What share of the stores of Harlow Foods passed the audit of their cold chain last year?"
_LATER = "Which insurance broker serves firms in the region where (1) of the stores passed?"
_QUERY = "share stores passed audit cold chain last year"
_ANSWER = "15 percent"
_PROSE = (
    "The regional office writes that 15 percent of the stores passed the audit of their cold chain. Firms in "
    "the area rely on the same broker for their insurance, and the archive keeps every report of the year. "
)


@dataclass(frozen=True, slots=True)
class Call:
    """A stage's call for the first question: its prompt and its answer; `lower` has what makes it shorter."""

    stage: Stage
    what: str
    prompt: str
    answer: str
    lower: Sequence[str]


def tokenizer_of(model: str | None) -> "Tokenizer | None":
    """That of a model; None where it is not here or cannot be read (another format, a damaged file)."""
    folder = model_folder(model) if model else None
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer  # takes a tenth of a second

    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # the class that it raises for any damage, which other checks and the engine name
        return None


def prompt_problems(
    settings: PrivacyHopQASettings, key: str, model: str | None, room: Mapping[str, int]
) -> Iterator[str]:
    """Why the model that `key` names cannot play the prompts, one line each with the remedy.

    `room` are the tokens that a prompt and its answer may take together, by the setting that says so.
    """
    tokenizer = tokenizer_of(model)
    if settings.prompt_set == "compact" and (split := _split_codeword(tokenizer)) is not None:
        yield (
            f"{key}={model}: does not know the codewords of {KEY}.prompt_set=compact, which only models "
            f"made here were trained on ({split[0]!r} is one token of theirs, {split[1]} of this one's); "
            f"play complete prompts ({KEY}.prompt_set=full) with {PRESET}, after `python -m "
            f"pipelinerl.bootstrap +domain={KEY} {PRESET} bootstrap.start={model}` where the model is small: "
            "without scripted play to imitate it gets no rewards to learn from"
        )
        return
    count, whose = counter(tokenizer), f"the tokenizer of {key}={model}" if tokenizer else "any tokenizer"
    calls = first_calls(settings)
    answers = {call.stage: count(call.answer) + 1 for call in calls}  # with its end
    needed, longest = max(
        ((count(call.prompt) + answers[call.stage], call) for call in calls), key=lambda pair: pair[0]
    )
    short = [name for name, tokens in room.items() if tokens < needed]
    for name in short:
        # Where tokens are counted at their fewest, nothing is known to suffice.
        lower = [one for one in longest.lower if tokenizer and _suffices(settings, one, count, room[name])]
        yield (
            f"{name} leaves {room[name]:,} tokens for a prompt and its answer: too few for "
            f"{KEY}.prompt_set={settings.prompt_set}, where {longest.what} takes {needed:,} or more with "
            f"{whose}; {_remedy(settings, 'raise it', lower)}"
        )
    cut = [stage for stage, least in answers.items() if settings.stage_max_tokens(stage) < least]
    if cut and not short:  # the sizes that are named for a short context mend both
        given = ", ".join(f"{KEY}.{stage}_max_tokens={settings.stage_max_tokens(stage)}" for stage in cut)
        least = ", ".join(str(answers[stage]) for stage in cut)
        yield (
            f"{given}: too few for an answer as {KEY}.prompt_set={settings.prompt_set} asks for it; a terse "
            f"one takes {least} tokens with {whose}; {_remedy(settings, f'set {least} or more')}"
        )


def _remedy(settings: PrivacyHopQASettings, mend: str, lower: Sequence[str] = ()) -> str:
    """True also where the preset is in use and a key of it was given anew."""
    said = f"{mend}, or lower {' or '.join(f'{KEY}.{name}' for name in lower)}" if lower else mend
    return f"{said}; {PRESET} has the sizes for complete prompts" if settings.prompt_set == "full" else said


def _suffices(settings: PrivacyHopQASettings, name: str, count: Callable[[str], int], room: int) -> bool:
    """Whether every call fits where this setting alone is as low as is of use."""
    lowest = _LOWEST[name]
    if name == "reader_window_chars":  # windows that are no longer than what they share are refused
        lowest = max(lowest, settings.reader_window_overlap_chars + 1)
    lowered = settings.model_copy(update={name: min(lowest, getattr(settings, name))})
    return all(count(call.prompt) + count(call.answer) < room for call in first_calls(lowered))


def _split_codeword(tokenizer: "Tokenizer | None") -> tuple[str, int] | None:
    """A piece of the compact answers that is more than one token, and how many.

    The codewords mean something only to who was trained on them. The recipe gives such a model a tokenizer
    with a token for each piece of the answers, and training keeps it, wherever the model is saved; no
    general-purpose tokenizer has these pieces. Without a tokenizer nothing is known.
    """
    if tokenizer is None:
        return None
    count = counter(tokenizer)
    return next(((piece, count(piece)) for piece in SKELETONS if count(piece) > 1), None)


def counter(tokenizer: "Tokenizer | None") -> Callable[[str], int]:
    """Tokens of a text; without a tokenizer at least: words, groups of digits and runs of marks."""
    if tokenizer is None:
        return lambda text: len(_PIECE.findall(text))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def first_calls(settings: PrivacyHopQASettings) -> list[Call]:
    """The calls for the first of two questions, with as many hits as the settings allow a plan."""
    view = HopView(1, 2, 1, _QUESTION, f"(1) {_QUESTION}\n(2) {_LATER}", (), "Harlow Foods", "")
    top = settings.retrieval_top_k if settings.no_web else min(settings.retrieval_top_k, settings.web_top_k)
    given = (settings.retrieval_source_chars, settings.retrieval_answer_chars)  # 0: nothing is cut off
    window = min([settings.reader_window_chars, *(chars for chars in given if chars)])
    hits = _hits(settings.max_parallel_retrieval_actions * top, window)
    parents = build_pool((), hits, set(), _QUESTION, settings).parents
    cards = make_cards(parents, settings.chooser_excerpt_chars)
    windows = [window_view(parent, parent.candidates[0]) for parent in parents[: settings.choose_top_k]]
    reads = tuple(
        ReadNote(one.window_id, one.parent_id, one.title, True, _ANSWER, "", 0.9, "") for one in windows
    )
    unread = make_cards(parents[settings.choose_top_k :], settings.chooser_excerpt_chars)
    limit = settings.choose_top_k
    plan = _plan(view, settings)
    read = ReadContext(view, windows[0])
    resolve = ResolveContext(view, (), reads, unread, limit, settings.constrained_resolver)
    answers, prompts = ANSWERS[settings.prompt_set], PROMPT_SETS[settings.prompt_set]

    def call(stage: Stage, what: str, context: Context, answer: str, *lower: str) -> Call:
        return Call(stage, what, prompts(context).text, answer, lower)

    of_cards = ("max_candidate_cards", "chooser_excerpt_chars")
    seen = f"reading {len(windows[0].text):,} characters"
    calls = [
        call(Stage.PLAN, "a plan", plan, answers.plan(plan, "web", _QUERY)),
        call(Stage.READ, seen, read, answers.read(read, _ANSWER), "reader_window_chars"),
        call(Stage.RESOLVE, "resolving a question", resolve, answers.resolve(reads[0]), *of_cards),
    ]
    if len(cards) > limit:  # fewer are all read without being asked for
        what, ids = f"a choice among {len(cards)} documents", [card.doc_id for card in cards]
        context = ChooseContext(view, cards, (), limit)
        calls.append(call(Stage.CHOOSE, what, context, answers.choice(ids, 0), *of_cards))
    return calls


def first_plan(chain: Chain, settings: PrivacyHopQASettings) -> Rendered:
    """The prompt that a rollout of this chain begins with."""
    hop, about = chain.hop(1), (chain.company, chain.company_description)
    view = HopView(hop.number, len(chain.hops), 1, hop.filled({}), chain.questions, (), *about)
    return PROMPT_SETS[settings.prompt_set](_plan(view, settings))


def _plan(view: HopView, settings: PrivacyHopQASettings) -> PlanContext:
    """Before anything was searched or read."""
    return PlanContext(
        *(view, (), (), (), settings.max_parallel_retrieval_actions),
        no_web=settings.no_web,
        privacy_note=settings.planner_privacy_prompt,
    )


def _hits(count: int, chars: int) -> list[RankedHit]:
    """Pages of one window each."""
    text = "".join(islice(cycle(_PROSE), chars))
    found = []
    for index in range(count):
        number = 23881977 + 1733 * index
        page = Document(
            f"web/{number}", "web", "", f"https://public.example/pages/{number}", text, frozenset()
        )
        found.append(RankedHit(Hit(page, 33.0 - index / 8), index + 1, _QUERY))
    return found
