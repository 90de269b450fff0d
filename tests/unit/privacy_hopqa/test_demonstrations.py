"""Scripted play, clean and imperfect, and the files of the bundled model."""

import hashlib
import json
import random
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

import domains.privacy_hopqa
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of
from domains.privacy_hopqa.teacher.demonstrations import demonstrations, training_world
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.teacher.script import CAREFUL, SKELETONS, Mixture, ScriptedModel, search_query
from domains.privacy_hopqa.world import chains_of, world_store
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

CHECKPOINT = Path(domains.privacy_hopqa.__file__).parent / "checkpoint"


@cache
def cpu_settings() -> PrivacyHopQASettings:
    return settings_of(compose(["+domain=privacy_hopqa", "hardware=cpu"]).tree)


@cache
def made(phase: str) -> list[Demonstration]:
    return demonstrations(cpu_settings(), 3, phase)


def of_kind(phase: str, prefix: str) -> list[Demonstration]:
    return [d for d in made(phase) if d.kind.startswith(prefix)]


def play(seed: int, mixture: Mixture) -> list[tuple[bool, list[str], str]]:
    world = training_world(seed)
    store, played = world_store(world), []
    for index, chain in enumerate(chains_of(world, "train")[:30]):
        model = ScriptedModel(chain, "mixture", random.Random(index), "compact", mixture)
        episode, judge = simulate(chain, store, cpu_settings(), model), Judge(chain)
        right = all(judge.correct(hop.hop_number, hop.answer) for hop in episode.hops)
        played.append((right, episode.web_queries, chain.hops[0].answer))
    return played


def test_equal_seeds_give_equal_demonstrations_and_others_differ(monkeypatch):
    monkeypatch.setattr("domains.privacy_hopqa.teacher.demonstrations.CHAINS_PER_WORLD", 12)
    first, same, other = (demonstrations(cpu_settings(), seed, "clean") for seed in (3, 3, 4))
    assert len(first) > 30 and first == same
    assert not set(other) & {d for d in first if "plan" in d.kind}


def test_an_unknown_phase_is_refused():
    allowed = "clean, mixture, adversary"
    with pytest.raises(ValueError, match=f"bootstrap phase 'dirty' is unknown; allowed: {allowed}"):
        demonstrations(cpu_settings(), 3, "dirty")


def test_every_answer_is_the_compact_json_of_its_stage():
    for demonstration in made("clean") + made("mixture"):
        value = json.loads(demonstration.completion)
        stage = demonstration.prompt.split("\n", 1)[0]
        assert isinstance(value, list) == (stage == "plan")


def test_clean_reads_answer_exactly_where_the_window_holds_the_answer():
    yes, no = of_kind("clean", "read_yes"), of_kind("clean", "read_no")
    assert len(yes) > 20 and len(no) > 20
    for demonstration in yes:
        assert json.loads(demonstration.completion)["proposed_answer"].strip() in demonstration.prompt
    assert {d.completion for d in no} == {'{"can_answer":false}'}


def test_clean_web_plans_never_hold_the_private_value():
    world = training_world(3)
    for chain in chains_of(world, "train"):
        answers = chain.gold_answers
        for hop in chain.hops:
            if hop.source == "web":
                safe = search_query(chain, hop, answers, leaky=False)
                private = [answers[n] for n in hop.dependencies if chain.hop(n).source == "local"]
                assert not any(value in safe.split() for value in private)
                assert all(value in search_query(chain, hop, answers, leaky=True) for value in private)


def test_choices_are_not_decided_by_position():
    assert len(of_kind("clean", "choose_other")) > len(of_kind("clean", "choose_first")) > 5
    assert len({d.completion for d in of_kind("clean", "choose_fewer")}) >= 3


def test_the_right_script_succeeds_without_leaking_and_the_mixture_does_neither_always():
    right, mixed = play(3, CAREFUL), play(3, Mixture())
    assert sum(ok for ok, *_ in right) >= 0.75 * len(right)
    assert 0.2 * len(mixed) <= sum(ok for ok, *_ in mixed) <= sum(ok for ok, *_ in right) - 5
    assert not any(answer in query for _, queries, answer in right for query in queries)
    assert any(answer in query for _, queries, answer in mixed for query in queries)


def test_the_bundled_model_is_the_one_its_recipe_names():
    record = json.loads((CHECKPOINT / "recipe.json").read_text())
    weights = (CHECKPOINT / "model.safetensors").read_bytes()
    assert record["sha256"] == hashlib.sha256(weights).hexdigest()
    assert {g["kind"] for g in record["gates"] if g["minimum"]} >= {"read_yes", "read_no", "choose_other"}
    assert all(gate["accuracy"] >= (gate["minimum"] or 0) for gate in record["gates"])
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 10_000_000
    configured = typed(compose(["+domain=privacy_hopqa", "hardware=cpu"]).tree).bootstrap
    assert [phase.model_dump() for phase in configured.phases] == record["recipe"]["phases"]


def test_the_bundled_tokenizer_keeps_the_skeletons_whole():
    tokenizer = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    assert all(len(tokenizer.encode(piece, add_special_tokens=False)) == 1 for piece in SKELETONS)
