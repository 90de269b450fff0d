"""Task trees: missing files, documents without text, names that two documents share, dangling gold ids."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from domains.privacy_hopqa.data.identity import alias_set
from domains.privacy_hopqa.validate.problems import GoldReference, Problem
from retrieval_server.corpus import (
    ORIGINAL_SUFFIXES,
    TASK_ID,
    TEXT_SUFFIXES,
    CorpusError,
    LocalDocument,
    find_tasks,
    holds_answers,
    path_in_files,
    read_task,
)
from retrieval_server.identity import shared_aliases, strip_extensions


@dataclass(slots=True)
class TaskTree:
    """The documents of one task by id, with the names that identify each, and those that two share."""

    documents: dict[str, LocalDocument] = field(default_factory=dict)
    aliases: dict[str, set[str]] = field(default_factory=dict)
    shared: dict[str, set[str]] = field(default_factory=dict)


def check_trees(
    root: Path, used: dict[str, tuple[Path, int]], references: Iterable[GoldReference]
) -> tuple[list[Problem], int]:
    """Problems of all trees below `root` and of the gold ids that should lie there; number of documents.

    `used` says which line names a task. Raises OSError.
    """
    problems: list[Problem] = []
    trees: dict[str, TaskTree] = {}
    try:
        find_tasks(root)
    except CorpusError as error:
        problems.append(Problem(root, 1, str(error)))
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if not TASK_ID.fullmatch(folder.name):
            if (folder / "files").is_dir():
                problems.append(Problem(folder, 1, f"its name must match {TASK_ID.pattern} to be a task"))
            continue
        if folder.name in used or (folder / "files").is_dir():
            found, tree = check_tree(folder)
            problems += found
            if tree is not None:
                trees[folder.name] = tree
    for reference in references:
        if reference.hop.source == "local" and reference.chain.task_id in trees:
            problems += gold_problems(reference, trees[reference.chain.task_id])
    return problems, sum(len(tree.documents) for tree in trees.values())


def check_tree(folder: Path) -> tuple[list[Problem], TaskTree | None]:
    """Problems of one tree, and its documents; None if the retrieval server could not read them."""
    problems = [*_config_problems(folder / "config" / "task.json")]
    if not (folder / "files").is_dir():
        return [*problems, Problem(folder / "files", 1, "no such folder; documents lie there")], TaskTree()
    files = sorted(path for path in (folder / "files").rglob("*") if path.is_file())
    unreadable = [*_encoding_problems(files), *_environment_format(folder / "config" / "env.json")]
    if unreadable:
        return [*problems, *unreadable], None
    tree = TaskTree()
    for document in read_task(folder.name, folder):
        tree.documents[document.doc_id] = document
        tree.aliases[document.doc_id] = alias_set(
            {"doc_id": document.doc_id, "metadata": document.metadata()}
        )
    tree.shared = shared_aliases(tree.aliases)
    problems += _collisions(folder, tree)
    problems += _file_problems(folder / "files", files, tree)
    problems += _environment_problems(folder, tree)
    return problems, tree


def _encoding_problems(files: Iterable[Path]) -> Iterator[Problem]:
    """Documents that are not UTF-8, with the line of the first wrong byte."""
    for path in files:
        if path.suffix.lower() not in TEXT_SUFFIXES:
            continue
        raw = path.read_bytes()
        try:
            raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            yield Problem(path, line, "not UTF-8, so the retrieval server refuses the task; convert it")


def _environment_format(path: Path) -> Iterator[Problem]:
    """Whether `config/env.json`, where there is one, is a list of files with a source each."""
    if not path.is_file():
        return
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))["env_files"]
        if not isinstance(entries, list) or not all(isinstance(entry["source"], str) for entry in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        line = getattr(error, "lineno", 1)
        yield Problem(path, line, 'must be {"env_files": [{"source": "files/...", ...}]}')


def _config_problems(path: Path) -> Iterator[Problem]:
    if not path.is_file():
        yield Problem(path, 1, "missing; it must hold company_info.name")
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        yield Problem(path, getattr(error, "lineno", 1), f"not JSON ({error})")
        return
    info = content.get("company_info") if isinstance(content, dict) else None
    if not isinstance(info, dict) or not str(info.get("name") or "").strip():
        yield Problem(path, 1, "company_info.name is missing")


def _collisions(folder: Path, tree: TaskTree) -> Iterator[Problem]:
    """Documents that share a name of a place; equal titles are common and name nothing."""
    for doc_id, names in tree.shared.items():
        places = [name for name in names if name.startswith(("local/", "compact:"))]
        if not places:
            continue
        shared = max(places)  # a path rather than its compact form
        others = [other for other in tree.shared if other != doc_id and shared in tree.aliases[other]]
        path = folder / "files" / tree.documents[doc_id].rest
        yield Problem(
            path, 1, f"shares the name {shared!r} with {others[0]}, so a gold id by that name is neither"
        )


def _file_problems(root: Path, files: Iterable[Path], tree: TaskTree) -> Iterator[Problem]:
    """Originals without a text copy, and documents without text: neither can be found."""
    texts = {strip_extensions(document.rest).lower() for document in tree.documents.values()}
    read = {document.rest for document in tree.documents.values()}
    for path in files:
        rest, suffix = path.relative_to(root).as_posix(), path.suffix.lower()
        if holds_answers(path.relative_to(root)):
            continue
        if suffix in ORIGINAL_SUFFIXES and strip_extensions(rest).lower() not in texts:
            copies = ", ".join(strip_extensions(path.name) + known for known in TEXT_SUFFIXES)
            yield Problem(path, 1, f"has no text copy beside it ({copies}), so no search finds it")
        elif suffix in TEXT_SUFFIXES and rest not in read:
            yield Problem(path, 1, "holds no text or lies outside the task, so no search finds it")


def _environment_problems(folder: Path, tree: TaskTree) -> Iterator[Problem]:
    """Files that `config/env.json` names and that are not there, neither themselves nor as text."""
    path = folder / "config" / "env.json"
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8-sig")
    known = {strip_extensions(document.rest).lower() for document in tree.documents.values()}
    entries: list[Any] = json.loads(text)["env_files"]
    for entry in entries:
        source = str(entry["source"]).replace("\\", "/")
        rest = path_in_files(source)
        if holds_answers(PurePosixPath(rest)):
            continue
        if strip_extensions(rest).lower() not in known:
            yield Problem(path, _line_of(text, str(entry["source"])), f"{source!r} has no document in files/")


def _line_of(text: str, value: str) -> int:
    """The line of a JSON text on which a string value first stands, else 1."""
    position = text.find(json.dumps(value)[1:-1])
    return text.count("\n", 0, position) + 1 if position >= 0 else 1


def gold_problems(reference: GoldReference, tree: TaskTree) -> list[Problem]:
    """Whether a local gold id names exactly one document, and whether that one holds the answer."""
    wanted = reference.aliases
    matching = [doc for doc, names in tree.aliases.items() if wanted & (names - tree.shared.get(doc, set()))]
    if len(matching) == 1:
        return reference.answer_problems(tree.documents[matching[0]].text, matching[0])
    if matching:
        return [reference.problem(f"gold id {reference.shown} names {_some(matching)}")]
    ambiguous = [doc for doc, names in tree.aliases.items() if wanted & names]
    if ambiguous:
        return [reference.problem(f"gold id {reference.shown} is a name that {_some(ambiguous)} share")]
    return [reference.problem(f"dangling gold id {reference.shown}: no such document in the task's files")]


def _some(names: Sequence[str]) -> str:
    shown = " and ".join(names[:2])
    return shown if len(names) <= 2 else f"{shown} and {len(names) - 2} more"
