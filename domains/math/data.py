"""Questions and gold answers: local JSON-lines, JSON or parquet files, or generated arithmetic.

A name is a file, a file of `data_dir` without its ending, or `arithmetic_<anything>`. Nothing is downloaded.
Rows may have the columns of GSM8K (`question`, `answer` with the result behind `####`), MATH (`problem`,
`solution` with a boxed result), DeepScaleR (`problem`, `answer`), Open-Reasoner-Zero (a list of turns), or
any `question`, `problem`, `task` or `prompt` beside an `answer`.
"""

import logging
import math
import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from domains.math.answers import GSM8K_MARK, last_boxed, plain
from domains.math.pool import MAX_GOLD_LENGTH
from domains.math.texts import bare
from domains.rows import checked_rows, find_file
from domains.split import is_held_out

logger = logging.getLogger(__name__)

Problem = dict[str, Any]
DOMAIN = "math"
QUESTIONS = ("question", "problem", "prompt", "task")
"""A `task` beside a prompt is the name of one, as in rows of evaluations."""
ANSWERS = ("answer", "gold", "expected_answer", "final_answer")
ARITHMETIC = "arithmetic"
_NO_FILE = f"give a file, set dataset_loader_params.data_dir, or use {ARITHMETIC}_train"
ARITHMETIC_PROBLEMS = 1000
HELD_OUT = 0.25
"""Share of the questions of generated arithmetic `by_length` that only evaluations ask."""
_CONTEST = re.compile(r"(?:aime|amc)_(20\d\d)(_original)?")
"""Names for which upstream's loader takes the rows of one year, read from `url`. Without the ending it asks
each question 16 times.
"""
_LISTED = re.compile(r",\s|[()\[\]{}]")
"""A comma is one of thousands only in a text without these."""
_MISSING = frozenset({"nan", "<na>", "null", "n/a", "n.a", "#n/a", "tbd", "unknown", "notfound", "proof"})
"""What tables, and NuminaMath with the last two, write for a missing value; `None` may be an answer."""
_TOLD_ELSEWHERE = re.compile(
    r"\(?see\s+(?:the\s+)?(?:solution|explanation|figure|diagram|graph|proof|answer|above|below|attached)\b.*"
    r"|answers?\s+(?:may\s+|will\s+)?vary.*|(?:left|proof)\s+(?:as\s+an\s+exercise|omitted).*|q\.?\s*e\.?\s*d\.?"
    r"|not\s+(?:provided|available|given)|omitted|placeholder|to\s*do|#(?:ref|value|name|num|div/0)[!?]"
    r"|[\[<{]+(?:the\s+)?(?:final\s+)?answer[\]>}]+",
    re.IGNORECASE | re.DOTALL,
)
"""What stands for an answer that the data set does not hold."""
_OPTIONS = ("choices", "options")
_PICTURES = ("image", "images")
_PICTURE = re.compile(r"<image(?:_?\d+)?>|<\|image\w*\|>|<img\b|\\includegraphics\b|!\[[^][]*\]\(")
_SEVERAL = re.compile(r"\S\s*\n\s*\S|[a-z)\d]\.\s+[A-Z][a-z]+ ")
"""Lines, or a sentence behind another one."""
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARKUP = re.compile(
    r"<\|\w+\|>|</\w+>|<br\s*/?>|<(?:pad|unk|img)\b|&(?:[lg]t|amp|nbsp|quot|#\d+);"
    r"|\ufffd|\[asy\]|\\includegraphics\b|\\begin\{tikzpicture\}|!\[[^][]*\]\(|\bhttps?://"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_SOLUTION_WORDS = 6
"""From here on several lines or sentences are no result, as those of a matrix may be."""


def load_problems(
    dataset_names: Sequence[str],
    data_dir: str | None = None,
    max_problems: int | None = None,
    highest: int = 99,
    by_length: bool = False,
) -> list[Problem]:
    """Problems `{id, task, answer, dataset, domain}` of all names in their order.

    `max_problems` bounds each dataset; `highest` and `by_length` are those of `arithmetic`. Raises ValueError
    naming the file, and the line or row, of what cannot be read.
    """
    problems: list[Problem] = []
    for name in dataset_names:
        generated = name.split("_")[0] == ARITHMETIC
        found = arithmetic(name, highest, by_length) if generated else _from_file(name, data_dir)
        for index, (task, answer) in enumerate(found):
            if max_problems is not None and index >= max_problems:
                break
            problems.append(
                {"id": f"{name}-{index}", "task": task, "answer": answer, "dataset": name, "domain": DOMAIN}
            )
    return problems


def arithmetic(name: str, highest: int, by_length: bool = False) -> Iterator[tuple[str, str]]:
    """Sums, differences, products and exact quotients; the same for the same name.

    Numbers from 1 to `highest` are equally likely, so that most have as many digits as `highest`. With
    `by_length` each count of digits is equally likely, so that easy questions stand beside hard ones. Few
    easy ones exist, and names would share them, so the names `arithmetic_test...` have their own.
    """
    if highest < 2:
        raise ValueError(f"highest={highest}: numbers of generated arithmetic must reach 2 at least")
    rng, tests = random.Random(f"{name}:{highest}"), name.startswith(f"{ARITHMETIC}_test")
    made = 0
    while made < ARITHMETIC_PROBLEMS:
        a, b = (_number(rng, highest, by_length) for _ in range(2))
        sign = rng.choice("+-*/")
        question = f"What is {a * b if sign == '/' else a} {sign} {b}?"
        if by_length and is_held_out(question, HELD_OUT) != tests:
            continue
        made += 1
        yield question, str({"+": a + b, "-": a - b, "*": a * b, "/": a}[sign])


def _number(rng: random.Random, highest: int, by_length: bool) -> int:
    if not by_length:
        return rng.randint(1, highest)
    digits = rng.randint(1, len(str(highest)))
    return rng.randint(10 ** (digits - 1), min(highest, 10**digits - 1))


def _from_file(name: str, data_dir: str | None) -> Iterator[tuple[str, str]]:
    path, contest = find_file(name, data_dir, _NO_FILE), _CONTEST.fullmatch(Path(name).stem)
    year, left_out, read = contest and contest[1], 0, 0
    if contest and not contest[2]:
        logger.info("dataset %s: each question is asked once, and 16 times by upstream's loader", name)
    try:
        for found in checked_rows(path, lambda row: None if _is_left_out(row, year) else read_row(row)):
            read, left_out = read + 1, left_out + (found is None)
            if found is not None:
                yield found
    finally:  # a caller that has enough stops reading here
        if left_out:
            logger.info("dataset %s: %d of %d rows left out, as upstream's loader does", name, left_out, read)
    if left_out == read:
        raise ValueError(f"{path}: all {read} rows are of another year in url, or were never verified")


def _is_left_out(row: Any, year: str | None) -> bool:
    """Whether upstream asks no such row: of another year, or with answers none of which was verified."""
    if not isinstance(row, dict):
        return False
    url, verified = row.get("url"), row.get("correctness_math_verify")
    another = year is not None and isinstance(url, str) and year not in url
    return another or (isinstance(verified, list) and not any(verified))


def read_row(row: Any) -> tuple[str, str]:
    """Question and gold answer of a row in any known form. Raises ValueError saying what is missing."""
    if isinstance(row, list):
        return _from_turns(row)
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}, expected an object")
    question = next((row[key] for key in QUESTIONS if row.get(key)), None)
    if question is None:
        raise ValueError(f"no question; columns are {_columns(row)}, expected one of {', '.join(QUESTIONS)}")
    if (listed := next((key for key in _OPTIONS if row.get(key)), None)) is not None:
        raise ValueError(
            f"{listed}: a question is asked without them; put them into its text, and leave them out"
        )
    picture = next((key for key in _PICTURES if row.get(key)), None) or _PICTURE.search(str(question))
    if picture is not None:
        named = picture if isinstance(picture, str) else picture[0]
        raise ValueError(f"{named}: a question is asked without its picture; leave the row out")
    columns = [key for key in ANSWERS if row.get(key) not in (None, "")]
    given = row[columns[0]] if columns else None
    for key in columns[1:]:  # a log of an evaluation has the model's answer beside the gold one
        if plain(result_of(row[key])) != plain(result_of(given)):
            raise ValueError(f"{columns[0]} and {key} differ, {given!r:.60} and {row[key]!r:.60}; keep one")
    if given is None and isinstance(row.get("solution"), str):
        given = last_boxed(row["solution"])
    if given is None:
        raise ValueError(
            f"no answer; columns are {_columns(row)}, expected {', '.join(ANSWERS)} or a boxed solution"
        )
    return _text(question, "question"), result_of(given)


