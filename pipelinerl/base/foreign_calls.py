"""Tool calls as other families of models write them: Mistral's and Llama's are read, others are recognised.

Called by the judge of `fn_calling`, and by `async_llm` for answers whose calls an engine left in the text.

    [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]        Mistral to 7B v0.3, Nemo
    [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}           Mistral from Small 3.1, also with [CALL_ID]
    <|python_tag|>{"name": "f", "parameters": {"x": 1}}        Llama 3.1 and later; several separated by `;`
    <function=f>{"x": 1}</function>                            Llama 3.1 with functions of the user
"""

import json
import re
from typing import Any

ARGUMENTS = ("arguments", "parameters", "args", "input")
"""How models name a call's arguments in JSON."""
MISTRAL, LLAMA = "[TOOL_CALLS]", "<|python_tag|>"
_NOT_QUOTED = r"(?<![\"'`])"
_READ = re.compile(rf"{_NOT_QUOTED}(?:{re.escape(MISTRAL)}|{re.escape(LLAMA)})")
_UNREAD = re.compile(
    _NOT_QUOTED
    + r"(?:<｜tool[▁_]calls?[▁_]begin｜>|<｜DSML｜|<\|tool_calls?_(?:section_)?begin\|>|<\|tool_calls?\|?>"
    r"|<TOOLCALL>|<\|START_ACTION\|>|<\|action_start\|>|\bto=functions\.\w|<\|recipient\|>"
    r"|<start_function_call>|^call:\w+\{|<function_calls>|<invoke name=|<\w+[:_]tool_call>|<arg_key>"
    r"|```tool_code|<\|tool_call_start\|>|<function_?call>|<tool_use>|<\|tools_prefix\|>|<\|python_start\|>"
    r"|functools\[\s*\{|✿FUNCTION✿|^Action Input:|^Action:\s*```)",
    re.MULTILINE,
)
"""DeepSeek and Step, Kimi, Phi, Granite, Gemma 4 and Solar, Nemotron, Command, InternLM, gpt-oss,
Functionary, FunctionGemma, MiniMax, Seed-OSS and LongCat, GLM, Gemma, Liquid, xLAM and Glaive, prompts with
tags of their own, Apertus, Llama 4, Phi-4-mini, Qwen-Agent, ReAct, and Command R."""
_OWN = re.compile(_NOT_QUOTED + r"(?:<tool_call>|<function=)")
_ENDS = ("</s>", "<|eom_id|>", "<|eot_id|>", "<|end_of_text|>")
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{)", re.ASCII)
_CUT = re.compile(r"[A-Za-z_][\w.-]*\s*\[(?:ARGS|CALL_ID)\]", re.ASCII)
_IN_TAG = re.compile(r"\s*<function=([^<>\n]+)>\s*(?=\{)")
_TAG_END = re.compile(r"\s*(?:</function>|$)")

Called = tuple[str, dict[str, Any]]


def notation(text: str, read: bool = False) -> str | None:
    """The first mark of another family's calls that no function here reads; `read`: also of those it does."""
    found = [one for one in (_UNREAD.search(text), _READ.search(text) if read else None) if one]
    return min(found, key=lambda one: one.start())[0] if found else None


def left_in_text(text: str) -> str | None:
    """The first mark of a call, of whatever family, in a text of which an engine has read no call."""
    if (own := _OWN.search(text)) is not None:
        return own[0]
    return notation(text, read=True)


def marked_parts(text: str) -> list[str]:
    """What follows each of Mistral's and Llama's marks; empty where there is none outside quotes."""
    return [_without_end(part) for part in _READ.split(text)[1:]]


def _without_end(text: str) -> str:
    end, before = len(text), -1
    while end != before:
        before, end = end, len(text[:end].rstrip()) if text[end - 1 : end].isspace() else end
        end -= next((len(mark) for mark in _ENDS if text.endswith(mark, 0, end)), 0)
    return text[:end].strip()


def begins_named(text: str) -> bool:
    """Whether `f[ARGS]` or `f{` stands first, however it goes on."""
    return _NAMED.match(text) is not None or _CUT.match(text) is not None


def named_calls(text: str) -> list[Called] | None:
    """`f[ARGS]{...}`, `f{...}`, one behind another, and nothing else; None for any other text."""
    return _calls(text, _NAMED, None)


def function_tags(text: str) -> list[Called] | None:
    """`<function=f>{...}</function>`, one behind another; the last end may be cut off. None as above."""
    return _calls(text, _IN_TAG, _TAG_END)


def _calls(text: str, begins: re.Pattern[str], ends: re.Pattern[str] | None) -> list[Called] | None:
    found: list[Called] = []
    at, text = 0, text.strip()
    while at < len(text):
        if (begin := begins.match(text, at)) is None:
            return None
        try:
            arguments, at = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            return None
        if ends is not None:
            if (end := ends.match(text, at)) is None:
                return None
            at = end.end()
        found.append((begin[1].strip(), arguments))
        at += len(text[at:]) - len(text[at:].lstrip())
    return found or None
