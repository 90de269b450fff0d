"""Which part of a completion is its answer, where a model thinks first; called by every judge.

A chat template may end the prompt with `<think>`. The completion then holds only `</think>`; other models
write both tags, or none. What stands behind the last `</think>` is the answer in all three cases. Only the
prompt says whether a completion without either is an answer or thoughts that were cut off. Judges therefore
read `LLMCall.completion`, which begins with `<think>` in the second case.
A tag between quotation marks or backticks is quoted, as a program that removes thoughts does, and ends
nothing; so are both tags in a line, with a quotation mark or backtick before them, as in
`r"<think>.*?</think>"`, and tags in a fenced block that do not divide thoughts from an answer: both in one
block, a `<think>`, or any in a block behind the thoughts. Tokens with which other families mark thoughts
stand in `completion` as these two tags.
"""

import re
from collections import deque

OPEN, CLOSE = "<think>", "</think>"
TOKENS = {
    **dict.fromkeys((OPEN, "[THINK]", "<seed:think>", "<|START_THINKING|>", "<thought>"), OPEN),
    **dict.fromkeys((CLOSE, "[/THINK]", "</seed:think>", "<|END_THINKING|>", "</thought>"), CLOSE),
    **dict.fromkeys(("◁think▷", "<longcat_think>", "<|inner_prefix|>", "<|channel>"), OPEN),
    **dict.fromkeys(("◁/think▷", "</longcat_think>", "<|inner_suffix|>", "<channel|>"), CLOSE),
}
"""Tokens that begin or end thoughts: of Magistral and Ministral, Seed-OSS, Command, EXAONE Deep; Kimi-VL,
LongCat, Apertus, Gemma 4. Only tokens of a vocabulary count, not these words in a text."""
CHANNEL, MESSAGE, START, FINAL = "<|channel|>", "<|message|>", "<|start|>", "final"
"""gpt-oss writes `<|channel|>NAME<|message|>TEXT`; only the text of the channel `final` is the answer."""
_BOTH = r"(?<!\w)[rRfFbB]{0,2}[\"'`](?!\s)[^\"'`<\n]{0,40}<think>[^<\n]{0,200}</think>"
"""Both tags in what a quotation mark or backtick begins; an apostrophe has a letter before it."""
_BLANK = r"(?:\\[nrt]){0,4}"
"""Line ends and tabs as programs write them."""
_QUOTED = rf"(?<![\"'`])([\"'`]){_BLANK}</?think>{_BLANK}\1(?![\"'`\w])"
"""A letter behind it begins a quotation of the answer, as in `"no"</think>"Yes"`."""
_TAG = re.compile(rf"{_QUOTED}|{_BOTH}|(</?think>)")
_FENCE = re.compile(
    r"((?:^|</?think>)[ \t>]*)?(`{3,}|~{3,})[ \t]*((?:(?!</?think>)[^`\r\n]+)?)", re.MULTILINE
)


def answer_part(completion: str) -> str:
    """The completion behind its last `</think>`, up to a `<think>` that is not closed.

    Blanks between thoughts and answer are dropped. A completion without either tag is returned as it is.
    """
    start, end = bounds(completion)
    answer = completion[start:end]
    return answer.lstrip() if start else answer


def thoughts_are_open(completion: str) -> bool:
    """Whether a `<think>` stands behind the last `</think>`: the completion ends in its thoughts."""
    return bounds(completion)[1] is not None


def opened_by(prompt: str) -> bool:
    """Whether a prompt ends with `<think>`, so that the completion begins in thoughts."""
    return prompt.rstrip().endswith(OPEN)


def bounds(completion: str, opened: bool = False) -> tuple[int, int | None]:
    """Where the answer starts, blanks included, and where thoughts that stay open end it, if any do.

    `opened`: the prompt ends with `<think>`, so that a completion without `</think>` is thoughts alone.
    """
    start, end = 0, 0 if opened else None
    if "think>" not in completion:  # told at once; the expression looks at every character by itself
        return start, end
    blocks, _ = _fenced(completion)
    quoted_in = None
    for tag in _TAG.finditer(completion):
        if tag[2] is None:
            continue
        while blocks and blocks[0][1] <= tag.start():
            blocks.popleft()
        block = blocks[0] if blocks and blocks[0][0] <= tag.start() else None
        if tag[2] == OPEN and block is not None:
            quoted_in = block
        elif tag[2] == OPEN:
            end = tag.start() if end is None else end
        # The fence of a program that thoughts began may be closed behind them only.
        elif block is None or (block != quoted_in and not (end is None and 0 < start <= block[0])):
            start, end = tag.end(), None
    return start, end


def is_undecided(text: str) -> bool:
    """Whether what comes may yet make a tag the text of a block: one is in a block that has not ended.

    A line that is not over may go on, so that it ends no block.
    """
    for known in (text, text[: text.rfind("\n") + 1]):
        _, begun = _fenced(known)
        if begun is not None and text.find("think>", begun) >= 0:
            return True
    return False


def _fenced(text: str) -> tuple[deque[tuple[int, int]], int | None]:
    """Where each fenced block begins and ends, and where one begins that does not end."""
    found: deque[tuple[int, int]] = deque()
    begun: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        first, marks, info = fence.groups()
        if begun is None:
            begun = fence if first is not None or info else None
        elif first is not None and marks.startswith(begun[2]) and not info:
            found.append((begun.start(2), fence.end()))
            begun = None
    return found, None if begun is None else begun.start(2)
