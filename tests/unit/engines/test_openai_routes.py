"""The routes for users' own programs, asked by OpenAI's own client."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.engines.client import EngineRequestError, SamplingParams
from pipelinerl.engines.openai.chat import TextBeforeCalls, call_reader, read_tool_calls
from pipelinerl.engines.openai.fields import ChatFields
from pipelinerl.engines.openai.handlers import json_response
from tests.support.openai_client import asked
from tests.support.text_model import byte_tokenizer

TOKENIZER = byte_tokenizer()
MESSAGES: list[Any] = [{"role": "user", "content": "Say something."}]
PROMPT = "<|start|>user\nSay something.<|end|><|start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
IDS = {"return_token_ids": True}


def ids_of(text: str) -> list[int]:
    return TOKENIZER.backend_tokenizer.encode(text, add_special_tokens=False).ids


async def test_a_chat_samples_what_the_token_route_samples(folder: Path) -> None:
    async with asked(folder) as (engine, client):
        answer = await client.chat.completions.create(
            model="model", messages=MESSAGES, max_tokens=20, seed=5, logprobs=True, extra_body=IDS
        )
        expected = await engine.client.generate(ids_of(PROMPT), SamplingParams(max_tokens=20, seed=5))
        (choice,) = answer.choices
        assert answer.prompt_token_ids == ids_of(PROMPT)  # type: ignore[attr-defined]
        assert choice.token_ids == expected.token_ids.tolist()  # type: ignore[attr-defined]
        assert choice.logprobs and choice.logprobs.content
        found = [one.logprob for one in choice.logprobs.content]
        assert found == pytest.approx(expected.logprobs.tolist(), abs=1e-6)
        assert choice.message.content == TOKENIZER.decode(expected.token_ids, skip_special_tokens=True)
        assert choice.finish_reason == expected.finish_reason
        spans = [{"version": "default", "start": 0, "end": len(expected.token_ids)}]
        assert choice.weight_versions == spans  # type: ignore[attr-defined]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(expected.token_ids)
        assert answer.usage.prompt_tokens == len(ids_of(PROMPT))


async def test_log_probabilities_name_the_bytes_and_places_of_a_text(folder: Path) -> None:
    """The vocabulary is one of bytes, so most sampled ids are parts of a character."""
    async with asked(folder) as (_, client):
        kwargs: dict[str, Any] = {"model": "model", "max_tokens": 40, "seed": 2}
        full = {**IDS, "skip_special_tokens": False, "ignore_eos": True}
        chat = await client.chat.completions.create(
            messages=MESSAGES, logprobs=True, extra_body=full, **kwargs
        )
        text = await client.completions.create(prompt="Once", logprobs=0, extra_body=full, **kwargs)
    (choice,) = chat.choices
    assert choice.logprobs and choice.logprobs.content
    said = bytes(byte for one in choice.logprobs.content for byte in one.bytes or ())
    assert said.decode(errors="replace") == choice.message.content and max(said) > 127
    assert len(said) >= len(choice.logprobs.content)
    offsets = text.choices[0].logprobs.text_offset  # type: ignore[union-attr]
    ids: list[int] = text.choices[0].token_ids  # type: ignore[attr-defined]
    assert offsets
    for at, offset in enumerate(offsets):
        before = TOKENIZER.decode(ids[:at])
        if "\ufffd" not in before:  # not one part of a character
            assert offset == len(before)


async def test_completions_of_text_ids_and_lists(folder: Path) -> None:
    async with asked(folder) as (engine, client):
        kwargs: dict[str, Any] = {"model": "model", "max_tokens": 8, "seed": 1, "logprobs": 0}
        text = await client.completions.create(prompt="Once", extra_body=IDS, **kwargs)
        ids = await client.completions.create(prompt=ids_of("Once"), extra_body=IDS, **kwargs)
        many = await client.completions.create(prompt=[ids_of("Once"), ids_of("Two")], n=2, **kwargs)
        texts = await client.completions.create(prompt=["Once", "Two"], n=2, **kwargs)
        expected = await engine.client.generate(ids_of("Once"), SamplingParams(max_tokens=8, seed=1))
    for answer in (text, ids):
        (choice,) = answer.choices
        assert choice.prompt_token_ids == ids_of("Once")  # type: ignore[attr-defined]
        assert choice.token_ids == expected.token_ids.tolist()  # type: ignore[attr-defined]
        assert choice.logprobs and choice.logprobs.token_logprobs == pytest.approx(
            expected.logprobs.tolist(), abs=1e-6
        )
    assert [one.index for one in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == text.choices[0].text
    assert [one.text for one in many.choices] == [one.text for one in texts.choices]
    assert len({one.text for one in many.choices}) == 4
    assert many.usage is not None and many.usage.prompt_tokens == len("OnceTwo")


async def test_a_stream_carries_the_same_text_ids_and_logprobs(folder: Path) -> None:
    # The same bits twice: what the second finds in a prefix cache is computed in other pieces.
    async with asked(folder, enable_prefix_caching=False) as (_, client):
        kwargs: dict[str, Any] = {
            "model": "model",
            "messages": MESSAGES,
            "max_tokens": 24,
            "seed": 3,
            "n": 2,
            "logprobs": True,
            "extra_body": {**IDS, "ignore_eos": True},
        }
        whole = await client.chat.completions.create(**kwargs)
        stream = await client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **kwargs
        )
        chunks = [one async for one in stream]
        plain = await client.completions.create(
            model="model", prompt="Once", max_tokens=8, seed=1, stream=True
        )
        text = "".join([one.choices[0].text async for one in plain])
        again = await client.completions.create(model="model", prompt="Once", max_tokens=8, seed=1)
    assert text == again.choices[0].text
    assert chunks[0].prompt_token_ids == ids_of(PROMPT)
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    for choice in whole.choices:
        pieces = [one.choices[0] for one in chunks[:-1] if one.choices[0].index == choice.index]
        assert len(pieces) == 24
        assert [one.delta.role for one in pieces] == ["assistant"] + [None] * 23
        assert "".join(one.delta.content for one in pieces) == choice.message.content
        assert [token for one in pieces for token in one.token_ids] == choice.token_ids  # type: ignore[attr-defined]
        assert [entry for one in pieces for entry in one.logprobs.content] == choice.logprobs.content  # type: ignore[union-attr]
        assert [one.finish_reason for one in pieces] == [None] * 23 + ["length"]
        spans = [span for one in pieces for span in one.weight_versions]
        assert [(one["start"], one["end"]) for one in spans] == [(at, at + 1) for at in range(24)]


async def test_stop_strings_end_the_text_but_keep_the_ids(folder: Path) -> None:
    async with asked(folder) as (engine, client):
        kwargs: dict[str, Any] = {"model": "model", "prompt": "Once", "max_tokens": 200, "seed": 1}
        free = await client.completions.create(extra_body={"ignore_eos": True}, **kwargs)
        stop = next(one for one in free.choices[0].text[5:] if one.isascii())
        body = {**IDS, "ignore_eos": True}
        cut = await client.completions.create(stop=["never there", stop], extra_body=body, **kwargs)
        kept = await client.completions.create(
            stop=stop, extra_body={**body, "include_stop_str_in_output": True}, **kwargs
        )
        streamed = await client.completions.create(stop=stop, stream=True, extra_body=body, **kwargs)
        pieces = "".join([one.choices[0].text async for one in streamed])
        sampling = {"max_tokens": 200, "seed": 1, "stop": [stop], "detokenize": True, "ignore_eos": True}
        token_route = await engine.post(
            "/inference/v1/generate", {"token_ids": ids_of("Once"), "sampling_params": sampling}
        )
    expected = free.choices[0].text.partition(stop)[0]
    (choice,) = cut.choices
    assert (choice.text, choice.finish_reason) == (expected, "stop")
    assert choice.stop_reason == stop  # type: ignore[attr-defined]
    assert kept.choices[0].text == expected + stop
    assert pieces == expected
    assert choice.token_ids == kept.choices[0].token_ids == token_route["choices"][0]["token_ids"]  # type: ignore[attr-defined]
    assert token_route["choices"][0]["stop_reason"] == stop


async def test_each_penalty_makes_repetition_rarer(folder: Path) -> None:
    async with asked(folder) as (engine, _):

        async def distinct(**penalty: float) -> int:
            sampling = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, **penalty)
            return len(set((await engine.client.generate(ids_of("Once"), sampling)).token_ids.tolist()))

        least = await distinct()
        assert await distinct(repetition_penalty=1.5) > least
        assert await distinct(frequency_penalty=2.0) > least
        assert await distinct(presence_penalty=1.0) > least


async def test_end_ids_special_ids_and_token_names(folder: Path) -> None:
    end = TOKENIZER.eos_token_id
    async with asked(folder) as (_, client):
        body = {**IDS, "stop_token_ids": [end], "ignore_eos": True, "return_tokens_as_token_ids": True}
        shown = {**body, "include_stop_str_in_output": True, "skip_special_tokens": False}
        kwargs: dict[str, Any] = {"model": "model", "messages": MESSAGES, "temperature": 1.5, "seed": 2}
        # Upstream's programs send logprobs: 1.
        plain = await client.chat.completions.create(extra_body={**body, "logprobs": 1}, **kwargs)
        full = await client.chat.completions.create(extra_body={**shown, "logprobs": 1}, **kwargs)
    ids = full.choices[0].token_ids  # type: ignore[attr-defined]
    assert plain.choices[0].finish_reason == "stop", "choose another seed"
    assert ids == plain.choices[0].token_ids and ids[-1] == end  # type: ignore[attr-defined]
    assert full.choices[0].message.content == TOKENIZER.decode(ids, skip_special_tokens=False)
    assert plain.choices[0].message.content == TOKENIZER.decode(ids, skip_special_tokens=True)
    content = full.choices[0].logprobs.content  # type: ignore[union-attr]
    assert [one.token for one in content or []] == [f"token_id:{token}" for token in ids]


@pytest.mark.parametrize(("said", "named"), [({}, True), ({"return_tokens_as_token_ids": False}, False)])
async def test_an_engine_may_name_tokens_by_their_ids_unless_told_otherwise(
    folder: Path, said: dict[str, bool], named: bool
) -> None:
    """Upstream's programs read `token_id:N`, and would take the text of a digit for an id."""
    async with asked(folder, return_tokens_as_token_ids=True) as (_, client):
        kwargs: dict[str, Any] = {"model": "model", "max_tokens": 5, "seed": 3, "extra_body": {**IDS, **said}}
        chat = await client.chat.completions.create(messages=MESSAGES, logprobs=True, **kwargs)
        text = await client.completions.create(prompt="Once", logprobs=0, **kwargs)
    (of_chat,), (of_text,) = chat.choices, text.choices
    names = [one.token for one in of_chat.logprobs.content or []]  # type: ignore[union-attr]
    assert (names == [f"token_id:{token}" for token in of_chat.token_ids]) is named  # type: ignore[attr-defined]
    names = of_text.logprobs.tokens or []  # type: ignore[union-attr]
    assert (names == [f"token_id:{token}" for token in of_text.token_ids]) is named  # type: ignore[attr-defined]


