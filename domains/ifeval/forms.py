"""Checks of form: lists, marks, sections, beginnings and endings, each `(response, kwargs) -> bool`.

The names and the meaning of their arguments are those of the published IFEval data.
"""

import json
import re

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
TWO = "******"
_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
"""Markers that may be written with blanks."""


def number_placeholders(response: str, num_placeholders: int) -> bool:
    """At least as many `[...]` within a line; an empty `[]` counts."""
    # Not by one pattern: each bracket that nothing closes would be searched for to the end of its line.
    return sum(map(_pairs, response.split("\n"))) >= num_placeholders


def _pairs(line: str) -> int:
    """Opening brackets with a closing one behind them, none counted twice."""
    count, at = 0, line.find("[")
    while at >= 0 and (end := line.find("]", at)) >= 0:
        count, at = count + 1, line.find("[", end)
    return count


def postscript(response: str, postscript_marker: str) -> bool:
    """The marker, in any case, anywhere in the response."""
    pattern = _POSTSCRIPTS.get(postscript_marker.strip(), re.escape(postscript_marker.strip().lower()))
    return re.search(pattern, response.lower()) is not None


def number_bullet_lists(response: str, num_bullets: int) -> bool:
    """Exactly as many lines that begin with `*` or `-`; a line that begins with `**` is none."""
    return len(re.findall(r"^[^\S\n]*(?:\*[^*\n]|-)", response, re.MULTILINE)) == num_bullets


def constrained_response(response: str) -> bool:
    """One of the three answers, as it stands, somewhere in the response."""
    return any(option in response for option in OPTIONS)


def number_highlighted_sections(response: str, num_highlights: int) -> bool:
    """At least as many `*...*` or `**...**` within a line that hold something."""
    found = re.findall(r"\*\*([^\n*]*)\*\*|\*([^\n*]*)\*", response)
    return sum(bool("".join(inside).strip()) for inside in found) >= num_highlights


def multiple_sections(response: str, section_spliter: str, num_sections: int) -> bool:
    """At least as many headings of the word and a number, such as `SECTION 2`."""
    heading = rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?"
    return len(re.split(heading, response)) - 1 >= num_sections


def json_format(response: str) -> bool:
    """The whole response is JSON, also in a fence of backticks; NaN is none."""
    text = re.sub(r"\A```(?:json)?|```\Z", "", response.strip(), flags=re.IGNORECASE).strip()
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(name)


def title(response: str) -> bool:
    """`<<...>>` within a line, with something between."""
    return any(
        line[start + 2 : end].strip("<> ")
        for line in response.split("\n")
        if 0 <= (start := line.find("<<")) < (end := line.rfind(">>"))
    )


def two_responses(response: str) -> bool:
    """Two different answers with six asterisks between; nothing more than blanks outside of them."""
    parts = [part.strip() for part in response.split(TWO)]
    if any(not part for part in parts[1:-1]):
        return False
    answers = [part for part in parts if part]
    return len(answers) == 2 and answers[0] != answers[1]


def repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    """The response begins with the prompt, in any case."""
    return response.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(response: str, end_phrase: str) -> bool:
    """The response ends with the phrase, in any case; a quotation mark may close it."""
    return response.strip().strip('"').strip().lower().endswith(end_phrase.strip().lower())


def quotation(response: str) -> bool:
    """The whole response stands between double quotation marks; two of them alone are enough."""
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'
