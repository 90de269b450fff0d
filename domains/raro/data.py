"""Questions and expert answers: Countdown from a generator, everything else from local files.

The loader of `raro` and its presets. Every problem is `{id, question, expert_answer, task, split, dataset,
domain}`. What only a verifier reads: `numbers` and `target` of Countdown, `result` of mathematics.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from domains.blocks import Block, validated
from domains.math.answers import has_box, last_boxed
from domains.math.data import GSM8K_MARK, refuse_missing, result_of
from domains.math.pool import MAX_GOLD_LENGTH
from domains.raro.generator import CountdownSpec, generate
from domains.raro.normalize import Task, normalize
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN, holds_verdict
from domains.rows import rows

Problem = dict[str, Any]
DOMAIN = "raro"


class FieldNames(Block):
    """Names of the columns in a file."""

    question: str = "question"
    expert_answer: str = "expert_answer"
    id: str = "id"
    result: str | None = None
    """The result of a written solution of `deepmath`; null: what the solution boxes last."""


class DataSettings(Block):
    """Where questions come from."""

    source: Literal["countdown", "jsonl", "deepmath", "poetry"] = "countdown"
    """`jsonl`: any questions and answers; `deepmath`: mathematics, which math-verify compares; `poetry`."""
    countdown: CountdownSpec = CountdownSpec()
    """The generator's settings."""
    files: dict[str, str] = Field(default_factory=dict)
    """Split -> local file: JSON lines, or a list of rows in .json or .parquet."""
    fields: FieldNames = FieldNames()
    """Names of the columns."""
    answer_form: Literal["result", "solution"] | None = None
    """What an answer is, alike for both sides: a bare result, which is compared, or a written solution, whose
    text never is. `deepmath` must say it; a poem is written, everything else a result unless said."""
    max_answer_chars: PositiveInt = 2048
    """Longest expert answer."""

    @model_validator(mode="after")
    def _form_is_said(self) -> "DataSettings":
        source, form = self.source, self.answer_form
        if source == "deepmath" and form is None:
            raise ValueError("answer_form: say what an answer of deepmath is, result or solution")
        only = {"poetry": "solution", "countdown": "result"}.get(source)
        if form is not None and only is not None and form != only:
            raise ValueError(f"answer_form={form}: an answer of {source} is a {only}; leave it out")
        if self.fields.result is not None and (source, form) != ("deepmath", "solution"):
            raise ValueError(
                "fields.result: only solutions of deepmath have a result of their own; remove it"
            )
        return self

    @property
    def task(self) -> Task:
        """Which normaliser and prompt the answers have."""
        if self.source in ("countdown", "poetry"):
            return self.source
        if self.answer_form == "solution":
            return "solution"
        return "math" if self.source == "deepmath" else "text"

    @property
    def verifiable(self) -> bool:
        """Whether a verifier can tell right from wrong; of poems and solutions without a result none can."""
        return self.task in ("countdown", "text", "math") or self.source == "deepmath"


def load_problems(dataset_names: Sequence[str], data: dict[str, Any] | None = None) -> list[Problem]:
    """Problems of the splits named, in order. Raises ValueError naming the setting, or file and line."""
    settings = data_settings(data or {})
    if settings.source == "countdown":
        return [problem for split in dataset_names for problem in _countdown(settings, split)]
    return [problem for split in dataset_names for _, problem in located(settings, split)]


def data_settings(values: dict[str, Any]) -> DataSettings:
    """Typed settings from a plain mapping. Raises ValueError with one line."""
    return validated(values, "raro.data", DataSettings)


def _countdown(settings: DataSettings, split: str) -> list[Problem]:
    labels = _labels("countdown", split)
    items = generate(settings.countdown, split)
    return [{**asdict(item), "numbers": list(item.numbers), **labels} for item in items]


def _labels(task: str, split: str) -> Problem:
    return {"task": task, "split": split, "dataset": split, "domain": DOMAIN}


def located(settings: DataSettings, split: str) -> list[tuple[str, Problem]]:
    """Problems of a split's file, each with its place. Raises ValueError naming the setting or the place."""
    if split not in settings.files:
        known = ", ".join(sorted(settings.files)) or "none"
        raise ValueError(f"raro.data.files.{split}: no file for this split; files are given for {known}")
    path = Path(settings.files[split])
    if not path.is_file():
        raise ValueError(f"raro.data.files.{split}={path}: no such file")
    problems: dict[str, Problem] = {}
    places: list[str] = []
    column, named = settings.fields.id, settings.fields.id == "id"  # which files may lack
    for where, record in rows(path):
        problem = _checked(record, settings, split, where)
        named |= column in record
        earlier = problems.setdefault(problem["id"], problem)
        if earlier != problem and record.get(column) is None:
            # The question again with another answer, as poems to one prompt are: a problem of its own.
            problem["id"] = _hash(f"{problem['question']}\0{problem['expert_answer']}")
            earlier = problems.setdefault(problem["id"], problem)
        for key in ("question", "expert_answer", "result"):
            if earlier.get(key) != problem.get(key):
                raise ValueError(f"{where}: id {problem['id']!r} already names another {key}")
        if earlier is problem:
            places.append(where)
    if not problems:
        raise ValueError(f"raro.data.files.{split}={path}: holds no question")
    if not named:
        raise ValueError(f"raro.data.fields.id={column}: no row of {path} has it; leave it out")
    return list(zip(places, problems.values(), strict=True))


def _checked(record: Any, settings: DataSettings, split: str, where: str) -> Problem:
    if not isinstance(record, dict):
        raise ValueError(f"{where}: a {type(record).__name__}, expected an object")
    names = settings.fields
    question = _text(record, names.question, where)
    written = _text(record, names.expert_answer, where)
    answer = normalize(settings.task, written)
    if not answer:
        raise ValueError(
            f"{where}: {names.expert_answer} is {record[names.expert_answer]!r}, expected a result"
        )
    try:
        refuse_missing(question, names.question)
        refuse_missing(written, names.expert_answer)
        answer = normalize("math", result_of(written)) if settings.task == "math" else answer
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if settings.task == "text" and (GSM8K_MARK in written or has_box(written)):
        raise ValueError(
            f"{where}: {names.expert_answer} {written[:40]!r}: as a text it equals no answer; results in "
            "mathematics are compared with raro.data.source=deepmath"
        )
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
    result = _result(record, answer, settings, where) if settings.source == "deepmath" else None
    return {
        "id": str(id_) if id_ is not None else _hash(question),
        "question": question,
        "expert_answer": answer,
        **({} if result is None else {"result": result}),
        **_labels(settings.task, split),
    }


def _hash(text: str) -> str:
    """The id of a row without one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _result(record: dict[str, Any], answer: str, settings: DataSettings, where: str) -> str:
    """What an answer in mathematics must equal. Raises ValueError for a solution without a result."""
    names = settings.fields
    found: str | None = answer
    if names.result is not None:
        found = _text(record, names.result, where)
    elif settings.task == "solution":
        found = last_boxed(answer)
    result = normalize("math", found or "")
    if not result:
        raise ValueError(
            f"{where}: {names.result or names.expert_answer} holds no result; box it in the solution, or "
            "name its column in raro.data.fields.result"
        )
    if len(result) > MAX_GOLD_LENGTH:
        raise ValueError(f"{where}: a result of {len(result)} characters; {MAX_GOLD_LENGTH} are compared")
    try:
        return normalize("math", result_of(result))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _text(record: dict[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
        raise ValueError(f"{where}: {name} is {value!r}, expected text")
    return str(value).strip()