async def test_tools_and_template_arguments_reach_the_prompt(folder: Path) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"query": "x"}'},
    }
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    async with asked(folder, max_model_len=1024) as (_, client):
        answer = await client.chat.completions.create(
            model="model",
            messages=messages,
            tools=[TOOL],  # type: ignore[list-item]
            max_completion_tokens=1,
            extra_body={**IDS, "chat_template_kwargs": {"thinks": False}},
        )
    prompt = TOKENIZER.decode(answer.prompt_token_ids, skip_special_tokens=False)  # type: ignore[attr-defined]
    assert json.dumps(TOOL) in prompt
    assert "<|start|>user\none\ntwo<|end|>" in prompt
    assert '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>' in prompt
    assert prompt.endswith("<|start|>assistant\nnone")


async def test_half_an_emoji_that_a_model_escaped_comes_back_in_the_next_prompt(folder: Path) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "search", "arguments": r'{"query": "\ud83d"}'},
    }
    messages: list[Any] = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
    async with asked(folder, max_model_len=1024) as (_, client):
        answer = await client.chat.completions.create(
            model="model", messages=messages, max_completion_tokens=1, extra_body=IDS
        )
    prompt = TOKENIZER.decode(answer.prompt_token_ids, skip_special_tokens=False)  # type: ignore[attr-defined]
    assert '{"query": "\ufffd"}' in prompt


