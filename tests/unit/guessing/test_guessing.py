"""The guessing game of `+domain=guessing`, played by scripts behind a fake engine."""

import re

import pytest

import domains.guessing
import pipelinerl.domains.guessing
from domains.guessing.demonstrations import GuessingDomain, demonstrations
from domains.guessing.stepwise import generate_guessing_rollout, load_problems, narrow, question, worth
from pipelinerl.domain import resolve_dotted
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.tiny_model import build_tokenizer, save_model

TOKENIZER = build_tokenizer()
PROBLEM = {"id": "p", "dataset": "test", "answer": 60, "highest": 100, "max_guesses": 8}


def halving(prompt: str) -> str:
    low = re.search(r"higher than (\d+)", prompt)
    high = re.search(r"lower than (\d+)", prompt)
    return str(((int(low[1]) if low else 0) + (int(high[1]) if high else 101)) // 2)


async def play(tmp_path, speak, problem=PROBLEM):
    def answer(ids: list[int]) -> list[int]:
        text = speak(TOKENIZER.decode(ids, skip_special_tokens=True).replace(",", ""))
        return [*TOKENIZER.convert_tokens_to_ids(list(text)), TOKENIZER.eos_token_id]

    with FakeEngine(answer) as engine:
        model, few = save_model(tmp_path), {"max_tokens": 8}
        return await rolled_out(generate_guessing_rollout, None, problem, engine, model, parameters=few)


async def test_halving_the_range_wins_and_every_guess_is_a_text_with_a_reward(tmp_path):
    result = await play(tmp_path, halving)
    assert result.metrics.success and result.metrics.guesses == len(result.training_texts) == 6
    spoken = [text.output_text for text in result.training_texts]
    assert spoken == ["50<e>", "75<e>", "62<e>", "56<e>", "59<e>", "60<e>"]
    assert "higher than 59 lower than 62" in result.training_texts[-1].text.replace("<unk>", "")
    ranges = [(1, 100, 50), (51, 100, 75), (51, 74, 62), (51, 61, 56), (57, 61, 59), (60, 61, 60)]
    assert [text.reward for text in result.training_texts] == [worth(*guess) for guess in ranges]


def test_a_guess_is_worth_the_share_it_rules_out_on_average():
    assert worth(7, 7, 7) == 1.0 and worth(1, 2, 1) == 0.75
    assert worth(1, 100, 101) == worth(51, 60, 50) == worth(1, 100, None) == 0.0
    values = [worth(1, 9, guess) for guess in range(1, 10)]
    assert max(values) == values[4] and values[0] == values[8] == pytest.approx(1 - 64 / 81)


@pytest.mark.parametrize(
    ("speech", "no_error", "no_answer"), [("7", True, False), ("no", False, True), ("60 or 61", False, True)]
)
async def test_a_lost_game_earns_nothing(tmp_path, speech, no_error, no_answer):
    metrics = (await play(tmp_path, lambda prompt: speech)).metrics
    assert (metrics.reward, metrics.success, metrics.guesses) == (0.0, False, 8)
    assert (metrics.no_error, metrics.no_answer) == (no_error, no_answer)


def test_the_prompt_tells_the_closest_bounds():
    assert question(100, 1, 100) == "guess 1-100"
    assert question(100, 21, 69) == "guess 1-100, higher than 20, lower than 70"
    assert narrow(21, 69, 90, 60) == narrow(21, 69, None, 60) == narrow(21, 69, 3, 60) == (21, 69)
    assert narrow(21, 69, 65, 60) == (21, 64) and narrow(21, 69, 50, 60) == (51, 69)


def test_problems_are_the_same_for_the_same_name():
    assert load_problems(["train"], count=5) == load_problems(["train"], count=5)
    answers = [problem["answer"] for problem in load_problems(["train", "test"], highest=10, count=50)]
    assert answers[:50] != answers[50:] and set(answers) <= set(range(1, 11))


def test_demonstrations_are_sensible_but_imperfect():
    games = list(demonstrations(3, 400))
    assert games == list(demonstrations(3, 400)) and games != list(demonstrations(4, 400))
    inside = 0
    for prompt, completion in games:
        numbers = dict(re.findall(r"(higher|lower) than (\d+)", prompt))
        inside += int(numbers.get("higher", 0)) < int(completion) < int(numbers.get("lower", 101))
    assert 0.85 < inside / len(games) < 0.99
    openings = sum(prompt == "guess 1-100" for prompt, _ in games)
    assert openings == 400 and len(games) > 1600


def test_the_bootstrap_recipe_gets_them_with_the_configured_range():
    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"dataset_loader_params": {"highest": 10, "count": 5}})
    made = list(GuessingDomain().demonstrations(cfg, 1, "play"))
    assert made[0].prompt == "guess 1-10" and all(int(d.completion) <= 10 for d in made)


def test_both_dotted_paths_lead_to_the_same_functions():
    assert pipelinerl.domains.guessing is domains.guessing
    path = "pipelinerl.domains.guessing.stepwise.load_problems"
    assert resolve_dotted(path, "dataset_loader") is load_problems
