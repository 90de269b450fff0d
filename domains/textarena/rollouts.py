"""The rollout policy of `textarena`: one game, every seat the model, each seat a role."""

from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.deadline import within
from domains.prompts import question_messages
from domains.textarena.games import Game, GameError
from domains.textarena.settings import settings_of
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.base.thoughts import answer_part
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText
from pipelinerl.utils import PerTree

RIGHT = 0.999
"""Rewards of solved games; a few build 1 from fractions."""


class GameMetrics(BaseMetrics):
    """Statistics of one game; `reward` and `success` are those of the first seat."""

    ended: bool
    """The game came to its end; otherwise it passed the limit of turns, or the context, and earned 0."""
    reward_player_0: float
    reward_player_1: float | None
    """None in games of one player."""


_settings = PerTree(settings_of)


async def generate_textarena_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one deal; each call is a text with the reward that its seat has at the end.

    A game that passes its deadline, or that its own code cannot go on with, is a failed rollout.
    """
    play = _play(cfg, llm, problem, session)
    try:
        result = await within(_settings.of(cfg).deadline_s, "textarena.deadline_s", play)
    except GameError as error:
        result = RolloutResult(training_texts=[], failed=f"game: {error}")
    result.dataset_name = problem["dataset"]
    return result


async def _play(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    game = Game(problem["game"], problem["options"], problem["seed"])
    texts: list[TrainingText] = []
    while not game.over and len(texts) < _settings.of(cfg).max_turns:
        seat, observation = game.observation()
        prompt = Prompt(messages=question_messages(cfg, observation))
        if texts and len(llm.prompt_ids(prompt)) >= llm.context_size:
            break  # a first prompt that does not fit fails by name, in the call
        call = await llm_async_generate(llm, prompt, session)
        text = make_training_text(llm, call)
        # Compared with what the same seat earned in the other attempts, at the same turn from the end: with
        # padding every attempt has one vote there, however long it was.
        text.role = text.situation = f"player_{seat}"
        texts.append(text)
        game.move(answer_part(call.completion).strip())
    rewards = game.rewards()
    for text in texts:
        text.reward = rewards[int(str(text.role)[-1])]
    metrics = GameMetrics(
        reward=rewards[0],
        success=rewards[0] > rewards[1] if game.players == 2 else rewards[0] >= RIGHT,
        no_error=game.over,
        no_answer=game.ended_by_invalid_move,
        ended=game.over,
        reward_player_0=rewards[0],
        reward_player_1=rewards[1] if game.players == 2 else None,
    )
    return RolloutResult(training_texts=texts, metrics=metrics)