def test_calls_are_read_in_the_notation_of_the_template_and_left_alone_otherwise() -> None:
    good = 'I look.\n<tool_call>\n{"name": "search", "arguments": {"q": "é"}}\n</tool_call>'
    text, (call,) = read_tool_calls(good)
    assert (text, call["function"]["name"], call["function"]["arguments"]) == (
        "I look.",
        "search",
        '{"q": "é"}',
    )
    two = '<tool_call>{"name": "a"}</tool_call>\n<tool_call>{"name": "b"}</tool_call>'
    text, calls = read_tool_calls(two)
    assert text is None and [one["function"]["name"] for one in calls] == ["a", "b"]
    for bad in ("plain", "<tool_call>{", '<tool_call>{"name": 3}</tool_call>', "<tool_call>[]</tool_call>"):
        assert read_tool_calls(bad) == (bad, [])


TAGGED = """I look.
<tool_call>
<function=search>
<parameter=query>
if a < b:
  print("</tool>")

</parameter>
<parameter=limit>
3
</parameter>
<parameter=where>
{"lang": ["en"]}
</parameter>
<parameter=deep>
True
</parameter>
<parameter=after>
None
</parameter>
<parameter=other>
7
</parameter>
</function>
</tool_call>
<tool_call>
<function=search>
<parameter=query>3<parameter=limit>about 3</function>"""