def _columns(row: dict[str, Any]) -> str:
    return ", ".join(list(map(str, row))[:8]) or "none"


def _from_turns(row: list[Any]) -> tuple[str, str]:
    try:
        return _text(row[0]["value"], "question"), result_of(row[1]["ground_truth"]["value"])
    except (IndexError, KeyError, TypeError):
        raise ValueError(
            "a list that is not [{value: question}, {ground_truth: {value: answer}}] (Open-Reasoner-Zero)"
        ) from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} {str(value)[:60]!r}: expected a text")
    refuse_missing(value, what)
    return value


def refuse_missing(text: str, what: str) -> None:
    """Raises ValueError for a text that stands for a missing one; `what` is question or answer."""
    said = text.strip()
    if said.casefold() in _MISSING or (what == "answer" and _TOLD_ELSEWHERE.fullmatch(said)):
        raise ValueError(f"{what} {text[:60]!r}: is missing in the data; leave the row out")


def _says_something(character: str) -> bool:
    """Whether an answer may consist of it: a letter, a digit, a sign of mathematics or a bracket."""
    return unicodedata.category(character)[0] in "LN" or unicodedata.category(character) in ("Sm", "Ps")


def _closed(text: str) -> bool:
    """Whether all braces of TeX that open also close."""
    depth = 0
    for brace in _BRACE.findall(text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def result_of(value: Any) -> str:
    """The bare result: behind GSM8K's mark, inside a box, or as it stands; numbers as written by Python.

    Raises ValueError for what no answer can equal.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"answer {str(value)[:60]!r}: expected a text or a number")
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"answer {value}: is no number that can be compared; leave the row out")
    text = str(value).strip()
    refuse_missing(text, "answer")
    if GSM8K_MARK in text:
        text = text.rpartition(GSM8K_MARK)[2].strip()
        text = text if _LISTED.search(text) else text.replace(",", "")
    result = last_boxed(text)
    if result is None and _SEVERAL.search(text) and len(_WORD.findall(text)) >= _SOLUTION_WORDS:
        raise ValueError(
            f"answer {text[:60]!r}: a solution without a result; put it behind {GSM8K_MARK} or in a box"
        )
    text = (text if result is None else result).strip()
    text = bare(text) or text
    refuse_missing(plain(text), "answer")
    if not any(map(_says_something, plain(text))):
        raise ValueError(f"answer {str(value)[:60]!r}: holds no result")
    if (markup := _MARKUP.search(text)) is not None:
        raise ValueError(
            f"answer {text[:60]!r}: holds {markup[0]}, which no answer has; give the bare result"
        )
    if not _closed(text):
        raise ValueError(f"answer {text[:60]!r}: its braces do not match; it was cut, or is no formula")
    if len(text) > MAX_GOLD_LENGTH:
        raise ValueError(f"answer of {len(text)} characters; at most {MAX_GOLD_LENGTH} are compared")
    return text
