"""Loading chains: `load_problems(["train"], final_train_dataset_path=..., task_data_root=...)`.

A chain file holds one JSON object per line. A row that cannot be used is an error that names file and line.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.data.chains import Chain, parse_chain, parse_task_id
from domains.rows import HALF_EMOJI, half_emoji_in

DOMAIN = "privacy_hopqa"
SPLITS = ("train", "val", "test")
_ALIASES = {"final": "final", "validation": "val"}
_ALIASES |= {name: split for split in SPLITS for name in (split, f"final_{split}")}
CARRIED = (
    *("n_hops", "n_question_hops", "n_unique_docs", "n_cross_doc_transitions"),
    *("global_question", "expected_doc_ids", "metadata", "confidence", "verdict", "source_file"),
)
"""Fields of a row that travel with the problem and decide nothing."""

_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""What stands for a byte that could not be decoded; no line of UTF-8 has one."""


def load_problems(
    dataset_names: Sequence[str],
    *,
    final_dataset_path: str | None = None,
    final_train_dataset_path: str | None = None,
    final_val_dataset_path: str | None = None,
    final_test_dataset_path: str | None = None,
    task_data_root: str | None = None,
    max_examples: int | None = None,
) -> list[dict[str, Any]]:
    """Problems of the named datasets, with `id` contiguous over all files.

    A name is a path to a chain file, or `final`, `train`, `val` or `test` (also `validation`, `final_*`, and
    each with the prefix `privacy_hopqa_`). `max_examples` cuts the whole list. A problem's `chain` is a
    `Chain`. Raises ValueError naming file and line, FileNotFoundError naming the setting. One task and chain
    id may stand in several files only for the same chain: the audit log knows chains by these.
    """
    paths = {
        "final": final_dataset_path,
        "train": final_train_dataset_path,
        "val": final_val_dataset_path,
        "test": final_test_dataset_path,
    }
    problems: list[dict[str, Any]] = []
    places: dict[tuple[str, str], tuple[str, Chain]] = {}
    for name in dataset_names:
        path, split = _locate(name, paths)
        for place, problem in _load_file(path, split, Path(task_data_root) if task_data_root else None):
            chain = problem["chain"]
            first, known = places.setdefault((chain.task_id, chain.chain_id), (place, chain))
            if not _same(chain, known):
                raise ValueError(
                    f"{place}: chain_id={chain.chain_id!r} of task {chain.task_id!r} is another chain in "
                    f"{first}; give one of them another chain_id"
                )
            problems.append(problem)
    for index, problem in enumerate(problems[:max_examples]):
        problem["id"] = index
    return problems[:max_examples]


def _locate(name: str, paths: Mapping[str, str | None]) -> tuple[Path, str | None]:
    """The file a dataset name stands for, and its split if the name says so."""
    direct = Path(name)
    if direct.is_file():
        return direct, None
    alias = _ALIASES.get(name.removeprefix(f"{DOMAIN}_"))
    if alias is None:
        raise ValueError(f"dataset {name!r} is neither a file nor one of {', '.join(_ALIASES)}")
    key = "final_dataset_path" if alias == "final" else f"final_{alias}_dataset_path"
    value = paths[alias]
    if not value:
        raise ValueError(f"dataset {name!r} needs {DOMAIN}.{key}; set it to a chain file")
    path = Path(value)
    if not path.is_file():
        raise FileNotFoundError(f"{DOMAIN}.{key}={value}: no such file")
    return path, None if alias == "final" else alias


def _same(chain: Chain, other: Chain) -> bool:
    """Whether nothing that is asked, or kept secret, tells them apart; the split may."""
    return all(getattr(chain, name) == getattr(other, name) for name in ("company", "hops", "task_questions"))


def _load_file(path: Path, split: str | None, root: Path | None) -> list[tuple[str, dict[str, Any]]]:
    """Problems with the file and line of each."""
    guessed = split or split_of(path)
    seen: set[str] = set()
    problems = []
    for number, line in lines_of(path):
        try:
            problem = problem_of(parse_row(line), path, guessed, root)
            chain_id = problem["chain"].chain_id
            if chain_id in seen:
                raise ValueError(f"chain_id={chain_id!r} occurs twice")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        seen.add(chain_id)
        problems.append((f"{path}:{number}", problem))
    if not problems:
        raise ValueError(f"{path}: holds no chain")
    return problems


def split_of(path: Path) -> str:
    """The split that a file's name says it is, else its stem."""
    return next((known for known in SPLITS if known in path.stem.lower()), path.stem)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold anything, with their numbers from 1. Raises ValueError if the file is not UTF-8."""
    # A strict reader decodes blocks, so that it could not say in which line the wrong byte stands.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if wrong := _NO_UTF8.search(line):
                raise ValueError(
                    f"{path}:{number}: not UTF-8 (byte 0x{ord(wrong[0]) - 0xDC00:02x}, character "
                    f"{wrong.start() + 1}); convert it to UTF-8"
                )
            if line.strip():
                yield number, line


def parse_row(line: str | bytes, place: str = "") -> Mapping[str, Any]:
    """The JSON object of one line. Raises ValueError that begins with `place`."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place}expected an object, got {type(row).__name__}")
    return row


def problem_of(row: Mapping[str, Any], path: Path, split: str, root: Path | None) -> dict[str, Any]:
    """The problem of one row of a chain file; `root` holds the task folders. Raises ValueError."""
    if (column := half_emoji_in(row)) is not None:
        raise ValueError(f"{column or 'the row'} {HALF_EMOJI}")
    name, description = _company(row, root)
    chain = parse_chain(row, company=name, description=description, split=split)
    return {
        "id": -1,
        "problem_id": chain.problem_id,
        "domain": str(row.get("domain") or DOMAIN),
        "dataset": str(row.get("dataset") or path.stem),
        "split": split,
        "task": chain.questions,
        "answer": chain.final_answers[0],
        "chain": chain,
        "carried": {key: row[key] for key in CARRIED if key in row},
    }


def _company(row: Mapping[str, Any], root: Path | None) -> tuple[str, str]:
    """Name and description: from the task's own file, else from the row."""
    task = root / parse_task_id(row) if root else None
    if task is not None and not task.is_dir():
        raise ValueError(f"task_id={row['task_id']!r}: no such folder in {DOMAIN}.task_data_root={root}")
    name, description = _task_company(task) if task else ("", "")
    name = name or str(row.get("company") or "")
    if not name:
        raise ValueError("no company: neither company_info.name in the task's config/task.json nor the row's")
    return name, description


@cache
def _task_company(task: Path) -> tuple[str, str]:
    config = task / "config" / "task.json"
    if not config.is_file():
        return "", ""
    try:
        info = json.loads(config.read_text(encoding="utf-8-sig")).get("company_info") or {}
        name, description = str(info.get("name") or ""), str(info.get("description") or "")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{config}: company_info cannot be read ({error})") from None
    if half_emoji_in([name, description]) is not None:
        raise ValueError(f"{config}: company_info {HALF_EMOJI}")
    return name, description


def chain_of(problem: Mapping[str, Any]) -> Chain:
    """The chain of a problem made by `load_problems`. Raises ValueError for any other problem."""
    chain = problem.get("chain")
    if not isinstance(chain, Chain):
        raise ValueError(f"problem {problem.get('id')!r} was not loaded by {__name__}.load_problems")
    return chain
