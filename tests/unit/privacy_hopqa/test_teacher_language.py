"""Scripted play in the complete prompts, and what adversary and judge should say about its queries."""

import random
from dataclasses import dataclass, field
from functools import cache

import pytest

from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.agent.interfaces import ChooseContext, Completion, Stage, StageRequest
from domains.privacy_hopqa.agent.stages import parse_read, read_reply
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.leakage.report import Secrets, rule_based
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of
from domains.privacy_hopqa.teacher.adversary import stated
from domains.privacy_hopqa.teacher.answers import sentence
from domains.privacy_hopqa.teacher.demonstrations import demonstrations, training_world
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.teacher.script import MIXTURES, ScriptedModel
from domains.privacy_hopqa.world import World, chains_of, world_store
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.config.tree import Config
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

PRETRAINED = ["+domain=privacy_hopqa", "hardware=gpu", "+preset=privacy_hopqa_pretrained"]
CHARS_PER_TOKEN = 2.5
"""Fewer than SmolLM2's tokenizer has of these prompts (2.6 and more), so that a bound in characters holds."""


@dataclass
class Heard(ScriptedModel):
    """The scripted model, with every call beside its answer."""

    calls: list[tuple[StageRequest, str]] = field(default_factory=list)

    async def complete(self, request: StageRequest) -> Completion:
        answer = await super().complete(request)
        self.calls.append((request, answer.text))
        return answer


@cache
def settings() -> PrivacyHopQASettings:
    return settings_of(compose(PRETRAINED).tree)


@cache
def configured() -> Config:
    return typed(compose(PRETRAINED).tree)


@cache
def world() -> World:
    return training_world(3)


@cache
def played() -> list[tuple[Chain, Episode, list[tuple[StageRequest, str]]]]:
    """Every chain of the world, with what was played and said."""
    store, found = world_store(world()), []
    for index, chain in enumerate(chains_of(world(), "train")):
        model = Heard(chain, "mixture", random.Random(index), "full", MIXTURES["full"])
        found.append((chain, simulate(chain, store, settings(), model), model.calls))
    return found


@cache
def made(phase: str) -> list[Demonstration]:
    return demonstrations(settings(), 3, phase)


def kinds(phase: str, prefix: str) -> list[Demonstration]:
    return [one for one in made(phase) if one.kind.startswith(prefix)]


def test_every_answer_is_one_that_its_stage_accepts_without_an_error():
    errors, count = [], 0
    for _, episode, calls in played():
        errors += [call.error for call in episode.calls if call.error is not None]
        for request, answer in calls:
            value, path = read_reply(answer, request.stage)
            assert path == "clean"
            if request.stage is Stage.READ:
                read = parse_read(value, min_confidence=settings().reader_min_answer_confidence)
                assert read.positive == value["can_answer"]
                assert not read.positive or read.answer in request.context.window.text
                assert read.justification in request.context.window.text
            count += 1
    assert count > 500 and errors == []


def test_imperfect_play_succeeds_and_leaks_as_often_as_a_start_should():
    right, leaked = [], []
    for chain, episode, _ in played():
        judge = Judge(chain)
        right.append(all(judge.correct(hop.hop_number, hop.answer) for hop in episode.hops))
        secrets = Secrets(chain.company, chain.private_questions("chain"))
        leaked.append(rule_based(episode.web_queries, secrets).headline)
    assert 0.5 <= sum(right) / len(right) <= 0.85  # who imitates it adds mistakes of its own
    assert 0.2 <= sum(leaked) / len(leaked) <= 0.5


def test_prompts_and_answers_fit_the_context_whole():
    limit = settings().generation_context_limit_tokens
    prompts = [one.prompt for one in made("clean")]
    prompts += [request.prompt.text for _, _, calls in played() for request, _ in calls]
    longest = max(map(len, prompts))
    answers = max(map(settings().stage_max_tokens, Stage))
    assert longest / CHARS_PER_TOKEN < limit - answers
    assert configured().bootstrap.shape.max_length == limit


def test_documents_are_chosen_by_their_own_ids():
    for one in kinds("clean", "choose"):
        (name,) = read_reply(one.completion, Stage.CHOOSE)[0]["selected_doc_ids"]
        assert f'{{"doc_id": "{name}"' in one.prompt


def test_no_card_is_drawn_at_random() -> None:
    """A name of many tokens is imitated well only where it can be foreseen: the first one, or the gold's."""
    places = set[str]()
    for chain, _, calls in played():
        for request, answer in calls:
            if isinstance(request.context, ChooseContext):
                (name,) = read_reply(answer, Stage.CHOOSE)[0]["selected_doc_ids"]
                gold = chain.hop(request.context.view.hop_number).gold_values
                first = name == request.context.cards[0].doc_id
                places.add("first" if first else "gold" if name in gold else "other")
    assert places == {"first", "gold"}


def test_a_reading_is_justified_by_the_sentence_that_the_question_is_about():
    text = 'The audit of 2019 found 1.5% waste. In 2020, 1.5% of stores closed.\n3,"office","It was 1.5%"'
    assert sentence(text, "1.5%", "What share of stores closed in 2020?") == "In 2020, 1.5% of stores closed."
    assert (
        sentence(text, "1.5%", "How much waste did the audit find?") == "The audit of 2019 found 1.5% waste."
    )


@pytest.mark.parametrize(("kind", "value"), [("answer_yes", True), ("answer_no", False)])
def test_the_adversary_answers_where_a_query_holds_the_value_and_only_there(kind, value):
    found = kinds("adversary", kind)
    assert len(found) > 20
    for one in found:
        queries = one.prompt.split("<queries>\n")[1].split("\n</queries>")[0]
        answer = one.completion.removeprefix('{"answer": "').removesuffix('"}')
        assert (answer in queries) is value and (answer == "UNKNOWN") is not value


def test_the_judge_learns_both_verdicts_at_every_level():
    for level in ("answer", "full", "intent"):
        assert all(len(kinds("adversary", f"judge_{level}_{said}")) > 10 for said in ("yes", "no"))
    for one in kinds("adversary", "judge_full"):
        claims = one.prompt.split("Claims:\n")[1].split("\n\n")[0]
        reference = one.prompt.split("Private fact. Answer: ")[1].split("\n")[0]
        assert any(part in claims for part in reference.split(" or ")) or one.kind == "judge_full_no"


def test_logs_of_controls_are_part_of_the_lesson():
    empty = [one for one in kinds("adversary", "answer") if "<queries>\n(none)\n" in one.prompt]
    assert empty and {one.kind for one in empty} == {"answer_no"}


def test_a_value_is_found_in_any_of_its_accepted_forms():
    question = next(iter(chains_of(world(), "train"))).private_questions("chain")[0]
    for form in question.accepted:
        assert stated(["something else", f"rule for {form} today"], question) is not None
    assert stated(["something else"], question) is None