def test_calls_in_tags_are_typed_by_the_tools_schema() -> None:
    kinds = {"query": "string", "limit": "integer", "where": "object", "deep": "boolean"}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()}
    properties["after"] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    tool = {"type": "function", "function": {"name": "search", "parameters": {"properties": properties}}}
    fields = ChatFields(messages=MESSAGES, tools=[tool])
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "<tool_call>\n<function={{ name }}>"
    read = call_reader(tokenizer, fields)
    assert read is not None
    text, calls = read(TAGGED)
    assert text == "I look." and [one["function"]["name"] for one in calls] == ["search", "search"]
    first, second = (json.loads(one["function"]["arguments"]) for one in calls)
    assert first == {
        "query": 'if a < b:\n  print("</tool>")\n',
        "limit": 3,
        "where": {"lang": ["en"]},
        "deep": True,
        "after": None,
        "other": "7",
    }
    # What does not fit its type stays a text, as in vLLM, and end tags may be forgotten.
    assert second == {"query": "3", "limit": "about 3"}
    assert read("<function=search></function>")[1][0]["function"]["arguments"] == "{}"
    for bad in ("<tool_call>", '<tool_call>{"name": "search"}', "<tool_call><function=f>x</function>"):
        assert read(bad) == (bad, [])
    tokenizer.chat_template = "<tool_call>{{ call | tojson }}"
    read = call_reader(tokenizer, fields)
    assert read is not None and read(TAGGED) == (TAGGED, [])


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', {"x": 1}),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', {"x": 1}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"type": "function", "name": "f"}', {}),
        (r'{"name": "f", "arguments": {"x": "\ud83d"}}', {"x": "\ud83d"}),
        # No calls: a client could not read what it is called with, or nothing says it.
        *(
            (f'{{"name": "f", "arguments": {one}}}', None)
            for one in ("[1]", '"x"', '{"x": NaN}', '{"x": 1e999}')
        ),
        ('{"name": "f", "arguments": {"x": 1e999}}', None),
        *(('{"name": "f", "x": 1}', None), ('{"name": " ", "arguments": {}}', None)),
        (r'{"name": "\ud83d", "arguments": {}}', None),
    ],
)
def test_arguments_of_a_call_are_an_object_that_clients_can_read(written: str, arguments: Any) -> None:
    text = f"<tool_call>{written}</tool_call>"
    content, calls = read_tool_calls(text)
    assert content == (text if arguments is None else None)
    assert [json.loads(one["function"]["arguments"]) for one in calls] == [arguments] * len(calls)
    assert len(calls) == (arguments is not None)
    assert json_response({"content": content, "calls": calls}).body, "the answer can be sent"


FRAGMENTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {}}',
        "<function=f>",
        "</function>",
        "<think>",
    ),
    *("</think>", '"', "`", " ", "\n", "a", "b <", "<tool", "<func", "think>", "</"),
    *("```\n", "```xml\n", "\n```\n", "\\n", "~~~\r\n"),
)


