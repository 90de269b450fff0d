"""Documents of the two corpora: private task trees, read whole, and lines of the public web file.

Answer files of a task are never read, and links that leave a task's folder are never followed.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from retrieval_server.identity import strip_extensions
from retrieval_server.surrogates import replaced

logger = logging.getLogger(__name__)

TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
TEXT_SUFFIXES = (".md", ".txt", ".csv")
ORIGINAL_SUFFIXES = (".pdf", ".docx", ".pptx", ".xlsx", ".html", ".jsonl")
_OF_ANSWERS = re.compile(
    r"(?:.*[^a-z])?(?:qa[_.]?dict|file[_.]?dict|dr[_.]?question)s?(?:[^a-z].*)?"
    r"|(?:copy_(?:\(\d+\)_)?of_)*eval(?:_*(?:copy|copy_\d+|backup|bak|old|orig|v\d+|\(\d+\)|\((?:\w+_)?copy(?:_\d+)?\)))*_*(?:\..*)?"
)
"""Names of answer files and of their copies; `eval` is a common word, so only with what marks a copy."""
_DESCRIBES = re.compile(r"file[_.]?dict")
_LEAST_COPIED, _LEAST_WORDS, _LEAST_SENTENCES = 50, 4, 3
"""Characters of an answer file by which it is known within a longer text; words of a text in its JSON that is
more than a name or a figure, and how many of these together are no coincidence."""
_POINTERS = {"version https://git-lfs.github.com/spec/": "git lfs pull", "/annex/objects/": "git annex get"}
"""What stands in the place of a file that is elsewhere, and what brings it."""
_POINTER_BYTES = max(map(len, _POINTERS))
_TYPED = str.maketrans(
    dict.fromkeys("‘’‚‛′`´‹›ʼ", "'") | dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‐‑‒–—―−", "-")
)
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


class CorpusError(ValueError):
    """A corpus that cannot be indexed; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class LocalDocument:
    """One private document; `rest` is its path below the task's `files` folder."""

    task_id: str
    rest: str
    text: str
    original_path: str | None = None

    @property
    def doc_id(self) -> str:
        return f"local/{self.task_id}/{self.rest}"

    @property
    def digest(self) -> str:
        return text_digest(self.text)

    def metadata(self) -> dict[str, Any]:
        """Relative paths and a title; nothing that the answer files hold."""
        folder, _, name = self.rest.rpartition("/")
        file_path = f"{self.task_id}/files/{self.rest}"
        heading = _HEADING.search(self.text, 0, 400)
        return {
            "file_path": file_path,
            "original_path": self.original_path or file_path,
            "folder_path": f"{self.task_id}/files/{folder}".rstrip("/"),
            "doc_ref": strip_extensions(self.rest),
            "title": heading[1].strip() if heading else strip_extensions(name),
        }


@dataclass(frozen=True, slots=True)
class WebDocument:
    """One public page; `docid` carries no `web/` prefix."""

    docid: str
    url: str
    text: str

    @property
    def digest(self) -> str:
        """Of the address too: agents are shown it, and a gold page may be known by it."""
        return text_digest(f"{self.url}\n{self.text}")


