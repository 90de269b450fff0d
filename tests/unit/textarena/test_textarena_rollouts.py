"""One game as a rollout: every seat the model, rewards and roles by seat, ends that are named."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from domains.textarena import generate_textarena_rollout, load_problems
from pipelinerl.config import RLConfig
from pipelinerl.config.compose import compose
from pipelinerl.finetune.rl.advantages import compute_advantages
from pipelinerl.finetune.rl.sample import samples_of, settle_group
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.rollouts import RolloutOrigin, RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.tiny_model import build_tokenizer, save_model

MORE = "[]<>/()'"
TOKENIZER = build_tokenizer(MORE)
Play = Callable[..., Any]
pytestmark = [pytest.mark.usefixtures("arena")]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """A game in which both seats say what `speak` makes of the prompt."""
    tree = compose(["+domain=textarena", "hardware=cpu"]).tree

    async def rollout(
        game: str, speak: Callable[[str], str], delay_s: float = 0.0, context: int = 16384, **settings: Any
    ) -> RolloutResult:
        def answer(ids: list[int]) -> list[int]:
            said = list(speak(TOKENIZER.decode(ids)))
            return [*TOKENIZER.convert_tokens_to_ids(said), TOKENIZER.eos_token_id]

        cfg = OmegaConf.merge(tree, {"textarena": settings})
        (problem,) = load_problems(["train"], {game: {}}, count=1)
        with FakeEngine(answer, max_model_len=context, delay_s=delay_s) as engine:
            fields = {"parameters": {"max_tokens": 64}, "context_size": context}
            return await rolled_out(
                generate_textarena_rollout, cfg, problem, engine, save_model(tmp_path, MORE), **fields
            )

    return rollout


def first_free(prompt: str) -> str:
    return "[" + re.findall(r"'\[(\d)\]'", prompt)[1] + "]"  # the first one is the rules' example


async def test_both_seats_are_the_model_and_each_text_has_its_seats_reward(play: Play) -> None:
    result = await play("TicTacToe-v0-train", first_free)
    texts = result.training_texts
    assert [text.role for text in texts] == [f"player_{turn % 2}" for turn in range(7)]
    assert [text.situation for text in texts] == [text.role for text in texts]
    assert [text.reward for text in texts] == [1.0, -1.0] * 3 + [1.0]  # squares 0 to 6: the first seat wins
    assert result.metrics.model_dump() == {
        "reward": 1.0,
        "success": True,
        "no_error": True,
        "no_answer": False,
        "ended": True,
        "reward_player_0": 1.0,
        "reward_player_1": -1.0,
    }
    assert result.dataset_name == "train/TicTacToe-v0-train"


async def test_an_invalid_move_loses_and_is_counted(play: Play) -> None:
    result = await play("TicTacToe-v0-train", lambda prompt: "the middle")
    assert [text.reward for text in result.training_texts] == [-1.0, -1.0]  # the game lets a seat err once
    assert result.metrics.no_answer and result.metrics.reward_player_1 == 1.0 and not result.metrics.success


async def test_thoughts_are_no_moves(play: Play) -> None:
    result = await play("GuessTheNumber-v0", lambda prompt: "is it [21]?</think>[5]", max_turns=1)
    assert "higher" not in result.training_texts[0].prompt_text.rpartition("Enter")[2]
    assert not result.metrics.no_answer and not result.metrics.ended


async def test_a_game_that_does_not_end_earns_nothing(play: Play) -> None:
    for options, turns in (({"max_turns": 3}, 3), ({"context": 1000}, 4)):
        result = await play("IteratedPrisonersDilemma-v0", lambda prompt: "hello", **options)
        assert result.failed is None and len(result.training_texts) == turns
        assert not result.metrics.ended and {text.reward for text in result.training_texts} == {0.0}
    with pytest.raises(ValueError, match=r"the prompt has \d+ tokens, the context 200"):
        await play("IteratedPrisonersDilemma-v0", lambda prompt: "hello", context=200)


async def test_the_deadline_of_a_game_is_its_failure_by_name(play: Play) -> None:
    result = await play("TicTacToe-v0-train", first_free, delay_s=0.2, deadline_s=0.3)
    assert result.failed == "timeout: textarena.deadline_s=0.3 passed" and not result.training_texts


async def test_a_fault_of_the_game_is_a_failure_by_name(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    from textarena.envs.TicTacToe.env import TicTacToeEnv

    monkeypatch.setattr(TicTacToeEnv, "_check_winner", lambda self: 1 // 0)
    result = await play("TicTacToe-v0-train", first_free)
    assert result.failed == "game: TicTacToe-v0-train: ZeroDivisionError: integer division or modulo by zero"


async def test_each_seat_is_compared_with_itself_and_each_attempt_counts_once(play: Play) -> None:
    def last_free(prompt: str) -> str:
        return "[" + re.findall(r"'\[(\d)\]'", prompt)[-1] + "]"

    def loses(prompt: str) -> str:  # the second seat wins, in six turns instead of seven
        free = [int(one) for one in re.findall(r"'\[(\d)\]'", prompt)[1:]]
        first, second = [0, 1, 6], [3, 4, 5]
        mine = first if "you will be 'O'" in prompt else second
        return f"[{next(one for one in mine if one in free)}]"

    samples = []
    for attempt, speak in enumerate((first_free, last_free, loses)):
        texts = (await play("TicTacToe-v0-train", speak)).training_texts
        samples += samples_of(texts, RolloutOrigin("g", attempt, 0, training=True))
    for sample in samples:
        sample.ref_logprobs = sample.old_logprobs
    settle_group(samples)
    tree = compose(["+domain=textarena", "hardware=cpu"]).tree
    rl = RLConfig.model_validate(OmegaConf.to_container(tree.finetune.rl, resolve=True))
    found = compute_advantages(SampleTable.of(samples), rl).advantage
    lengths = {attempt: sum(sample.rollout_index == attempt for sample in samples) for attempt in range(3)}
    assert lengths == {0: 7, 1: 7, 2: 6}
    for sample, advantage in zip(samples, found.tolist(), strict=True):
        won = (sample.rollout_index == 2) == (sample.role == "player_1")
        others = {0: 0.0, 1: 0.0, 2: sample.reward * -1}[sample.rollout_index]
        assert sample.reward == (1.0 if won else -1.0)
        assert advantage == pytest.approx(sample.reward - others)
