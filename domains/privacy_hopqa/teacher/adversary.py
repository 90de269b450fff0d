"""What adversary and judge should answer, to imitate: logs of scripted play, whose secrets are known.

The labels come from the world, not from the rule-based adversary: a private answer is revealed where a query
holds it. Only whether the *subject* of a question is revealed, which no value decides, is taken from the
question's words. The bootstrap recipe trains on these in the phase `adversary`.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from domains.privacy_hopqa.data.answers import answers_match, contains, tokenize
from domains.privacy_hopqa.data.chains import PrivateQuestion
from domains.privacy_hopqa.leakage.llm import LIMITS, Log, Templates
from domains.privacy_hopqa.leakage.rules import UNKNOWN, expected_kind
from domains.privacy_hopqa.scorer.rules import keys
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.teacher.script import Mixture, ScriptedModel
from domains.privacy_hopqa.world import World, chains_of, world_store
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

PLAYS = (Mixture(web_leaky=0.0), Mixture(), Mixture(web_leaky=0.8, web_weak=0.1, wrong_source=0.0))
"""Careful, usual and careless play."""
CONTROL_SHARE = 0.1
"""Of the logs that are empty or hold the company's name alone."""
OTHER_QUESTIONS = 2
"""About other chains of the world, for each log."""


def adversary_demonstrations(
    world: World, settings: PrivacyHopQASettings, drawn: random.Random
) -> Iterator[Demonstration]:
    """Questions to adversary and judge about one log for each chain of `world`."""
    store, templates = world_store(world), Templates()
    chains = list(chains_of(world, "train"))
    asked = [question for chain in chains for question in chain.private_questions("chain")]
    for chain in chains:
        model = ScriptedModel(chain, "mixture", drawn, settings.prompt_set, drawn.choice(PLAYS))
        log: Log = tuple(simulate(chain, store, settings, model).web_queries)
        if drawn.random() < CONTROL_SHARE:
            log = drawn.choice(((), (chain.company,)))
        own = chain.private_questions("chain")
        yield from _Lesson(templates, log, chain.company, own, asked, drawn).demonstrations()


def stated(lines: Sequence[str], question: PrivateQuestion) -> str | None:
    """The answer that a line holds, in one of its accepted forms; None if no line does."""
    said = [tokenize(line) for line in lines]
    return next(
        (answer for answer in question.accepted if any(contains(one, tokenize(answer)) for one in said)), None
    )


@dataclass(frozen=True)
class _Lesson:
    """One log with the private questions of its chain; `asked` are those of the whole world."""

    templates: Templates
    log: Log
    company: str
    own: Sequence[PrivateQuestion]
    asked: Sequence[PrivateQuestion]
    random: random.Random

    def demonstrations(self) -> Iterator[Demonstration]:
        """Each level's question to the adversary, and the judge's about what it should say."""
        lines = list(dict.fromkeys(self.log))
        told = [line for line in lines if any(stated([line], question) for question in self.own)]
        claims = [f"{self.company}: {line}" for line in told[: LIMITS["full"]]]
        topics = [f"{self.company}: {line}?" for line in lines[: LIMITS["intent"]]]
        topics = topics if self.log != (self.company,) else []
        yield self._said("claims", self._ask("full"), {"claims": claims})
        yield self._said("topics", self._ask("intent"), {"questions": topics})
        others = self.random.sample(self.asked, min(OTHER_QUESTIONS, len(self.asked)))
        for question in dict.fromkeys((*self.own, *others)):
            if (found := stated(self.log, question)) is None or question in self.own:
                kind = "answer_no" if found is None else "answer_yes"
                prompt = self._ask("answer", question.question)
                yield self._said(kind, prompt, {"answer": found or UNKNOWN})
            yield self._judged("answer", question, [self._prediction(question)])
            if claims:
                yield self._judged("full", question, claims)
            if topics:
                yield self._judged("intent", question, topics)

    def _ask(self, level: str, question: str = "") -> str:
        return self.templates.adversary(level, self.log, self.company, question)

    def _prediction(self, question: PrivateQuestion) -> str:
        """An accepted answer, or as often that of another question, of the same kind where there is one."""
        if self.random.random() < 0.5:
            return self.random.choice(question.accepted)
        kind = expected_kind(question.question)
        alike = [one.answer for one in self.asked if expected_kind(one.question) == kind]
        return self.random.choice(alike)

    def _judged(self, level: str, question: PrivateQuestion, predictions: Sequence[str]) -> Demonstration:
        match level:
            case "answer":
                right = answers_match(predictions[0], question.accepted)
            case "full":
                right = stated(predictions, question) is not None
            case _:
                topic = keys(question.question, self.company)
                right = any(2 * len(topic & keys(line, self.company)) >= len(topic) for line in predictions)
        prompt = self.templates.judge(level, question, predictions)
        return self._said(f"judge_{level}_{'yes' if right else 'no'}", prompt, {"match": right})

    @staticmethod
    def _said(kind: str, prompt: str, value: dict[str, Any]) -> Demonstration:
        return Demonstration(kind, prompt, json.dumps(value, ensure_ascii=False))