def text_digest(text: str) -> str:
    """SHA-256 of a text, by which it can be compared without being sent."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def find_tasks(root: Path) -> dict[str, Path]:
    """Task folders by id: subdirectories with a valid name that hold a `files` folder.

    Raises `CorpusError` if the folder of one task is, or lies in, that of another: its documents would be
    found by both.
    """
    if not root.is_dir():
        raise CorpusError(f"the task folder {str(root)!r} is not a directory; pass the folder of task trees")
    found = sorted(path for path in root.iterdir() if (path / "files").is_dir())
    tasks = {path.name: path for path in found if TASK_ID.fullmatch(path.name)}
    if unnamed := [path.name for path in found if path.name not in tasks]:
        logger.warning(
            "%s: %d folders have files/ but no name of a task (1 to 64 of A-Z, a-z, 0-9, _ and -) and are "
            "not served, first %r",
            *(root, len(unnamed), unnamed[0]),
        )
    others = [
        path for path in root.iterdir() if found and path not in found and not path.name.startswith(".")
    ]
    if bare := sorted(
        path.name for path in others if any(one.suffix.lower() in TEXT_SUFFIXES for one in path.rglob("*"))
    ):
        logger.warning(
            "%s: %d folders have texts but no files/ with them, and are not served, first %r",
            *(root, len(bare), bare[0]),
        )
    _check_separate(tasks)
    return tasks


def _check_separate(tasks: Mapping[str, Path]) -> None:
    places = [
        (folder.resolve(), task_id) for task_id, path in tasks.items() for folder in (path, path / "files")
    ]
    owners: dict[Path, str] = {}
    for folder, task_id in places:
        owners.setdefault(folder, task_id)
    for folder, task_id in places:
        for place in (folder, *folder.parents):
            if (other := owners.get(place, task_id)) != task_id:
                raise CorpusError(
                    f"{tasks[task_id]} leads into the folder of task {other}; give each its own files"
                )


def read_task(task_id: str, folder: Path) -> Iterator[LocalDocument]:
    """The text documents of one task in path order, without empty and hidden ones (`.git/x.txt`).

    A binary original (`x.pdf`) is not read; the text of the same folder and stem (`x.md`) stands for it. What
    a link leads to counts by its own name too, and a copy of an answer file is one. Raises
    `CorpusError` where every text is a link out of the folder, as in a hub's cache.
    """
    files = folder / "files"
    boundary = files.resolve()
    below, named = _below(files), set[str]()
    found = [path for path in below if not _is_hidden(path.relative_to(files))]
    # Links in a circle lead nowhere; `Path.resolve` raises for them before Python 3.13.
    places = {path: Path(os.path.realpath(path)) for path in found}
    paths = [path for path in found if places[path].is_relative_to(boundary)]
    inside, answers, kept = set(paths), _answer_files(folder), 0
    copies, empty = list[Path](), list[Path]()
    originals = _original_paths(task_id, folder)
    for path in paths:
        if path.suffix.lower() in ORIGINAL_SUFFIXES and path.is_file():
            rest = path.relative_to(files).as_posix()
            originals.setdefault(strip_extensions(rest).lower(), f"{task_id}/files/{rest}")
    for path in paths:
        relative = path.relative_to(files)
        if path.suffix.lower() not in TEXT_SUFFIXES or holds_answers(relative) or not path.is_file():
            continue
        kept += 1
        named.add(strip_extensions(relative.as_posix()).lower())
        status = path.stat()
        linked = (status.st_dev, status.st_ino) in answers.numbers
        if linked or holds_answers(places[path].relative_to(boundary)):
            continue
        text = _read_text(path)
        if (remedy := _fetches(text)) is not None:
            raise CorpusError(f"{path} is a pointer of git and not the text; run {remedy}")
        if 4 * text.count("\0") > len(text):
            raise CorpusError(f"{path} is not UTF-8 (every other byte is 0, as in UTF-16); convert it")
        if answers.are_in(text):
            copies.append(path)
        elif text.strip():
            rest = replaced(relative.as_posix())  # it reaches a prompt, which takes no half of a pair
            yield LocalDocument(task_id, rest, text, originals.get(strip_extensions(rest).lower()))
        else:
            empty.append(path)
    _say_left_out(files, copies, "texts hold what an answer file of the task holds and are not served")
    _say_left_out(files, empty, "texts are empty and not served")
    if unread := [
        path for path in (files, *paths) if path.is_dir() and not os.access(path, os.R_OK | os.X_OK)
    ]:
        raise CorpusError(f"{unread[0]} cannot be read (its permissions); let the server read it")
    lone = [path for path in paths if _is_no_text(path, files) and _stem(path, files) not in named]
    beside = "no text beside them (.md, .txt or .csv of the same name)"
    _say_left_out(files, lone, f"files of other formats have {beside} and are not served")
    shown = set(found)
    hidden = [path for path in below if path not in shown and path.suffix.lower() in TEXT_SUFFIXES]
    _say_left_out(files, hidden, "texts are hidden and not served")
    outside = [path for path in found if path not in inside or not os.path.exists(path)]
    _say_outward(files, [p for p in outside if p.suffix.lower() in TEXT_SUFFIXES or p.is_dir()], kept)


def _say_left_out(files: Path, paths: Sequence[Path], why: str) -> None:
    if paths:
        first = replaced(paths[0].relative_to(files).as_posix())
        logger.warning("%s: %d %s, first %s", files, len(paths), why, first)


def _say_outward(files: Path, outward: Sequence[Path], kept: int) -> None:
    """Links out of a task's folder that would have been texts, beside `kept` texts that are there."""
    if outward and not kept:
        raise CorpusError(
            f"{outward[0]} leads out of the task's folder, or nowhere, and so do all its {len(outward)} "
            "texts, which are not served: copy the files themselves there (cp -rL; a hub's download with a "
            "local folder)"
        )
    if outward:
        logger.warning(
            "%s: %d links lead out of the folder, or nowhere, and are not served", files, len(outward)
        )


@dataclass(frozen=True, slots=True)
class _Answers:
    """By what a task's answer files are known under another name."""

    numbers: set[tuple[int, int]]
    """Device and number of each, which its hard links have too."""
    texts: set[str]
    sentences: list[set[str]]
    """Of each that is JSON, what it says in words, which a copy has in whatever format."""

    def are_in(self, text: str) -> bool:
        """Whether it is the text of one, or holds all of one beside other things."""
        bare, forms = _bare(text), _forms(text)
        return (
            bool(forms & self.texts - {""})
            or any(len(one) >= _LEAST_COPIED and one in bare for one in self.texts)
            or any(all(one in bare for one in said) for said in self.sentences)
        )


def _answer_files(folder: Path) -> _Answers:
    named = [path for path in _below(folder) if holds_answers(path.relative_to(folder)) and path.is_file()]
    numbers = {(status.st_dev, status.st_ino) for status in (path.stat() for path in named)}
    texts = {path: _read_text(path, "replace") for path in named}
    # A document holds what its `file_dict` says of it, and is no copy of that.
    told = [text for path, text in texts.items() if not _DESCRIBES.search(_plain_name(path.name))]
    said = [sentences for text in told if len(sentences := _sentences(text)) >= _LEAST_SENTENCES]
    return _Answers(numbers, {form for text in texts.values() for form in _forms(text)}, said)


