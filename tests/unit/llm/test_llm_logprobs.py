"""Scores of given completions: by ids, by text and as a message, with the prompt left out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.engines.client import EngineRequestError, EngineUnavailable
from pipelinerl.engines.llm_logprobs import Scores
from pipelinerl.llm import LLMOutput, Prompt, TrainableLLM
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_model import build_tokenizer, save_model

TOKENIZER = build_tokenizer()


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(lambda prompt: [1]) as running:
        yield running


@pytest.fixture
def llm(engine: FakeEngine, tmp_path: Path) -> TrainableLLM:
    engine.misbehave.clear()
    return TrainableLLM(
        model_name=str(save_model(tmp_path)), base_url=engine.url, max_retries=1, base_delay=0.01
    )


def tokens(scores: Scores) -> str:
    return "".join(TOKENIZER.convert_ids_to_tokens([entry["token_id"] for entry in scores["content"]]))


def test_each_completion_token_has_the_score_of_its_place(llm: TrainableLLM) -> None:
    scores = llm.get_logprobs_token_ids([5, 6, 7], [8, 9])
    assert scores == {"content": [{"logprob": -3.0, "token_id": 8}, {"logprob": -4.0, "token_id": 9}]}
    batch = llm.get_batch_logprobs_token_ids([[5, 6, 7], [5]], [[8, 9], [8]])
    assert batch[0] == scores and [e["logprob"] for e in batch[1]["content"]] == [-1.0]


def test_texts_are_tokenised_apart_and_messages_with_their_template(llm: TrainableLLM) -> None:
    assert tokens(llm.get_logprobs("say", " no")) == " no"
    chat = llm.get_logprobs(Prompt.from_user_message("hi"), "no")
    assert tokens(chat) == "no<e>" and chat["content"][0]["logprob"] == -5.0
    assert llm.get_logprobs_chat_complete(Prompt.from_user_message("hi"), LLMOutput(content="no")) == chat
    assert tokens(llm.get_logprobs(Prompt(token_ids=[5, 6]), LLMOutput(content="no"))) == "no"


def test_a_lost_engine_is_asked_again_and_a_refusal_is_not(llm: TrainableLLM, engine: FakeEngine) -> None:
    engine.misbehave.append(503)
    assert llm.get_logprobs_token_ids([5], [6])["content"]
    engine.misbehave.extend([500, 500])
    with pytest.raises(EngineUnavailable, match="server_error"):
        llm.get_logprobs_token_ids([5], [6])
    engine.misbehave.append(400)
    with pytest.raises(EngineRequestError, match="HTTP 400"):
        llm.get_logprobs_token_ids([5], [6])
    assert not engine.misbehave


@pytest.mark.parametrize(
    ("prompts", "completions", "message"),
    [
        ([[1], [2]], [[3]], "2 prompts but 1 completions"),
        ([[]], [[3]], "0 prompt ids"),
        ([[3]], [[]], "0 completion"),
    ],
)
def test_what_cannot_be_scored_is_named(
    llm: TrainableLLM, prompts: list[list[int]], completions: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.get_batch_logprobs_token_ids(prompts, completions)
