"""What the `openai` client asks of a session, and what is trained of it."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from pipelinerl.engines.client import EngineUnavailable
from pipelinerl.extras import recorder
from pipelinerl.extras.recorder import Session
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutOrigin
from tests.support.engine_harness import RunningEngine, full_logprobs, reference, until
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_model import build_tokenizer, save_model

SAY: list[Any] = [{"role": "user", "content": "Say something."}]
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@asynccontextmanager
async def recorded(llm: TrainableLLM, **options: Any) -> AsyncIterator[tuple[Session, openai.AsyncOpenAI]]:
    async with (
        recorder.session(llm, **options) as session,
        openai.AsyncOpenAI(base_url=session.base_url, api_key="none", max_retries=0, timeout=300) as client,
    ):
        yield session, client


async def test_a_dialogue_of_two_turns_is_trained_as_the_engine_sampled_it(
    engine: RunningEngine, llm: TrainableLLM
) -> None:
    await engine.post("/update_weight_version", {"weight_version": "48"})
    messages = list(SAY)
    async with recorded(llm) as (session, client):
        for _ in range(2):
            answer = await client.chat.completions.create(model="any", messages=messages)
            reply = answer.choices[0].message
            messages += [reply.model_dump(), {"role": "user", "content": "More."}]
        assert answer.usage and answer.usage.completion_tokens == len(session.calls[1].output_token_ids)
    first, second = session.texts()
    assert first.text.startswith("<|start|>user\nSay something.<|end|>")
    assert second.input_ids[: len(first.input_ids)].tolist() == first.input_ids.tolist()
    (text,) = session.texts(joined=True)
    assert text.input_ids.tolist() == second.input_ids.tolist()
    learned = text.labels != -100
    both = [*first.labels[first.labels != -100], *second.labels[second.labels != -100]]
    assert text.labels[learned].tolist() == both and text.output_tokens == len(both) == len(text.logprobs)
    assert text.weight_versions == [(48, 0, len(both))]
    assert text.prompt_text == first.prompt_text
    expected = full_logprobs(reference(engine.server.settings.model), text.input_ids, temperature=0.8)
    assert text.logprobs == pytest.approx(expected[learned[1:]].tolist(), abs=1e-4)
    (sample,) = samples_of([text], RolloutOrigin("g", 0, 48, training=True))
    assert sample.trainable_labels == len(both)


async def test_a_reply_that_the_program_altered_is_rendered_anew(llm: TrainableLLM) -> None:
    llm.parameters["seed"] = 1
    async with recorded(llm) as (session, client):
        answer = await client.chat.completions.create(model="m", messages=SAY)
        text = answer.choices[0].message.content
        altered: list[Any] = [{"role": "assistant", "content": f"{text}!"}, *SAY]
        await client.chat.completions.create(model="m", messages=[*SAY, *altered])
    first, second = session.texts(joined=True)
    assert f"{text}!<|end|>" in second.prompt_text and first.output_tokens + second.output_tokens > 2


async def test_ids_of_replies_before_one_that_a_stop_string_cut_stay(llm: TrainableLLM) -> None:
    llm.parameters |= {"max_tokens": 60, "seed": 1}
    more: Any = {"role": "user", "content": "More."}
    async with recorded(llm) as (session, client):
        whole = await client.chat.completions.create(model="m", messages=SAY)
        messages: list[Any] = [*SAY, whole.choices[0].message.model_dump(), more]
        free = await client.chat.completions.create(model="m", messages=messages)
        stop = next(one for one in str(free.choices[0].message.content)[5:] if one.isascii())
        cut = await client.chat.completions.create(model="m", messages=messages, stop=[stop])
        messages += [cut.choices[0].message.model_dump(), more]
        await client.chat.completions.create(model="m", messages=messages)
        first, _, ended, last = session.calls
    known = [*first.prompt_token_ids.tolist(), *first.output_token_ids.tolist()]
    assert last.prompt_token_ids[: len(known)].tolist() == known
    known = [*ended.prompt_token_ids.tolist(), *ended.output_token_ids.tolist()]
    assert last.prompt_token_ids[: len(known)].tolist() != known


async def test_routes_answer_in_the_shape_of_the_engine(engine: RunningEngine, llm: TrainableLLM) -> None:
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    async with recorded(llm) as (session, client):
        answer = await client.chat.completions.create(
            model="gpt", messages=SAY, logprobs=True, max_tokens=3, extra_body=ids
        )
        text = await client.completions.create(
            model="gpt", prompt=["Once", "Two"], logprobs=0, extra_body=ids
        )
        token_route = session.base_url.removesuffix("/v1") + "/inference/v1/generate"
        sampling = {"max_tokens": 4, "logprobs": 1, "skip_special_tokens": False, "stop_token_ids": [0]}
        body = {"model": "gpt", "token_ids": [70, 71], "sampling_params": sampling}
        raw = await engine.session.post(token_route, json=body)
        generated = await raw.json()
        (model,) = [one async for one in client.models.list()]
        assert (await client.models.retrieve("gpt")).id == "gpt"
        chat, *asked, route = session.calls
    assert model.id == llm.model_name and model.max_model_len == 512  # type: ignore[attr-defined]
    (choice,) = answer.choices
    assert answer.prompt_token_ids == chat.prompt_token_ids.tolist()  # type: ignore[attr-defined]
    assert choice.token_ids == chat.output_token_ids.tolist()  # type: ignore[attr-defined]
    assert len(chat.output_token_ids) <= 3, "a program may ask for less than the run allows"
    assert choice.logprobs and choice.logprobs.content
    for entry, own in zip(choice.logprobs.content, chat.logprobs, strict=True):
        assert entry.token == f"token_id:{own.token_id}" and entry.logprob == pytest.approx(own.logprob)
    assert [one.index for one in text.choices] == [0, 1]
    for one, call in zip(text.choices, asked, strict=True):
        assert one.token_ids == call.output_token_ids.tolist()  # type: ignore[attr-defined]
        assert one.text == call.output.content
    (raw_choice,) = generated["choices"]
    assert raw_choice["token_ids"] == route.output_token_ids.tolist()
    named = [entry["token"] for entry in raw_choice["logprobs"]["content"]]
    assert named == [f"token_id:{token}" for token in raw_choice["token_ids"]]
    assert raw_choice["weight_versions"][0]["version"] == "default"
    assert len(session.texts()) == 4 == len(session.texts(joined=True))


async def test_a_stream_is_what_the_client_takes(llm: TrainableLLM) -> None:
    async with recorded(llm) as (session, client):
        stream = await client.chat.completions.create(
            model="m", messages=SAY, stream=True, stream_options={"include_usage": True}
        )
        chunks = [one async for one in stream]
        plain = await client.completions.create(model="m", prompt="Once", stream=True)
        text = "".join([one.choices[0].text async for one in plain])
        chat, completion = session.calls
    *said, usage = chunks
    assert len(said) == chat.output_length_tokens == usage.usage.completion_tokens > 1
    deltas = [one.choices[0].delta for one in said]
    assert [one.role for one in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(one.content or "" for one in deltas) == chat.output.content
    ends = [one.choices[0].finish_reason for one in said]
    assert ends == [None] * (len(ends) - 1) + [chat.llm_info["finish_reason"]]
    assert text == completion.output.content


async def test_a_stop_string_ends_the_text_and_its_ids_stay(llm: TrainableLLM) -> None:
    llm.parameters |= {"max_tokens": 60, "seed": 1}
    async with recorded(llm) as (session, client):
        free = await client.completions.create(model="m", prompt="Once")
        stop = next(one for one in free.choices[0].text[5:] if one.isascii())
        cut = await client.completions.create(model="m", prompt="Once", stop=["never there", stop])
        call = session.calls[1]
    assert cut.choices[0].text == free.choices[0].text.partition(stop)[0]
    assert call.output.content == cut.choices[0].text
    assert session.texts()[1].output_text.endswith(stop) and session.texts()[1].finished


@pytest.mark.parametrize(
    ("sampled", "ended_by", "shown"),
    [
        ("1212", "2", "121"),  # the first 2 was sampled below the run's min_tokens
        ("12", None, "12"),  # and here the end id came behind it
        ("123", 7, "12"),  # the id of 3, one of stop_token_ids
    ],
)
async def test_an_answer_ends_where_the_engine_ended_it(
    tmp_path: Any, sampled: str, ended_by: int | str | None, shown: str
) -> None:
    model = save_model(tmp_path)
    known = build_tokenizer()
    ids = known.convert_tokens_to_ids(list(sampled)) + ([known.eos_token_id] if ended_by is None else [])
    ended_by = ids[-1] if isinstance(ended_by, int) else ended_by
    with FakeEngine(lambda prompt: ids) as fake:
        reply = fake.reply(ids)
        reply["choices"][0]["stop_reason"] = ended_by
        fake.misbehave += [reply, reply]
        parameters = {"max_tokens": 9, "stop": ["2"], "min_tokens": 2, "stop_token_ids": [9]}
        llm = TrainableLLM(
            model_name=str(model), base_url=fake.url, parameters=parameters, context_size=512, max_retries=0
        )
        async with recorded(llm) as (_, client):
            chat = await client.chat.completions.create(model="m", messages=SAY)
            plain = await client.completions.create(model="m", prompt="a")
    assert chat.choices[0].message.content == plain.choices[0].text == shown
    told = [one.choices[0].model_dump()["stop_reason"] for one in (chat, plain)]
    assert told == [ended_by, ended_by]


RULES: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.2}, "temperature 0.2 is not the run's 0.8; leave it out, or"),
    ({"top_p": 0.9}, "top_p 0.9 is not the run's 1.0"),
    ({"seed": 3}, "seed 3 is not the run's None"),
    ({"top_k": 20}, "top_k 20 is not the run's 0"),
    ({"presence_penalty": 0.5}, "presence_penalty 0.5"),
    ({"ignore_eos": True}, "ignore_eos True"),
]


async def test_sampling_that_is_not_the_runs_is_refused_or_overridden_visibly(llm: TrainableLLM) -> None:
    async with recorded(llm) as (session, client):
        for fields, message in RULES:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=SAY, extra_body=fields)
            assert message in refused.value.message and "\n" not in refused.value.message
            body = {"token_ids": [70], "sampling_params": fields}
            route = session.base_url.removesuffix("/v1") + "/inference/v1/generate"
            with pytest.raises(openai.BadRequestError, match=message.split(" is ")[0]):
                await client.post(route, body=body, cast_to=object)
        assert session.calls == []
        await client.chat.completions.create(
            model="m", messages=SAY, temperature=0.8, top_p=1.0, extra_body={"top_k": -1}
        )
    assert "overridden" not in session.texts()[0].metadata
    async with recorded(llm, override=True) as (session, client):
        for fields, _ in RULES:
            await client.chat.completions.create(model="m", messages=SAY, extra_body=fields)
    assert [text.metadata["overridden"] for text in session.texts()] == [fields for fields, _ in RULES]


async def test_what_cannot_be_served_is_one_line(llm: TrainableLLM) -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"n": 2}, "n 2 is not supported"),
        ({"max_tokens": 0}, "max_tokens 0 asks for no token"),
        ({"response_format": {"type": "json_object"}}, "'json_object' is not supported"),
        ({"extra_body": {"best_of": 2}}, "best_of"),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "shorten it"),
        ({"messages": [*SAY, {"role": "system", "content": "x"}]}, "system comes first"),
    ]
    async with recorded(llm) as (session, client):
        for fields, message in refusals:
            with pytest.raises(openai.BadRequestError, match=message) as refused:
                await client.chat.completions.create(**{"model": "m", "messages": SAY, **fields})
            assert "\n" not in refused.value.message
        with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings: Not Found"):
            await client.embeddings.create(model="m", input="a")
        assert session.calls == [] and session.failure is None


async def test_a_session_that_has_ended_or_never_was_is_a_404_of_one_line(llm: TrainableLLM) -> None:
    async with recorded(llm) as (session, _):
        pass
    unknown = session.base_url.rpartition("/r/")[0] + "/r/guessed/v1"
    for base_url in (session.base_url, unknown):
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match="it has ended, or never began"):
                await client.chat.completions.create(model="m", messages=SAY)
            with pytest.raises(openai.NotFoundError):
                await client.models.list()


async def test_calls_of_a_session_may_run_at_the_same_time_and_keep_their_order(
    engine: RunningEngine, llm: TrainableLLM
) -> None:
    seen = []
    token = ROLLOUT_ORIGIN.set(RolloutOrigin("group", 1, 0, training=True))
    async with recorded(llm) as (session, client):
        ROLLOUT_ORIGIN.reset(token)
        say = [[{"role": "user", "content": str(number)}] for number in range(6)]
        await asyncio.gather(
            *(client.chat.completions.create(model="m", messages=one) for one in say)  # type: ignore[arg-type]
        )
        async with recorded(llm) as (other, another):
            await another.chat.completions.create(model="m", messages=SAY)
            assert len(other.calls) == 1
        seen = sorted(call.prompt.messages[0]["content"] for call in session.calls)
    assert seen == list("012345") and len(session.texts(joined=True)) == 6
    assert session._context[ROLLOUT_ORIGIN] == RolloutOrigin("group", 1, 0, training=True)


async def test_a_call_under_way_ends_with_its_session_and_with_its_program(
    engine: RunningEngine, llm: TrainableLLM
) -> None:
    llm.parameters |= {"max_tokens": 400, "ignore_eos": True}
    await engine.post("/pause?mode=keep&clear_cache=false")
    async with recorded(llm) as (session, client):
        hung_up = asyncio.create_task(client.chat.completions.create(model="m", messages=SAY))
        await until(lambda: len(session._running) == 1)
        hung_up.cancel()
        await until(lambda: not session._running)
        late = asyncio.create_task(client.chat.completions.create(model="m", messages=SAY))
        await until(lambda: len(session._running) == 1)
        await session.end()
        with pytest.raises(openai.NotFoundError, match="has ended"):
            await late
    await engine.post("/resume")
    await until(lambda: engine.server._pending._sequences == 0)
    assert session.calls == []


async def test_tools_go_to_the_engine_and_come_back_as_calls(tmp_path: Any) -> None:
    with FakeEngine(lambda prompt: [7, 8, 9], version="4") as fake:
        llm = TrainableLLM(model_name=str(save_model(tmp_path)), base_url=fake.url, context_size=512)
        async with recorded(llm) as (session, client):
            answer = await client.chat.completions.create(model="m", messages=SAY, tools=[WEATHER])
            stream = await client.chat.completions.create(
                model="m", messages=SAY, tools=[WEATHER], stream=True
            )
            (chunk,) = [one async for one in stream]
    (choice,) = answer.choices
    assert choice.message.tool_calls and choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert (call.type, call.function.name) == ("function", "weather")  # type: ignore[union-attr]
    assert chunk.choices[0].delta.tool_calls and chunk.choices[0].finish_reason == "tool_calls"
    assert [text.input_ids.tolist() for text in session.texts()] == [[1, 2, 3, 7, 8, 9]] * 2


async def test_what_engines_failed_is_what_the_rollout_failed_of(
    tmp_path: Any,
) -> None:
    with FakeEngine(lambda prompt: [7, 8, 9]) as fake:
        llm = TrainableLLM(
            model_name=str(save_model(tmp_path)), base_url=fake.url, context_size=512, max_retries=0
        )
        fake.misbehave.append(500)
        async with recorded(llm) as (session, client):
            with pytest.raises(openai.InternalServerError, match="told to say 500"):
                await client.completions.create(model="m", prompt="a")
            assert isinstance(session.failure, EngineUnavailable)
            await client.completions.create(model="m", prompt="a")
            assert session.failure is None and len(session.texts()) == 1
        fake.misbehave.append(500)
        with pytest.raises(EngineUnavailable, match="told to say 500") as failed:
            async with recorded(llm) as (_, client):
                await client.completions.create(model="m", prompt="a")
        assert isinstance(failed.value.__cause__, openai.InternalServerError)


async def test_an_answer_to_a_call_that_was_asked_before_does_not_hide_a_failure(
    llm: TrainableLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, failed = asyncio.Event(), asyncio.Event()
    module = importlib.import_module("pipelinerl.extras.recorder.session")  # beside a function of that name
    real = module.llm_async_generate

    async def generate(llm: Any, prompt: Any, *rest: Any) -> Any:
        if not asked.is_set():
            asked.set()
            await failed.wait()
            return await real(llm, prompt, *rest)
        if not failed.is_set():
            failed.set()
            raise EngineUnavailable("http://engine", "connection", "gone")
        return await real(llm, prompt, *rest)

    monkeypatch.setattr(module, "llm_async_generate", generate)
    async with recorded(llm) as (session, client):
        slow = asyncio.create_task(client.completions.create(model="m", prompt="Hello", max_tokens=2))
        await asyncio.wait_for(asked.wait(), 300)
        with pytest.raises(openai.InternalServerError):
            await client.completions.create(model="m", prompt="Hello", max_tokens=2)
        await slow
        assert isinstance(session.failure, EngineUnavailable)
        await client.completions.create(model="m", prompt="Hello", max_tokens=2)
        assert session.failure is None, "the program asked again and was answered"


async def test_a_dialogue_that_goes_on_ends_as_the_program_asked(llm: TrainableLLM) -> None:
    """A dialogue continued from ids always begins an answer; one that is not to is rendered anew."""
    messages = list(SAY)
    async with recorded(llm) as (session, client):
        answer = await client.chat.completions.create(model="m", messages=messages)
        messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": "More."}]
        for begun in (True, False):
            asked = {"add_generation_prompt": begun}
            await client.chat.completions.create(model="m", messages=messages, extra_body=asked)
            prompt = llm.load_tokenizer().decode(session.calls[-1].prompt_token_ids)
            assert prompt.endswith("<|start|>assistant\n") is begun, prompt


async def test_a_broken_body_is_a_400(llm: TrainableLLM) -> None:
    async with recorded(llm) as (session, _), aiohttp.ClientSession() as http:
        for body in (b"{", b"\x00", b'{"messages": 3}'):
            async with http.post(f"{session.base_url}/chat/completions", data=body) as answer:
                assert answer.status == 400 and "error" in await answer.json()
        assert np.all([call is None for call in session._answers])


async def test_an_address_is_opened_again_when_its_session_has_ended(llm: TrainableLLM) -> None:
    token = "of-somebody-who-keeps-a-client"
    urls = []
    for _ in range(2):
        async with recorder.session(llm, token=token) as session:
            urls.append(session.base_url)
            assert session.calls == []
            async with openai.AsyncOpenAI(base_url=urls[0], api_key="none", max_retries=0) as client:
                await client.completions.create(model="m", prompt=[70], max_tokens=2)
            assert len(session.calls) == 1
            with pytest.raises(ValueError, match="the token is that of a session that is still open"):
                async with recorder.session(llm, token=token):
                    pass
    assert urls[0] == urls[1]
