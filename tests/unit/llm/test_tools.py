"""A dialogue with tools, as `docs/adding_a_domain.md` has it: who speaks when, and what is one sample."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipelinerl.async_llm import make_training_texts_from_llm_calls
from pipelinerl.base.tokenizing import decode
from pipelinerl.dialogues import dialogue, joined
from pipelinerl.llm import LLMCall, Prompt, TrainableLLM
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_model import TEMPLATE, build_tokenizer, save_model

TOKENIZER = build_tokenizer()
PAGE = Path(__file__).resolve().parents[3] / "docs" / "adding_a_domain.md"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def said(text: str) -> list[int]:
    return [*TOKENIZER.convert_tokens_to_ids(list(text)), TOKENIZER.eos_token_id]


def model(engine: FakeEngine, folder: Path, **fields: Any) -> TrainableLLM:
    fields = {"parameters": {"max_tokens": 16}, "context_size": 400, "collect_logprobs": True, **fields}
    return TrainableLLM(model_name=str(save_model(folder)), base_url=engine.url, **fields)


def answers(*texts: str) -> FakeEngine:
    left = [said(text) for text in texts]
    return FakeEngine(lambda prompt: left.pop(0), version="4")


async def test_the_page_s_tool_domain_trains_one_sample_with_the_tool_masked(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # the page's own code
    problem = {"question": "how long is count ab?", "answer": "8"}
    with answers("count ab", "8") as engine:
        async with aiohttp.ClientSession() as session:
            result = await names["answer"](None, model(engine, tmp_path), problem, session)
    assert result.metrics.success
    (text,) = result.training_texts
    assert text.reward == 1.0 and text.labels[text.labels != -100].tolist() == [*said("count ab"), *said("8")]
    expected = f"<u>{problem['question']}<e><a>count ab<e><u>8<e><a>8<e>"
    assert decode(TOKENIZER, text.input_ids, False) == expected


@pytest.mark.parametrize(
    ("turns", "context", "cut", "asked"),
    [(9, 400, False, 3), (2, 400, False, 2), (9, 400, True, 1), (9, 12, False, 1)],
    ids=["nothing more to say", "turns", "a cut answer", "the context"],
)
async def test_a_dialogue_ends(tmp_path: Path, turns: int, context: int, cut: bool, asked: int) -> None:
    heard = []

    async def reply(call: LLMCall) -> list[dict[str, Any]] | None:
        heard.append(call.output.content)
        return None if call.output.content == "c" else [{"role": "user", "content": "more"}]

    with answers("a", "b", "c", "d") as engine:
        if cut:
            engine.misbehave.append(engine.reply(said("a"), "length"))
        llm = model(engine, tmp_path, context_size=context)
        async with aiohttp.ClientSession() as session:
            prompt = Prompt.from_user_message("hi")
            calls = await dialogue(llm, prompt, reply, session, max_turns=turns)
    assert len(calls) == asked
    # A reply that nobody will read is not asked for: a tool would run for nothing.
    assert len(heard) == (asked if asked == 3 or context == 12 else asked - 1)


async def test_tools_stay_with_a_dialogue_and_their_calls_are_told_back(tmp_path: Path) -> None:
    async def reply(call: LLMCall) -> list[dict[str, Any]] | None:
        assert call.output.tool_calls
        return [{"role": "tool", "tool_call_id": call.output.tool_calls[0].id, "content": "rain"}]

    with FakeEngine(lambda prompt: [7, 8, 9], version="4") as engine:
        async with aiohttp.ClientSession() as session:
            prompt = Prompt(messages=[{"role": "user", "content": "so?"}], tools=[WEATHER])
            await dialogue(model(engine, tmp_path), prompt, reply, session, max_turns=2)
        first, second = engine.chats
    assert first["tools"] == second["tools"] == [WEATHER]
    user, assistant, tool = second["messages"]
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert user == first["messages"][0] and tool["content"] == "rain"
    assert assistant["tool_calls"] == [{"type": "function", "id": "call_1", "function": function}]


async def test_a_template_that_alters_replies_is_rendered_anew_and_makes_a_sample_of_each_call(
    tmp_path: Path,
) -> None:
    async def reply(call: LLMCall) -> list[dict[str, Any]] | None:
        return [{"role": "user", "content": "more"}]

    with answers("a", "b") as engine:
        llm = model(engine, tmp_path)
        llm.load_tokenizer().chat_template = TEMPLATE.replace("m['content']", "m['content'] | upper")
        async with aiohttp.ClientSession() as session:
            calls = await dialogue(llm, Prompt.from_user_message("hi"), reply, session, max_turns=2)
        assert [one["content"] for one in calls[1].prompt.messages] == ["hi", "a", "more"]
        assert len(joined(make_training_texts_from_llm_calls(llm, calls))) == 2


async def test_calls_of_unlike_rewards_are_not_joined_in_silence(tmp_path: Path) -> None:
    async def reply(call: LLMCall) -> list[dict[str, Any]] | None:
        return [{"role": "user", "content": "more"}]

    with answers("a", "b") as engine:
        llm = model(engine, tmp_path)
        async with aiohttp.ClientSession() as session:
            calls = await dialogue(llm, Prompt.from_user_message("hi"), reply, session, max_turns=2)
        texts = make_training_texts_from_llm_calls(llm, calls)
    texts[1].reward = 1.0
    with pytest.raises(ValueError, match=r"rewards \[0.0, 1.0\] are no one sample"):
        joined(texts)


SHOWS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"


async def test_tools_that_the_template_leaves_out_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = Prompt(messages=[{"role": "user", "content": "hi"}], tools=[WEATHER])
    for name, template, said_of in (("drops", TEMPLATE, 1), ("shows", SHOWS + TEMPLATE, 0)):
        caplog.clear()
        llm = TrainableLLM(model_name=str(tmp_path / name), tokenizer=build_tokenizer())
        llm.tokenizer.chat_template = template
        llm.render(Prompt.from_user_message("no tools, no word"))
        for _ in range(3):
            assert ("weather" in llm.render(prompt)) is (said_of == 0)
        remarks = [record for record in caplog.records if getattr(record, "remark", False)]
        assert len(remarks) == said_of
        for record in remarks:
            line = record.getMessage()
            assert str(tmp_path / name) in line and "describe them in a message" in line and "\n" not in line
