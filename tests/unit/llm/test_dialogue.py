"""Dialogues grow by appending ids, at the cost of the new exchange and not of the whole dialogue."""

import numpy as np
import pytest

from pipelinerl.base import tokenizing
from pipelinerl.base.tokenizing import continue_dialogue, decode, encode, render_chat
from tests.support.tiny_model import TEMPLATE, build_tokenizer

NUMBERED = (
    "{% for m in messages %}{{ loop.index }}<{{ m['role'][0] }}>{{ m['content'] }}<e>{% endfor %}"
    "{% if add_generation_prompt %}{{ messages | length + 1 }}<a>{% endif %}"
)
SYSTEM_FIRST = (
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system message') }}{% endif %}" + TEMPLATE
)
QUESTION_ECHO = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}<e>{% endfor %}"
    "{% if add_generation_prompt %}<u>{{ messages[0]['content'] }}<a>{% endif %}"
)


def tokenizer_with(template):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def play(tokenizer, first, turns):
    """Prompts and messages of a dialogue with a user; every reply is `ok` and an end of turn."""
    messages, prompts = list(first), [encode(tokenizer, render_chat(tokenizer, first))]
    for turn in range(turns):
        new = [{"role": "user", "content": f"q{turn}"}]
        output = np.append(encode(tokenizer, "ok"), tokenizer.eos_token_id).astype(np.int32)
        prompts.append(continue_dialogue(tokenizer, messages, prompts[-1], output, new))
        messages += [{"role": "assistant", "content": "ok"}, *new]
    return prompts, messages


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(tokenizing, "_needs_whole_dialogue", {})


@pytest.mark.parametrize("template", [TEMPLATE, NUMBERED, SYSTEM_FIRST])
@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "be kind"}]])
def test_appending_gives_what_rendering_the_whole_dialogue_gives(template, system):
    if template == SYSTEM_FIRST and not system:
        pytest.skip("the template refuses such a dialogue")
    tokenizer = tokenizer_with(template)
    prompts, messages = play(tokenizer, [*system, {"role": "user", "content": "hi"}], 6)
    assert decode(tokenizer, prompts[-1], False) == render_chat(tokenizer, messages)


def test_only_the_last_exchange_is_rendered_once_the_template_was_seen_not_to_look_back(monkeypatch):
    rendered = []
    original = tokenizing.render_chat
    monkeypatch.setattr(
        tokenizing, "render_chat", lambda t, m, **k: (rendered.append(len(m)), original(t, m, **k))[1]
    )
    play(tokenizer_with(TEMPLATE), [{"role": "user", "content": "hi"}], 10)
    assert rendered == [3, 5, *[3] * 9]  # at the second turn both ways are compared
    rendered.clear()
    play(tokenizer_with(NUMBERED), [{"role": "user", "content": "hi"}], 10)
    assert rendered == [3, 5, *[3], *range(7, 23, 2)]


def test_a_template_that_quotes_the_beginning_is_rendered_whole():
    tokenizer = tokenizer_with(QUESTION_ECHO)
    prompts, _ = play(tokenizer, [{"role": "user", "content": "hi"}], 4)
    assert all(decode(tokenizer, prompt, False).endswith("<u>hi<a>") for prompt in prompts)


def test_what_was_seen_of_a_template_is_remembered_for_so_many_dialogues_only(monkeypatch):
    monkeypatch.setattr(tokenizing, "_ROLES_REMEMBERED", 3)
    tokenizer = tokenizer_with(TEMPLATE)
    for turns in range(8):
        earlier = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]
        new = [{"role": "user", "content": "more"}] + [{"role": "assistant", "content": "ok"}] * turns
        output = np.append(encode(tokenizer, "ok"), tokenizer.eos_token_id).astype(np.int32)
        continue_dialogue(tokenizer, [*earlier, *new], encode(tokenizer, "x"), output, new[:1])
        assert 0 < len(tokenizing._needs_whole_dialogue) <= 3


def test_parts_of_text_and_calls_reach_the_template_as_engines_give_them():
    tokenizer = tokenizer_with(
        "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    broken = {"function": {"name": "add", "arguments": '{"a": '}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "so", "tool_calls": [call, broken]},
        {"role": "user", "content": [{"type": "text", "text": "three"}], "tool_calls": None},
    ]
    assert render_chat(tokenizer, messages) == '<u>one\ntwo<a>so{"a": 1}"{\\"a\\": "<u>three'
    assert call["function"]["arguments"] == '{"a": 1}' and len(messages[0]["content"]) == 2


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "data:"}}, {"image": "a.png"}, {"video_url": "a.mp4"}]
)
def test_pictures_are_refused_also_without_a_type(part):
    tokenizer = tokenizer_with("{{ messages[0].content }}")
    text = {"type": "text", "text": "which?", "image": None}
    assert render_chat(tokenizer, [{"role": "user", "content": [text]}]) == "which?"
    with pytest.raises(ValueError, match="a message holds a picture"):
        render_chat(tokenizer, [{"role": "user", "content": [part, text]}])