@pytest.mark.parametrize("tagged", [None, {}])
def test_text_that_was_handed_out_is_the_beginning_of_what_is_read_at_the_end(tagged: Any) -> None:
    rng = random.Random(1)
    early = 0
    call = '<tool_call>{"name": "f"}</tool_call>'
    quoted = [f"a {call}{quote}</think>{end} b" for quote in "\"'`" for end in (quote, quote * 2, "")]
    drawn = ["".join(rng.choices(FRAGMENTS, k=rng.randint(1, 12))) for _ in range(8_000)]
    for text in quoted * 9 + drawn:
        came, given, at = TextBeforeCalls(), "", 0
        while at < len(text):
            piece = text[at : at + rng.choice((1, 1, 2, 5, 40))]
            at += len(piece)
            given += came.add(piece)
        content, _ = read_tool_calls(text, tagged)
        assert (content or "").startswith(given) and came.given == len(given), (text, given, content)
        early += bool(given)
    assert early > 4_000


def test_text_waits_only_while_it_may_belong_to_a_call() -> None:
    came = TextBeforeCalls()
    pieces = ("Let me", " see", ". ", "1 <", " 2 ", "and <tool", "box>", " <tool_call>{", "}</tool_call>")
    said = ("Let me", " see", ".", " 1", " < 2", " and", " <toolbox>", "", "")
    assert tuple(map(came.add, pieces)) == said


async def test_a_sampled_call_is_an_answer_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ids_of('Yes. <tool_call>{"name": "search", "arguments": {}}</tool_call>')
    kwargs: dict[str, Any] = {"model": "model", "messages": MESSAGES, "max_tokens": 500, "tools": [TOOL]}

    async with asked(folder, max_model_len=1024) as (_, client):
        for index in range(2):
            wanted = iter([*text, TOKENIZER.eos_token_id])
            monkeypatch.setattr(
                "pipelinerl.engines.cpu.backend.sample",
                lambda logits, sequences, wanted=wanted: ([next(wanted)], [-1.0]),
            )
            if index == 0:
                answer = await client.chat.completions.create(**kwargs)
            else:
                stream = await client.chat.completions.create(stream=True, **kwargs)
                deltas = [one.choices[0] async for one in stream]
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Yes.")
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "search"  # type: ignore[union-attr]
    assert "".join(one.delta.content or "" for one in deltas) == "Yes."
    (last,) = [one for one in deltas if one.finish_reason]
    assert (last.finish_reason, last.delta.tool_calls[0].function.name) == ("tool_calls", "search")


BAD_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"best_of": 2}, "best_of"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "type 'image_url'",
    ),
    "template": (
        {"messages": [*MESSAGES, {"role": "system", "content": "x"}]},
        "refuses the messages: system comes first",
    ),
    "owned kwargs": ({"chat_template_kwargs": {"tokenize": True}}, "'tokenize'"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 3}, "top_logprobs 3"),
    "tool_choice": ({"tool_choice": "required"}, "tool_choice 'required'"),
    "tool": ({"tools": [{"type": "web_search"}]}, "tools[0].type 'web_search'"),
    "format": ({"response_format": {"type": "json_object"}}, "'json_object'"),
    "arguments": (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
        "no JSON",
    ),
    "empty stop": ({"stop": [""]}, "stop string is empty"),
    "stream options": ({"stream_options": {"include_usage": True}}, "without stream"),
}
BAD_COMPLETIONS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"prompt": []}, "it is empty or mixes them"),
    "mixed": ({"prompt": ["a", 1]}, "it is empty or mixes them"),
    "empty ids": ({"prompt": [[]]}, "the prompt is empty"),
    "id": ({"prompt": [258]}, r"[0, 258)"),
    "echo": ({"prompt": "a", "echo": True}, "echo"),
    "logprobs": ({"prompt": "a", "logprobs": 5}, "logprobs 5"),
    "too many": ({"prompt": ["a"] * 20, "n": 8}, "160 sequences in one request"),
}


