"""Tasks of the published data set (INTELLECT-3-RL, `logic`) whose answers this repository judges itself.

Only those whose one right answer stands in the row. Pure functions, called by the judge and by the loader.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from domains.math.answers import last_boxed
from pipelinerl.base.thoughts import answer_part

Data = Mapping[str, Any]
"""`game_data` of a row: `question`, `answer` and `metadata`."""
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_SAID = re.compile(r"answer is[:=]?\s*([^\n]*)", re.IGNORECASE)
_YES = ("yes", "true")
_YES_NO = re.compile(r"\b(yes|true|no|false)\b", re.IGNORECASE)
_LIST = re.compile(r"\[[^\[\]]*\]")
_BRACKETS = frozenset("()[]{}<>")
_TYPESET = re.compile(r"\\[A-Za-z]+\s*(?=\{)|\\[ ,;:]|[{}$~]")
"""What LaTeX writes around words and between them: `\\text{A,\\ C}` says `A,C`."""


def _boxed(response: str) -> str | None:
    """What the last box says, without commands of LaTeX."""
    found = last_boxed(response)
    return None if found is None else _TYPESET.sub("", found)


def _letters(response: str, data: Data) -> bool | None:
    """The letters of the true statements, in a box and in whatever order."""
    boxed = _boxed(response)
    if boxed is None:
        return None
    return set(re.findall("[a-z]", re.sub(r"\band\b", "", boxed.lower()))) == set(
        re.findall("[a-z]", data["answer"].lower())
    )


def _number(response: str, data: Data) -> bool | None:
    """A whole number in a box, or nothing but the number."""
    written = (_boxed(response) or response).strip()
    if re.fullmatch(r"-?\d{1,18}", written, re.ASCII) is None:
        return None
    return int(written) == int(data["answer"])


def _words(response: str, data: Data) -> bool | None:
    """Words separated by commas, in a box; blanks do not count."""
    boxed = _boxed(response)
    if boxed is None:
        return None
    return boxed.replace(" ", "").split(",") == data["answer"].replace(" ", "").split(",")


def _yes_no(response: str, data: Data) -> bool | None:
    """Yes or no of each question: bold in the last line, else behind "the answer is", else the last line.

    Bold without either is a label, as in `**Answer:** yes, no`; each answer may be bold by itself.
    """
    last = response.strip().rpartition("\n")[2]
    bold = [words for text in _BOLD.findall(last) if (words := _told(text))]
    told, wanted = _told((_SAID.findall(last) or [last])[-1]), _told(data["answer"])
    if bold:
        told = bold[-1] if len(bold[-1]) >= len(wanted) else [word for words in bold for word in words]
    return told == wanted if told else None


def _told(text: str) -> list[bool]:
    return [word.lower() in _YES for word in _YES_NO.findall(text)]


def _pair(response: str, data: Data) -> bool | None:
    """The last list: the longest stretch and how often it is possible."""
    lists = _LIST.findall(response)
    try:
        found = json.loads(lists[-1])
    except (IndexError, ValueError):
        return None
    wanted = data["metadata"]["records"]["answers"]
    return bool(found[:2] == [wanted["answer_maxLen"], wanted["answer_nums"]])


def _brackets(response: str, data: Data) -> bool | None:
    """The whole sequence and nothing else; blanks and quotation marks do not count."""
    written = "".join(response.split()).strip("\"'")
    if not written or not _BRACKETS.issuperset(written):
        return None
    return bool(written == data["metadata"]["full_sequence"])


JUDGES: dict[str, Callable[[str, Data], bool | None]] = {
    "boolean_expressions": _letters,
    "dyck_language": _brackets,
    "object_counting": _number,
    "time_sequence": _pair,
    "web_of_lies": _yes_no,
    "word_sorting": _words,
}
"""By task: whether a response is right; None where it holds no answer in the task's form."""
_NEEDS = {"dyck_language": ("full_sequence",), "time_sequence": ("records", "answers")}
"""What the metadata of a task must hold; other tasks need `answer`."""


def parsed(game_data: Any) -> Data:
    """`game_data` or `game_data_str` of a row. Raises ValueError for what is no object."""
    try:
        found = json.loads(game_data) if isinstance(game_data, str) else game_data
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        raise ValueError("game_data is no object")
    return found


def check(task: str, data: Data) -> None:
    """Raises ValueError for a task that is not judged here, or data without its answer."""
    if task not in JUDGES:
        raise ValueError(
            f"task {task!r} has a verifier of its own that is not here; known are {', '.join(JUDGES)}; "
            "skip_unknown=true leaves such rows out"
        )
    found: Any = data.get("metadata")
    for key in _NEEDS.get(task, ()):
        found = found.get(key) if isinstance(found, Mapping) else None
    if found is None if task in _NEEDS else not str(data.get("answer") or "").strip():
        raise ValueError(f"task {task}: no answer in game_data")
    if task == "object_counting" and re.fullmatch(r"-?\d{1,18}", str(data["answer"]).strip()) is None:
        raise ValueError(f"task {task}: answer {str(data['answer'])[:40]!r} is no whole number")


def judge_row(task: str, game_data: Any, response: str) -> str:
    """`correct`, `wrong` or `no_answer`. Raises ValueError as `check` does."""
    data = parsed(game_data)
    check(task, data)
    text = answer_part(response)
    found = JUDGES[task](text, {**data, "answer": str(data.get("answer"))}) if text.strip() else None
    return "no_answer" if found is None else "correct" if found else "wrong"
