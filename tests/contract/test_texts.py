"""Messages: a dialogue by token ids, and the chat route for what ids cannot say."""

from itertools import pairwise
from typing import Any

import pytest

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.engines.client import EngineRequestError
from pipelinerl.llm import Prompt, TrainableLLM
from tests.support.contract.engines import Engine
from tests.support.contract.models import CONTEXT
from tests.support.engine_harness import full_logprobs

TURNS = 30
FUNCTION = {"name": "search", "description": "Search.", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
"""Complete, because vLLM adds what is missing as nulls, which the template then shows."""


def language_model(engine: Engine, **parameters: Any) -> TrainableLLM:
    return TrainableLLM(
        model_name=str(engine.folder),
        base_url=engine.url,
        parameters=parameters,
        collect_logprobs=True,
        context_size=CONTEXT,
        max_retries=0,
    )


async def test_a_dialogue_of_30_turns_trains_what_was_sampled(engine: Engine) -> None:
    await engine.publish(100, 1, "recompute")
    llm = language_model(engine, max_tokens=6, temperature=1.0)
    prompt, calls = Prompt.from_user_message("begin"), []
    for turn in range(TURNS):
        calls.append(await llm_async_generate(llm, prompt, engine.session))
        prompt = llm.continue_prompt(calls[-1], [{"role": "user", "content": f"turn {turn}"}])
    for before, after in pairwise(calls):
        whole = [*before.prompt_token_ids.tolist(), *before.output_token_ids.tolist()]
        assert after.prompt_token_ids.tolist()[: len(whole)] == whole, "nothing is tokenised again"
    expected = full_logprobs(engine.model(1), make_training_text(llm, calls[-1]).input_ids)
    for call in calls:
        text = make_training_text(llm, call)
        start, end = len(call.prompt_token_ids), len(text.input_ids)
        assert text.input_ids.tolist() == [*call.prompt_token_ids.tolist(), *call.output_token_ids.tolist()]
        assert text.labels.tolist() == [-100] * start + call.output_token_ids.tolist()
        assert text.logprobs == pytest.approx(expected[start - 1 : end - 1].tolist(), abs=1e-4)


async def test_the_chat_route_samples_what_the_token_route_samples(engine: Engine) -> None:
    await engine.publish(101, 1, "recompute")
    llm = language_model(engine, max_tokens=12, temperature=1.0, seed=5)
    prompt = Prompt(messages=[{"role": "user", "content": "Say something."}], tools=[TOOL])
    chat = await llm_async_generate(llm, prompt, engine.session)
    rendered = llm.prompt_ids(prompt)
    assert chat.prompt_token_ids.tolist() == rendered.tolist(), "one template, rendered alike on both sides"
    plain = await llm_async_generate(llm, Prompt(token_ids=rendered.tolist()), engine.session)
    assert chat.output_token_ids.tolist() == plain.output_token_ids.tolist()
    logprobs = [make_training_text(llm, one).logprobs for one in (chat, plain)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)


async def test_a_response_format_is_kept_or_refused_by_name(engine: Engine) -> None:
    await engine.publish(102, 1, "recompute")
    llm = language_model(engine, max_tokens=12, temperature=1.0)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"const": "yes"}}}
    prompt = Prompt(messages=[{"role": "user", "content": "Well?"}], response_format=form)
    try:
        assert (await llm_async_generate(llm, prompt, engine.session)).output.content == '"yes"'
    except EngineRequestError as error:
        assert error.status == 400 and "response_format 'json_schema' is not supported" in str(error)
