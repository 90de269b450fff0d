"""A model and a context that cannot hold the prompts are refused, by launcher and recipe, and no others."""

import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf

from domains.privacy_hopqa.agent.interfaces import Completion, Stage, StageRequest
from domains.privacy_hopqa.context import counter, first_calls, prompt_problems, tokenizer_of
from domains.privacy_hopqa.domain import PrivacyHopQADomain
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of
from domains.privacy_hopqa.teacher.demonstrations import training_world
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.teacher.script import SKELETONS, ScriptedModel
from domains.privacy_hopqa.world import chains_of, world_store
from pipelinerl.config import compose as compositions
from pipelinerl.config.compose import compose
from pipelinerl.extras.bootstrap import __main__ as bootstrap
from tests.support.one_line import check_one_line
from tests.support.tiny_model import hub_snapshot

DOMAIN = PrivacyHopQADomain()
DOMAINS = Path(__file__).resolve().parents[3] / "domains"
MADE_HERE, FOREIGN = str(DOMAINS / "privacy_hopqa/checkpoint"), str(DOMAINS / "guessing/checkpoint")
FULL = "privacy_hopqa.prompt_set=full"
LARGE = ("engine.max_model_len=8192", "privacy_hopqa.generation_context_limit_tokens=8192")
PRESET = "+preset=privacy_hopqa_pretrained"
SIZES = f"{PRESET} has the sizes for complete prompts"
ANSWERS = ("hop_plan", "doc_choose", "doc_read", "hop_resolve")


def tree(*given: str) -> DictConfig:
    hardware = [] if any(one.startswith("hardware=") for one in given) else ["hardware=cpu"]
    return compose(["+domain=privacy_hopqa", *hardware, *given]).tree


def problems(cfg: DictConfig) -> list[str]:
    """What is said about prompts and the model."""
    return [one for one in DOMAIN.validate(cfg) if "prompt_set" in one]


@pytest.mark.parametrize(("prompt_set", "told"), [("compact", True), ("full", False)])
def test_only_compact_prompts_need_the_tokenizer_of_a_model_made_here(
    tmp_path, prompt_set, told, monkeypatch
):
    """What cannot be read says nothing: a hub's name, a tokenizer of another format or a damaged one."""
    settings = PrivacyHopQASettings(prompt_set=prompt_set, max_candidate_cards=6)
    found = lambda model: [*prompt_problems(settings, "model_path", str(model), {"context": 16_000})]  # noqa: E731
    assert [found(model) for model in ("owner/model", tmp_path, MADE_HERE)] == [[], [], []]
    (tmp_path / "tokenizer.json").write_text("{}")
    assert found(tmp_path) == []
    assert [FOREIGN in one and "_pretrained" in one for one in found(FOREIGN)] == [True] * told
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "owner/model")
    shutil.copytree(FOREIGN, snapshot, dirs_exist_ok=True)
    assert [one.startswith("model_path=owner/model: does not know") for one in found("owner/model")] == [
        True
    ] * told


@pytest.mark.parametrize("model", [MADE_HERE, FOREIGN, "owner/model"])
def test_complete_prompts_are_refused_in_the_context_of_the_compact_ones(model: str) -> None:
    (said,) = problems(tree(FULL, f"model_path={model}"))
    check_one_line(
        said, "privacy_hopqa.generation_context_limit_tokens=1024 leaves 1,008 tokens for a prompt"
    )
    assert said.endswith(f"; raise it; {SIZES}")  # no smaller setting would do by itself


@pytest.mark.parametrize(
    "given",
    [
        ["hardware=cpu"],
        ["hardware=gpu", "model_path=owner/model"],
        ["hardware=gpu", "model_path=owner/model", "+preset=privacy_hopqa_situational"],
        ["hardware=gpu", "+preset=privacy_hopqa_from_scratch"],
        ["hardware=gpu", "+preset=privacy_hopqa_pretrained"],
        ["hardware=cpu", "+preset=privacy_hopqa_pretrained"],
        ["hardware=cpu", FULL, *LARGE, *(f"privacy_hopqa.{stage}_max_tokens=256" for stage in ANSWERS)],
    ],
    ids=" ".join,
)
def test_sizes_that_hold_the_prompts_are_taken(given: list[str]) -> None:
    cfg = tree(*given)
    assert problems(cfg) == []
    of_recipe = ["bootstrap.shape.max_length=8192"]
    of_recipe += ["bootstrap.start=owner/model"] * (cfg.privacy_hopqa.prompt_set == "full")
    assert DOMAIN.validate_recipe(tree(*given, *of_recipe)) == []


def test_answers_that_would_be_cut_are_refused_where_the_context_is_large_enough() -> None:
    (said,) = problems(tree(FULL, *LARGE, "privacy_hopqa.doc_read_max_tokens=256"))
    check_one_line(
        said, "privacy_hopqa.hop_plan_max_tokens=48, privacy_hopqa.hop_resolve_max_tokens=48: too few"
    )
    assert "doc_read" not in said


