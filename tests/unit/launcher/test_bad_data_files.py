"""Data files that nobody can train on, given to the launcher: one line with file, place and cause."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.one_line import check_one_line
from tests.unit.launcher.conftest import ROOT, Validate

EXAMPLES = ROOT / "domains/privacy_hopqa/examples"
CHAIN = json.loads((EXAMPLES / "chains_train.jsonl").read_text().splitlines()[0])


def row(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


GOOD_RARO = row(question="q", expert_answer="a")
RARO: list[tuple[bytes, str]] = [
    (b"", "data.jsonl"),
    (b"{", "data.jsonl:1"),
    (b"\xff\xfe", "data.jsonl:1"),
    (b"[1]", "data.jsonl:1"),
    (b'"text"', "data.jsonl:1"),
    (GOOD_RARO + b"\n{}", "data.jsonl:2"),
    (row(question="q"), "expert_answer"),
    (row(expert_answer="a"), "question"),
    (row(question=["q"], expert_answer="a"), "question is ['q']"),
    (row(question=True, expert_answer="a"), "question is True"),
    (row(question="", expert_answer="a"), "question"),
    (row(question="q", expert_answer=""), "expert_answer"),
    (row(question="q", expert_answer=["a"]), "expert_answer"),
    (row(question="q", expert_answer="x" * 5000), "5000"),
    (row(question="q\ud83d", expert_answer="a"), "data.jsonl:1: question holds half an emoji"),
]


def chain(**fields: Any) -> bytes:
    return json.dumps({**CHAIN, **fields}).encode()


def hop(**fields: Any) -> bytes:
    return chain(hops=[{**CHAIN["hops"][0], **fields}, *CHAIN["hops"][1:]])


PRIVACY: list[tuple[bytes, str]] = [
    (b"", "data.jsonl"),
    (b"{", "data.jsonl:1"),
    (b"\xff", "data.jsonl:1"),
    (b"5", "data.jsonl:1"),
    (b"{}", "data.jsonl:1"),
    (chain(hops=[]), "hops"),
    (chain(hops=5), "hops"),
    (chain(task_id=None), "task_id"),
    (hop(answer=None), "answer"),
    (hop(hop_number="one"), "hop_number"),
    (hop(question="Which \ud83d?"), "data.jsonl:1: hops[0].question holds half an emoji"),
]

MATH: list[tuple[bytes, str]] = [
    (b"", "data.jsonl: holds no question"),
    (b"{", "data.jsonl:1"),
    (b"\xff", "data.jsonl:1"),
    (b"7", "data.jsonl:1: a int"),
    (b"{}", "data.jsonl:1: no question"),
    (row(question="q"), "no answer; columns are question"),
    (row(question="q", answer=""), "no answer"),
    (row(question=["q"], answer="1"), "['q']"),
    (row(problem="q", solution="no box"), "no answer"),
    (row(question="q", answer="1") + b"\n" + row(question="q", answer="####"), "data.jsonl:2"),
    (b"[]", "data.jsonl:1"),
    (row(question="q", answer="\ude00"), "data.jsonl:1: answer holds half an emoji"),
]


def raro(path: Path) -> list[str]:
    files = f"raro.data.files={{train: {path}, test: {path}}}"
    return ["+domain=raro", "raro.data.source=jsonl", files]


def privacy(path: Path) -> list[str]:
    return [
        "+domain=privacy_hopqa",
        f"privacy_hopqa.final_train_dataset_path={path}",
        f"privacy_hopqa.final_test_dataset_path={EXAMPLES / 'chains_val.jsonl'}",
        f"privacy_hopqa.task_data_root={EXAMPLES / 'tasks'}",
        f"privacy_hopqa.web_corpus_path={EXAMPLES / 'web.jsonl'}",
    ]


def math(path: Path) -> list[str]:
    return ["+domain=math", f"train_dataset_names=[{path}]"]


CASES = (
    [(raro, *case) for case in RARO]
    + [(privacy, *case) for case in PRIVACY]
    + [(math, *case) for case in MATH]
)


@pytest.mark.parametrize(("domain", "content", "value"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_the_launcher_refuses_a_bad_file(
    validate: Validate, tmp_path: Path, domain: Callable[[Path], list[str]], content: bytes, value: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    status, said = validate(*domain(path))
    assert status == 2
    check_one_line(said, value, f"{content[:80]!r}")


@pytest.mark.parametrize("domain", [privacy, math], ids=lambda v: v.__name__)
def test_the_same_command_takes_a_good_file(
    validate: Validate,
    tmp_path: Path,
    domain: Callable[[Path], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(chain() if domain is privacy else row(question="q", answer="1"))
    assert validate(*domain(path)) == (0, "")


ABSENT: list[tuple[list[str], str]] = [
    (raro(Path("/no/such.jsonl")), "/no/such.jsonl"),
    (["+domain=raro", "raro.data.source=jsonl"], "raro.data.files.train"),
    (["+domain=raro", "raro.data.source=csv"], "raro.data.source"),
    (privacy(Path("/no/such.jsonl")), "/no/such.jsonl"),
    (math(Path("/no/such.jsonl")), "/no/such.jsonl"),
    (math(Path("/no/such.csv")), "/no/such.csv"),
    ([*math(Path("arithmetic_a")), "dataset_loader_params.highest=0"], "highest=0"),
]


@pytest.mark.parametrize(("arguments", "value"), ABSENT)
def test_an_absent_file_or_source_is_named(validate: Validate, arguments: list[str], value: str) -> None:
    status, said = validate(*arguments)
    assert status == 2
    check_one_line(said, value)