def _sentences(text: str) -> set[str]:
    """The longer texts in JSON or JSON lines, without blanks; none of what is neither."""
    found, open_ = set[str](), list[Any]()
    try:
        open_ += [json.loads(text)]
    except RecursionError:
        return found
    except ValueError:
        with contextlib.suppress(ValueError, RecursionError):
            open_ += [json.loads(line) for line in text.splitlines() if line.strip()]
    while open_:
        node = open_.pop()
        if isinstance(node, dict | list):
            open_ += node.values() if isinstance(node, dict) else node
        elif isinstance(node, str) and len(node.split()) >= _LEAST_WORDS:
            found.add(_bare(node))
    return found


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(folder.rglob("*"))
    except RecursionError:
        raise CorpusError(f"{folder} has folders in folders a thousand deep; make it flatter") from None


def _is_hidden(relative: PurePath) -> bool:
    """Whether a program put it there, as versions of a file, a copy to go back to or what was thrown away."""
    return any(part.startswith(".") for part in relative.parts)


def _is_no_text(path: Path, files: Path) -> bool:
    """Whether it is there, and neither a folder, a text nor an answer file."""
    if holds_answers(path.relative_to(files)) or path.is_dir():
        return False
    return path.exists() and (path.suffix.lower() not in TEXT_SUFFIXES or not path.is_file())


def _stem(path: Path, files: Path) -> str:
    return strip_extensions(path.relative_to(files).as_posix()).lower()


def _forms(text: str) -> set[str]:
    """By what a copy is known: the bare text, and that of its JSON in any order of keys, with any escapes."""
    found = {_bare(text)}
    with contextlib.suppress(ValueError, RecursionError):
        found.add(_bare(json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)))
    return found


def _bare(text: str) -> str:
    """Without blanks and typography: an editor adds a line's end to a copy, a program indents its JSON, a
    word processor writes other quotes, dashes and ligatures."""
    return "".join(unicodedata.normalize("NFKC", text.translate(_TYPED)).split())


def holds_answers(relative: PurePath) -> bool:
    """Whether the file, or a folder above it, bears the name of an answer file, or of a copy of one.

    Whatever its extension: `qa_dict.json`, `QA-dict (1).md`, `Copy of qa_dict.csv`, `eval_backup.txt`.
    """
    return any(_OF_ANSWERS.fullmatch(_plain_name(part)) for part in relative.parts)


def _plain_name(part: str) -> str:
    """In small letters, `_` between words. Full width, other dashes and invisible marks look the same."""
    shown = unicodedata.normalize("NFKC", part.translate(_TYPED))
    shown = "".join(mark for mark in shown if unicodedata.category(mark) != "Cf")
    return re.sub(r"[ _-]+", "_", shown.lstrip(".").strip().lower())


def _fetches(text: str) -> str | None:
    """The command that brings the file in whose place this text stands; None for a text of its own."""
    return next((command for pointer, command in _POINTERS.items() if text.startswith(pointer)), None)


def _read_text(path: Path, errors: str = "strict") -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors=errors)
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 (byte {error.start}); convert it to UTF-8") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); let the server read it") from error


def _original_paths(task_id: str, folder: Path) -> dict[str, str]:
    """Original file names of `config/env.json` by lower-case path without extensions."""
    source = folder / "config" / "env.json"
    if not source.is_file():
        return {}
    try:
        entries = json.loads(_read_text(source))["env_files"]
        sources = [str(entry["source"]).replace("\\", "/") for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{source} is not a list of env_files with a source each: {error!r}") from error
    rests = [path_in_files(text) for text in sources if ".." not in text.split("/")]
    return {strip_extensions(rest).lower(): f"{task_id}/files/{rest}" for rest in rests}


def path_in_files(source: str) -> str:
    """The part of an original's path below the task's `files` folder: `files/a/x.pdf` -> `a/x.pdf`."""
    return f"/{source}".rpartition("/files/")[2].removeprefix("/")


def parse_web_line(line: bytes, where: str) -> WebDocument:
    """One line of the web corpus, without halves of surrogate pairs. Raises `CorpusError` naming `where`."""
    if (remedy := _fetches(line[:_POINTER_BYTES].decode(errors="replace"))) is not None:
        raise CorpusError(f"{where}: the file is a pointer of git and not the pages; run {remedy}")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not a JSON object ({error})") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise CorpusError(f"{where}: a web document needs docid, url and text")
    docid = row.get("docid")
    if isinstance(docid, bool) or not isinstance(docid, str | int) or str(docid) == "":
        raise CorpusError(f"{where}: docid {docid!r} is not a non-empty string or integer")
    # Any of the three may reach a prompt, and one half of a pair there fails the whole rollout.
    name, url = replaced(str(docid)), replaced(str(row.get("url") or ""))
    return WebDocument(name.removeprefix("web/"), url, replaced(row["text"]))