def test_what_is_too_large_for_the_context_is_named() -> None:
    (window,) = problems(tree("privacy_hopqa.reader_window_chars=40000"))
    assert "where reading 40,000 characters takes" in window and "+preset" not in window
    assert window.endswith("raise it, or lower privacy_hopqa.reader_window_chars")


def test_only_what_suffices_is_said_to_be_lowered() -> None:
    """Many cards are too many with the shortest excerpts; fewer with long ones fit either way."""
    cards, excerpts = "privacy_hopqa.max_candidate_cards", "privacy_hopqa.chooser_excerpt_chars"
    window = ("privacy_hopqa.reader_window_chars=3000", "privacy_hopqa.reader_window_overlap_chars=0")
    given = (FULL, *LARGE, *window, "privacy_hopqa.retrieval_top_k=50")
    (many,) = problems(tree(*given, f"{cards}=80"))
    assert many.endswith(f"; raise it, or lower {cards}; {SIZES}")
    (long,) = problems(tree(*given, f"{cards}=30", f"{excerpts}=1500"))
    assert long.endswith(f"; raise it, or lower {cards} or {excerpts}; {SIZES}")
    (unknown,) = problems(tree(*given, f"{cards}=80", "model_path=owner/model"))
    assert unknown.endswith(f"; raise it; {SIZES}")


def test_a_window_is_not_said_to_be_lowered_to_less_than_windows_share() -> None:
    given = (FULL, *LARGE, "privacy_hopqa.reader_window_chars=60000")
    (said,) = problems(tree(*given, "privacy_hopqa.reader_window_overlap_chars=1000"))
    assert said.endswith(f"; raise it, or lower privacy_hopqa.reader_window_chars; {SIZES}")
    (said,) = problems(tree(*given, "privacy_hopqa.reader_window_overlap_chars=59000"))
    assert said.endswith(f"; raise it; {SIZES}")


@pytest.mark.parametrize(
    "given",
    [
        ["privacy_hopqa.prompt_set=compact", f"model_path={FOREIGN}"],
        ["hardware=gpu", "privacy_hopqa.prompt_set=compact", f"model_path={FOREIGN}"],
        ["privacy_hopqa.hop_resolve_max_tokens=16"],
        ["bootstrap.shape.max_length=1024"],
        [f"model_path={MADE_HERE}"],
    ],
    ids=" ".join,
)
def test_no_remedy_is_what_was_already_done(given: list[str]) -> None:
    """The preset is in use, with a key of it given anew."""
    cfg = tree(PRESET, f"bootstrap.start={FOREIGN}", *given)
    said = [*problems(cfg), *DOMAIN.validate_recipe(cfg)]
    assert said and not any(f"use {PRESET}" in one for one in said)
    for one in said:
        assert "prompt_set=full) with" in one or (SIZES in one and ("raise it" in one or "or more" in one))


def test_a_codeword_is_told_from_the_sentence_around_it() -> None:
    (said,) = problems(tree(f"model_path={FOREIGN}"))
    piece = next(one for one in SKELETONS if counter(tokenizer_of(FOREIGN))(one) > 1)
    assert f"({piece!r} is one token of theirs, " in said and said.count("'") == 3
    assert (
        f"`python -m pipelinerl.bootstrap +domain=privacy_hopqa {PRESET} bootstrap.start={FOREIGN}`" in said
    )


@pytest.mark.parametrize("bound", ["retrieval_source_chars", "retrieval_answer_chars"])
def test_a_window_is_no_longer_than_the_hits_that_are_asked_for(bound: str) -> None:
    """The window's own size would not fit; no hit ever fills it."""
    given = (FULL, *LARGE, *(f"privacy_hopqa.{stage}_max_tokens=256" for stage in ANSWERS))
    large = (*given, "privacy_hopqa.reader_window_chars=60000")
    (said,) = problems(tree(*large))
    assert "reading 60,000 characters" in said
    assert problems(tree(*large, f"privacy_hopqa.{bound}=3000")) == []


class Measured(ScriptedModel):
    """The scripted model, with the tokens of each call and of its answer."""

    async def complete(self, request: StageRequest) -> Completion:
        answer = await super().complete(request)
        self.lengths[request.stage].append(self.count(request.prompt.text) + self.count(answer.text))
        return answer


@pytest.mark.parametrize("prompt_set", ["compact", "full"])
def test_what_a_first_question_takes_is_what_play_takes(prompt_set: str) -> None:
    """Neither more than what is played, or good sizes would be refused, nor much less than its mean."""
    given = [] if prompt_set == "compact" else [FULL, "privacy_hopqa.generation_context_limit_tokens=99999"]
    settings, world = settings_of(tree(*given)), training_world(3)
    store, played = world_store(world), defaultdict(list)
    for index, chain in enumerate(chains_of(world, "train")[:8]):
        model = Measured(chain, "clean", random.Random(index), prompt_set)
        model.lengths, model.count = played, counter(tokenizer_of(MADE_HERE))
        simulate(chain, store, settings, model)
    for call in first_calls(settings):
        needed = model.count(call.prompt) + model.count(call.answer)
        assert 0.45 * np.mean(played[call.stage]) < needed <= max(played[call.stage]), call.stage
    assert set(played) == set(Stage)


