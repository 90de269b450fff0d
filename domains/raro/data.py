"""Questions and expert answers: Countdown from a generator, everything else from local JSON-lines files.

The loader of `raro` and its presets. Every problem is `{id, question, expert_answer, task, split, dataset,
domain}`; Countdown adds `numbers` and `target`, which only the verifier reads.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from domains.blocks import Block, validated
from domains.raro.generator import CountdownSpec, generate
from domains.raro.normalize import Task, normalize
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN, holds_verdict

Problem = dict[str, Any]
DOMAIN = "raro"


class FieldNames(Block):
    """Names of the columns in a file."""

    question: str = "question"
    expert_answer: str = "expert_answer"
    id: str = "id"


class DataSettings(Block):
    """Where questions come from."""

    source: Literal["countdown", "jsonl", "deepmath", "poetry"] = "countdown"
    """`jsonl`: any questions and answers; `deepmath` and `poetry`: the same with their own normaliser."""
    countdown: CountdownSpec = CountdownSpec()
    """The generator's settings."""
    files: dict[str, str] = Field(default_factory=dict)
    """Split -> local JSON-lines file."""
    fields: FieldNames = FieldNames()
    """Names of the columns."""
    answer_form: Literal["result", "solution"] | None = None
    """What an answer is, alike for both sides: a bare result or a written solution. DeepMath and poetry."""
    max_answer_chars: PositiveInt = 2048
    """Longest expert answer."""

    @model_validator(mode="after")
    def _form_is_said(self) -> "DataSettings":
        if self.source in ("deepmath", "poetry") and self.answer_form is None:
            raise ValueError(f"answer_form: say what an answer of {self.source} is, result or solution")
        return self

    @property
    def task(self) -> Task:
        """Which normaliser the answers go through."""
        if self.source == "countdown":
            return "countdown"
        return "poetry" if self.source == "poetry" else "text"


def load_problems(dataset_names: Sequence[str], data: dict[str, Any] | None = None) -> list[Problem]:
    """Problems of the splits named, in order. Raises ValueError naming the setting, or file and line."""
    settings = data_settings(data or {})
    of_split = _countdown if settings.source == "countdown" else _file
    return [problem for split in dataset_names for problem in of_split(settings, split)]


def data_settings(values: dict[str, Any]) -> DataSettings:
    """Typed settings from a plain mapping. Raises ValueError with one line."""
    return validated(values, "raro.data", DataSettings)


def _countdown(settings: DataSettings, split: str) -> list[Problem]:
    labels = _labels("countdown", split)
    items = generate(settings.countdown, split)
    return [{**asdict(item), "numbers": list(item.numbers), **labels} for item in items]


def _labels(task: str, split: str) -> Problem:
    return {"task": task, "split": split, "dataset": split, "domain": DOMAIN}


def _file(settings: DataSettings, split: str) -> list[Problem]:
    if split not in settings.files:
        known = ", ".join(sorted(settings.files)) or "none"
        raise ValueError(f"raro.data.files.{split}: no file for this split; files are given for {known}")
    path = Path(settings.files[split])
    if not path.is_file():
        raise ValueError(f"raro.data.files.{split}={path}: no such file")
    problems: dict[str, Problem] = {}
    for number, record in _records(path):
        problem = _checked(record, settings, split, f"{path}:{number}")
        earlier = problems.setdefault(problem["id"], problem)
        if earlier["question"] != problem["question"]:
            raise ValueError(f"{path}:{number}: id {problem['id']!r} already names another question")
    if not problems:
        raise ValueError(f"raro.data.files.{split}={path}: holds no question")
    return list(problems.values())


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: no JSON: {error.msg}") from None
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason})") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number}: a {type(record).__name__}, expected an object")
            yield number, record


def _checked(record: dict[str, Any], settings: DataSettings, split: str, where: str) -> Problem:
    names = settings.fields
    question = _text(record, names.question, where)
    answer = normalize(settings.task, _text(record, names.expert_answer, where))
    if holds_verdict(answer):
        raise ValueError(f"{where}: {names.expert_answer} holds a verdict tag, which could steer the critic")
    if ANSWER_OPEN in answer or ANSWER_CLOSE in answer:
        raise ValueError(f"{where}: {names.expert_answer} holds {ANSWER_OPEN} or {ANSWER_CLOSE}; remove it")
    if len(answer) > settings.max_answer_chars:
        raise ValueError(
            f"{where}: {names.expert_answer} has {len(answer)} characters; "
            f"raro.data.max_answer_chars is {settings.max_answer_chars}"
        )
    id_ = record.get(names.id)
    return {
        "id": str(id_) if id_ is not None else hashlib.sha256(question.encode()).hexdigest()[:16],
        "question": question,
        "expert_answer": answer,
        **_labels(settings.task, split),
    }


def _text(record: dict[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
        raise ValueError(f"{where}: {name} is {value!r}, expected text")
    return str(value).strip()
