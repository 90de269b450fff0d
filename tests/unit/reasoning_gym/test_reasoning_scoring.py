"""Verdicts: in processes that are killed when they are late, as rewards and metrics of a rollout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from domains.pool import JudgePool
from domains.reasoning_gym import generate_reasoning_gym_rollout, load_problems
from domains.reasoning_gym.families import entry
from domains.reasoning_gym.scoring import judge, make_pool, score
from pipelinerl.config.compose import compose
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutOrigin, RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.tiny_model import build_tokenizer, save_model

TASKS: dict[str, Any] = {"chain_sum": {"max_terms": 2, "max_digits": 1}}


def problem_and_answer(**tasks: Any) -> tuple[dict[str, Any], str]:
    (problem,) = load_problems(["train"], tasks or TASKS, count=1)
    keys = ("task", "options", "seed", "index")
    return problem, entry(*(problem[key] for key in keys))["answer"]


async def test_a_judge_that_is_late_or_dies_is_replaced() -> None:
    async with JudgePool(eval, ("1",), workers=1, deadline_s=100.0) as pool:
        assert await pool.ask("1 + 1") == 2
        pool.deadline_s = 0.5
        assert await pool.ask("9**9**9**9") is None and pool.counts["timeouts"] == 1
        pool.deadline_s = 100.0
        assert await pool.ask("'a' * 2**31") is None and pool.counts["crashes"] == 1
        assert await pool.ask("[2] * 3") == [2, 2, 2]


@pytest.mark.usefixtures("families")
async def test_answers_are_scored_in_another_process() -> None:
    problem, right = problem_and_answer()
    async with make_pool(1, 100.0, 2048) as pool:
        assert await score(pool, problem, f"It is {right}.", "auto") == (1.0, True)
        assert await score(pool, problem, "It is 99.", "auto") == (0.0, True)
        assert await score(pool, problem, "I do not know.", "auto") == (0.0, False)
        with pytest.raises(ValueError, match=r"chain_sum: seed .* another question in each process"):
            await score(pool, problem | {"question": "What is 0 + 0?"}, "0", "auto")


@pytest.mark.usefixtures("families")
def test_a_verifier_that_fails_at_an_answer_says_so() -> None:
    problem, _ = problem_and_answer(prime_factorization={})
    keys = ("task", "options", "seed", "index", "question")
    assert judge(*(problem[key] for key in keys), "blah", "text") == (None, True)


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    ("task", "wrong"),
    [
        ("complex_arithmetic", ("nan", "NaN", "nan+nanj", "nanj", "-nan")),
        ("game_of_life_halting", ("banana", "?", "0", "yes")),
        ("coin_flip", ("0", "-0", "0.")),
    ],
)
def test_what_a_verifier_takes_for_everything_is_wrong(task: str, wrong: tuple[str, ...]) -> None:
    keys = ("task", "options", "seed", "index", "question")
    for problem in load_problems(["train"], {task: {}}, count=6):
        right = entry(*(problem[key] for key in keys[:4]))["answer"]
        found = [judge(*(problem[key] for key in keys), one, "text") for one in wrong if one != right]
        assert all(score is not None and score < 0.999 for score, _ in found), (right, found)
        assert judge(*(problem[key] for key in keys), right, "text") == (1.0, True)


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    ("task", "wrong"),
    [
        ("gsm_symbolic", ("-{}", "\u2212{}")),
        ("letter_jumble", ("{} x", "{} {}")),
        ("puzzle24", ("6 + 6 + 6 + 6", "2*3*4*1", "8*3*1*1")),
        ("spell_backward", ("{}x", "{} or not")),
        ("time_intervals", ("{}1",)),
        ("word_sorting", ("{}, zoo", "{}, a, b")),
    ],
)
def test_more_than_the_right_answer_or_another_one_is_no_success(task: str, wrong: tuple[str, ...]) -> None:
    """A sign, words behind it, other numbers than the given ones, seconds (here of a longer fraction)."""
    keys = ("task", "options", "seed", "index", "question")
    options = {"time_intervals": {"task_types": ["time_ms"]}, "spell_backward": {"min_word_len": 10}}
    for problem in load_problems(["train"], {task: options.get(task, {})}, count=6):
        item = entry(*(problem[key] for key in keys[:4]))
        right = item["answer"]
        assert judge(*(problem[key] for key in keys), right, "text") == (1.0, True)
        for form in wrong:
            score, _ = judge(*(problem[key] for key in keys), form.replace("{}", right), "text")
            assert score is not None and score < 0.999, (right, form)


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    "task", ["leg_counting", "calendar_arithmetic", "puzzle24", "mini_sudoku", "word_sorting"]
)
def test_a_right_answer_in_bold_in_a_box_or_in_a_fence_is_right(task: str) -> None:
    keys = ("task", "options", "seed", "index", "question")
    (problem,) = load_problems(["train"], {task: {}}, count=1)
    right = entry(*(problem[key] for key in keys[:4]))["answer"]
    for form in ("**{}**", r"\boxed{{}}", "${}$", "```\n{}\n```"):
        said = f"<answer>{form.replace('{}', right)}</answer>"
        assert judge(*(problem[key] for key in keys), said, "auto") == (1.0, True)
        score, _ = judge(*(problem[key] for key in keys), said.replace(right, "no such thing"), "auto")
        assert score is not None and score < 0.999


HOSTILE = "__import__('os').system('touch {path}')"


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    "task",
    ["binary_matrix", "countdown", "n_queens", "puzzle24", "simple_integration", "spiral_matrix"],
)
def test_an_answer_is_not_run_as_a_program(task: str, tmp_path: Path) -> None:
    problem, right = problem_and_answer(**{task: {}})
    keys = ("task", "options", "seed", "index", "question")
    for hostile in (HOSTILE, f"[{HOSTILE}]", "exec(chr(49))", "().__class__"):
        found = judge(*(problem[key] for key in keys), hostile.replace("{path}", str(tmp_path / "x")), "text")
        assert found[0] in (None, 0.0) and not (tmp_path / "x").exists(), hostile
    assert judge(*(problem[key] for key in keys), right, "text") == (1.0, True)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Any]:
    """One rollout whose engine writes the given text."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([*map(str, range(10)), "<answer>", "</answer>"])
    tokenizer.save_pretrained(str(save_model(tmp_path)))

    async def rollout(cfg: Any, problem: dict[str, Any], said: str) -> RolloutResult:
        ids = tokenizer.encode(said, add_special_tokens=False)
        with FakeEngine(lambda prompt: ids) as engine:
            fields = {"parameters": {"max_tokens": 20}, "context_size": 4096}
            return await rolled_out(generate_reasoning_gym_rollout, cfg, problem, engine, tmp_path, **fields)

    return rollout