def test_without_a_tokenizer_no_more_is_counted_than_with_one() -> None:
    for call in first_calls(settings_of(tree(FULL))):
        for text in (call.prompt, call.answer):
            assert counter(None)(text) <= min(
                counter(tokenizer_of(one))(text) for one in (MADE_HERE, FOREIGN)
            )


def test_few_hits_are_read_without_a_choice() -> None:
    few = settings_of(
        tree("privacy_hopqa.retrieval_top_k=1", "privacy_hopqa.max_parallel_retrieval_actions=1")
    )
    assert {call.stage for call in first_calls(few)} == {Stage.PLAN, Stage.READ, Stage.RESOLVE}


@pytest.mark.parametrize("preset", [[], ["+preset=privacy_hopqa_from_scratch"]], ids=["profile", "preset"])
def test_a_recipe_does_not_begin_with_a_model_that_its_run_refuses(
    preset: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the launcher's own sentence, before anything is written; one that was made here goes on."""
    begun = []
    monkeypatch.setattr(bootstrap, "_run", lambda *given: begun.append(given) or 0)
    out = tmp_path / "out"
    given = ["+domain=privacy_hopqa", "hardware=cpu", *preset, f"bootstrap.out={out}"]
    assert bootstrap.main([*given, f"bootstrap.start={FOREIGN}"]) == 2
    said = capsys.readouterr().err
    check_one_line(
        said, f"bootstrap: bootstrap.start={FOREIGN}: does not know the codewords of privacy_hopqa"
    )
    (of_run,) = problems(tree(f"model_path={FOREIGN}"))
    assert said.strip() == "bootstrap: " + of_run.replace("model_path=", "bootstrap.start=", 1)
    assert not begun and not out.exists()
    assert bootstrap.main([*given, f"bootstrap.start={MADE_HERE}"]) == 0 and len(begun) == 1


def test_a_recipe_with_complete_prompts_needs_their_context_and_length() -> None:
    for start in (f"bootstrap.start={FOREIGN}", "bootstrap.start=null"):
        *first, limit, length = DOMAIN.validate_recipe(tree(FULL, start))
        assert len(first) == start.endswith("null")
        assert limit.startswith("privacy_hopqa.generation_context_limit_tokens=1024 leaves 1,008 tokens")
        assert length.startswith("bootstrap.shape.max_length=1024 leaves 1,024 tokens")
        assert all(SIZES in one for one in (limit, length))


@pytest.mark.parametrize("hardware", ["hardware=cpu", "hardware=gpu"])
def test_a_recipe_with_complete_prompts_needs_a_model_to_begin_with(
    hardware: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is made without a word; the compact prompts are for new models."""
    begun = []
    monkeypatch.setattr(bootstrap, "_run", lambda *given: begun.append(given) or 0)
    monkeypatch.setattr(compositions, "visible_devices", lambda: ["0"])
    given = ["+domain=privacy_hopqa", hardware, f"bootstrap.out={tmp_path / 'out'}"]
    assert bootstrap.main([*given, PRESET]) == 2
    check_one_line(capsys.readouterr().err, "set bootstrap.start=MODEL (python -m pipelinerl.pretrained")
    assert not begun
    assert bootstrap.main([*given, PRESET, f"bootstrap.start={tmp_path}"]) == 0
    assert bootstrap.main([*given, "+preset=privacy_hopqa_from_scratch"]) == 0 and len(begun) == 2


def test_a_recipe_for_gpus_is_not_begun_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []
    monkeypatch.setattr(bootstrap, "_run", lambda *given: begun.append(given) or 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = ["+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch", f"bootstrap.out={tmp_path}"]
    assert bootstrap.main([*given, "hardware=gpu"]) == 2 and not begun
    check_one_line(capsys.readouterr().err, "bootstrap: hardware=gpu: no GPU is visible; check CUDA")
    assert bootstrap.main([*given, "hardware=gpu", "validate=true"]) == 0
    assert bootstrap.main([*given, "hardware=gpu", "--cfg", "job"]) == 0 and not begun
    assert bootstrap.main([*given, "hardware=cpu"]) == 0 and len(begun) == 1


def test_an_adversary_has_prompts_of_its_own() -> None:
    cfg = tree("+preset=privacy_hopqa_adversary", f"bootstrap.start={FOREIGN}")
    assert DOMAIN.validate_recipe(cfg) == []
    cfg.bootstrap.phases.append(OmegaConf.create({"name": "clean", "tokens": 1}))
    assert len(DOMAIN.validate_recipe(cfg)) == 1


def test_a_block_that_cannot_be_read_is_named_by_the_recipe() -> None:
    (said,) = DOMAIN.validate_recipe(tree("privacy_hopqa.choose_top_k=0"))
    assert "choose_top_k" in said
