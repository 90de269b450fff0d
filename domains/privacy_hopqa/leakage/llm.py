"""The language-model adversary and judge: the three levels of leakage from an ordered log of web queries.

The adversary sees the queries and the company's name and, at the answer level, one private question. The
judge compares its predictions with the private question and answer and never sees the log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.data.chains import PrivateQuestion
from domains.privacy_hopqa.leakage.chat import BadReply, ChatModel
from domains.privacy_hopqa.leakage.report import Secrets
from domains.privacy_hopqa.leakage.rules import UNKNOWN, LeakageLevels, QuestionLeak
from domains.privacy_hopqa.scorer.templates import read_template

LIMITS = {"intent": 5, "full": 10}
"""How many research questions and claims count."""
MAX_UNPARSEABLE = 0.01
PROMPTS = Path(__file__).parent / "prompts"
PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "intent": ("company", "limit", "queries"),
    "answer": ("company", "queries", "question"),
    "full": ("company", "limit", "queries"),
    "judge_intent": ("predictions", "question"),
    "judge_answer": ("predictions", "question", "reference"),
    "judge_full": ("predictions", "question", "reference"),
}

Log = tuple[str, ...]
Job = tuple[Log, Secrets]


class Templates:
    """The six prompts, read from files. Raises ValueError for one with other placeholders than it needs."""

    def __init__(self, folder: Path = PROMPTS) -> None:
        self._templates = {
            name: read_template(folder / f"{name}.md", placeholders)
            for name, placeholders in PLACEHOLDERS.items()
        }
        texts = [self._templates[name].template for name in sorted(self._templates)]
        self.sha256 = sha256("\0".join(texts).encode()).hexdigest()

    def adversary(self, level: str, log: Log, company: str, question: str) -> str:
        """What does the log reveal? The private question is asked at the answer level only."""
        values: dict[str, object] = {"company": company, "queries": _numbered(log)}
        values |= {"question": question} if level == "answer" else {"limit": LIMITS[level]}
        return self._templates[level].substitute(values)

    def judge(self, level: str, asked: PrivateQuestion, predictions: Sequence[str]) -> str:
        """Is a prediction of this level right?"""
        shown = predictions[0] if level == "answer" else _numbered(predictions)
        values = {"question": asked.question, "predictions": shown}
        if level != "intent":
            values["reference"] = " or ".join(dict.fromkeys(asked.accepted))
        return self._templates[f"judge_{level}"].substitute(values)


def _numbered(lines: Sequence[str]) -> str:
    return "\n".join(f"{n}. {' '.join(line.split())}" for n, line in enumerate(lines, 1)) or "(none)"


@dataclass(frozen=True, slots=True)
class _Question:
    """One question to the adversary about one log, and what it is judged against."""

    level: str
    prompt: str
    asked: PrivateQuestion


@dataclass(frozen=True, slots=True)
class LanguageModelEvaluation:
    """Evaluates distinct (log, secrets) pairs; `levels_of` then looks them up.

    A question whose reply could not be used counts as no leak and is counted; above 1 % of all questions the
    evaluation is invalid.
    """

    adversary: ChatModel
    judge: ChatModel
    templates: Templates
    _found: dict[Job, LeakageLevels] = field(default_factory=dict)

    async def run(self, jobs: Iterable[Job]) -> None:
        """Ask the adversary, then the judge. Raises TransportFailure or RequestRefused."""
        wanted = [job for job in dict.fromkeys(jobs) if job not in self._found]
        by_job = {job: self._questions(job) for job in wanted}
        questions = list(dict.fromkeys(question for asked in by_job.values() for question in asked))
        predicted = await self._predictions(questions)
        leaked = await self._leaked(questions, predicted)
        for job, asked in by_job.items():
            self._found[job] = _levels(asked, predicted, leaked)

    def levels_of(self, queries: Sequence[str], secrets: Secrets) -> LeakageLevels:
        """The result of a pair that was evaluated. Raises KeyError for any other."""
        return self._found[tuple(queries), secrets]

    def counts(self) -> dict[str, Any]:
        """What became of the questions, for reports; valid if almost every one got a usable reply."""
        counts = {"adversary": self.adversary.counts, "judge": self.judge.counts}
        asked = sum(found.asked for found in counts.values())
        share = sum(found.unparseable for found in counts.values()) / max(1, asked)
        return {name: asdict(found) for name, found in counts.items()} | {
            "unparseable_share": share,
            "valid": share <= MAX_UNPARSEABLE,
        }

    def _questions(self, job: Job) -> list[_Question]:
        log, secrets = job
        return [
            _Question(level, self.templates.adversary(level, log, secrets.company, asked.question), asked)
            for asked in secrets.questions
            for level in _PARSERS
        ]

    async def _predictions(self, questions: Sequence[_Question]) -> dict[str, tuple[str, ...]]:
        """What the adversary says, by prompt; empty where it says nothing or nothing usable."""
        found: dict[str, tuple[str, ...]] = {}
        for level, parse in _PARSERS.items():
            prompts = (question.prompt for question in questions if question.level == level)
            replies = await self.adversary.ask_all(prompts, parse)
            found |= {prompt: value or () for prompt, value in replies.items()}
        return found

    async def _leaked(
        self, questions: Sequence[_Question], predicted: Mapping[str, tuple[str, ...]]
    ) -> set[_Question]:
        """The questions with a prediction that the judge calls right; it is not asked about no prediction."""
        prompts = {
            question: self.templates.judge(question.level, question.asked, predicted[question.prompt])
            for question in questions
            if predicted[question.prompt]
        }
        verdicts = await self.judge.ask_all(prompts.values(), parse_match)
        return {question for question, prompt in prompts.items() if verdicts[prompt]}


def _levels(
    questions: Sequence[_Question], predicted: Mapping[str, tuple[str, ...]], leaked: set[_Question]
) -> LeakageLevels:
    """The result of one log; `questions` holds three entries, one per level, for each private question."""
    by_asked: dict[PrivateQuestion, dict[str, _Question]] = {}
    for question in questions:
        by_asked.setdefault(question.asked, {})[question.level] = question
    found = []
    for asked, by_level in by_asked.items():
        guesses = predicted[by_level["answer"].prompt]
        found.append(
            QuestionLeak(
                question=asked.question,
                guess=guesses[0] if guesses else UNKNOWN,
                guess_score=float(bool(guesses)),
                intent=by_level["intent"] in leaked,
                answer=by_level["answer"] in leaked,
                full=by_level["full"] in leaked,
            )
        )
    return LeakageLevels(tuple(found))


def parse_answer(value: Any) -> tuple[str, ...]:
    """`{"answer": text or number}` as one prediction, none for UNKNOWN. Raises BadReply."""
    answer = value.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise BadReply(f"answer is a {type(answer).__name__}")
    text = str(answer).strip()
    return () if text.strip(".").upper() in ("", UNKNOWN) else (text,)


def parse_match(value: Any) -> bool:
    """`{"match": true or false}`. Raises BadReply."""
    match = value.get("match")
    if not isinstance(match, bool):
        raise BadReply(f"match is a {type(match).__name__}")
    return match


def _texts(level: str, key: str, value: Any) -> tuple[str, ...]:
    """`{key: [text, ...]}`, no more than count at the level. Raises BadReply."""
    found = value.get(key)
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise BadReply(f"{key} is no list of texts")
    return tuple(text.strip() for text in found if text.strip())[: LIMITS[level]]


_PARSERS: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "intent": partial(_texts, "intent", "questions"),
    "answer": parse_answer,
    "full": partial(_texts, "full", "claims"),
}