@pytest.mark.usefixtures("families")
async def test_a_score_is_the_reward_and_only_a_whole_one_is_success(ask: Callable[..., Any]) -> None:
    cfg = compose(["+domain=reasoning_gym", "hardware=cpu", "reasoning_gym.deadline_s=100"]).tree
    all_or_nothing = OmegaConf.merge(cfg, {"reasoning_gym": {"partial_credit": False}})
    problem, right = problem_and_answer()
    partly = f"{right}00"  # the library gives credit for an answer that contains the right one
    for tree, said, reward, success in (
        (cfg, right, 1.0, True),
        (cfg, partly, len(right) / len(partly), False),
        (all_or_nothing, partly, 0.0, False),
        (all_or_nothing, f"<answer>{right}</answer>", 1.0, True),
    ):
        result = await ask(tree, problem, said)
        (text,), metrics = result.training_texts, result.metrics
        assert text.reward == pytest.approx(reward) and metrics.success == success and metrics.no_error
        assert result.dataset_name == "train/chain_sum" and not metrics.no_answer
    silent = await ask(cfg, problem, "the")
    assert silent.metrics.no_answer and silent.training_texts[0].reward == 0.0


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(("form", "said"), [("auto", "{}"), ("tag", "<answer>{}</answer>")])
async def test_with_gold_answers_training_imitates_them_and_evaluations_are_sampled(
    ask: Callable[..., Any], form: str, said: str
) -> None:
    given = ["reasoning_gym.reward=gold", f"reasoning_gym.answer_format={form}"]
    cfg = compose(["+domain=reasoning_gym", "hardware=cpu", "finetune.rl.policy_loss=sft", *given]).tree
    problem, right = problem_and_answer()
    (text,) = (await ask(cfg, problem, "the")).training_texts
    assert text.output_text.startswith(said.format(right)) and text.reward == 1.0
    assert text.labels[text.prompt_tokens - 1] == -100 and text.labels[-1] == text.input_ids[-1] != -100
    evaluating = ROLLOUT_ORIGIN.set(RolloutOrigin("group", 0, 0, training=False))
    try:
        assert (await ask(cfg, problem, "the")).metrics.no_answer
    finally:
        ROLLOUT_ORIGIN.reset(evaluating)


@pytest.mark.usefixtures("families")
async def test_a_family_without_answers_is_not_imitated(ask: Callable[..., Any]) -> None:
    given = ["reasoning_gym.reward=gold", "finetune.rl.policy_loss=sft"]
    cfg = compose(["+domain=reasoning_gym", "hardware=cpu", *given]).tree
    problem, right = problem_and_answer(rush_hour={})
    assert right is None
    with pytest.raises(ValueError, match="family rush_hour: has no answer that reasoning_gym"):
        await ask(cfg, problem, "the")