async def test_bad_requests_are_one_line_in_openais_shape(folder: Path) -> None:
    import openai

    async with asked(folder, max_waiting=16) as (engine, client):
        for path, cases, base in (
            ("/chat/completions", BAD_CHATS, {"model": "model", "messages": MESSAGES}),
            ("/completions", BAD_COMPLETIONS, {"model": "model"}),
        ):
            for name, (fields, expected) in cases.items():
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.post(path, body={**base, **fields}, cast_to=object)
                body = refused.value.body
                assert isinstance(body, dict) and set(body) == {"message", "type", "param", "code"}, name
                assert expected in body["message"] and "\n" not in body["message"], (name, body)
        with pytest.raises(openai.NotFoundError, match="'gpt' is not served"):
            await client.chat.completions.create(model="gpt", messages=MESSAGES)
        # A refusal of a stream comes before its first byte.
        with pytest.raises(openai.BadRequestError, match="do not fit"):
            await client.chat.completions.create(
                model="model", messages=MESSAGES, max_tokens=512, stream=True
            )
        assert engine.server.engine.metrics.generation_tokens == 0
        assert [one.id async for one in client.models.list()] == ["model"]


async def test_the_path_given_at_the_start_is_a_name_of_the_model(folder: Path) -> None:
    import openai

    async with asked(folder) as (engine, client):
        for name in (str(folder), f"{folder}/", "model"):
            answer = await client.completions.create(model=name, prompt="Once", max_tokens=1)
            assert len(answer.choices) == 1
            card = await client.models.retrieve(name)
            assert (card.id, card.object) == (name, "model")
            assert card.max_model_len == engine.server.settings.max_model_len  # type: ignore[attr-defined]
        for name in ("gpt", str(folder.parent)):
            with pytest.raises(openai.NotFoundError, match="is not served; this is 'model'"):
                await client.models.retrieve(name)


async def test_the_token_route_takes_and_returns_what_clients_of_vllm_expect(folder: Path) -> None:
    async with asked(folder) as (engine, _):
        for logprobs in (0, 1):
            sampling = {"max_tokens": 4, "logprobs": logprobs, "seed": 1}
            body = {"model": str(folder), "token_ids": ids_of("Once"), "sampling_params": sampling}
            (choice,) = (await engine.post("/inference/v1/generate", body))["choices"]
            entries = choice["logprobs"]["content"]
            assert [one["token"] for one in entries] == [f"token_id:{id_}" for id_ in choice["token_ids"]]
            assert [one["token_id"] for one in entries] == choice["token_ids"]
            assert all(one["logprob"] <= 0 for one in entries)
            tops = [one["top_logprobs"] for one in entries if "top_logprobs" in one]
            assert len(tops) == logprobs * len(entries)
            for position, (top,) in enumerate(tops):
                before = ids_of("Once") + choice["token_ids"][:position]
                greedy = {"max_tokens": 1, "temperature": 0.0, "logprobs": 0}
                asked_again = {"token_ids": before, "sampling_params": greedy}
                (best,) = (await engine.post("/inference/v1/generate", asked_again))["choices"]
                (expected,) = best["logprobs"]["content"]
                assert top["token_id"] == expected["token_id"] and top["token"] == expected["token"]
                assert top["logprob"] == pytest.approx(expected["logprob"], abs=1e-5)


async def test_prompts_that_are_too_long_and_answers_of_no_token_are_refused_in_words(folder: Path) -> None:
    import openai

    async with asked(folder, max_model_len=64) as (_, client):
        for prompt, max_tokens, expected in (
            ("a" * 70, 1, "70 prompt tokens leave no room for an answer in the context of 64 tokens"),
            ("a" * 64, None, "64 prompt tokens leave no room .*; shorten the prompt"),
            ("a", 0, "max_tokens 0 asks for no token; ask for 1 to 63"),
            ("a" * 60, 5, "60 prompt tokens and max_tokens 5 do not fit .*; ask for at most 4 tokens"),
        ):
            with pytest.raises(openai.BadRequestError, match=expected):
                await client.completions.create(model="model", prompt=prompt, max_tokens=max_tokens)


async def test_a_model_without_a_tokeniser_says_so(tied_model: Path) -> None:
    import openai

    async with asked(tied_model) as (engine, client):
        with pytest.raises(openai.BadRequestError, match=r"no tokenizer\.json"):
            await client.completions.create(model="model", prompt=[1, 2])
        with pytest.raises(EngineRequestError, match=r"no tokenizer\.json"):
            await engine.client.generate([1], SamplingParams(max_tokens=1, stop=("a",)))
