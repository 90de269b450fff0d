"""Check a dataset: `python -m domains.privacy_hopqa.validate DIR`.

DIR holds `chains*.jsonl`, `tasks/` and `web.jsonl`; each can be named on its own instead. Prints one line
with file and line number for each thing that is wrong (of a chain that cannot be read, for the first) and
exits with 1 if there is any.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from domains.privacy_hopqa.validate.pages import Pages, check_pages
from domains.privacy_hopqa.validate.problems import Problem
from domains.privacy_hopqa.validate.rows import Chains
from domains.privacy_hopqa.validate.trees import check_trees
from pipelinerl.base.errors import CommandParser, leave, printable


def parts_of(arguments: argparse.Namespace) -> tuple[tuple[Path, ...], Path | None, Path | None]:
    """Chain files, task trees and web corpus that the options name. Raises ValueError for absent ones."""
    folder: Path | None = arguments.folder
    chains = tuple(arguments.chains or ())
    tasks, web = arguments.tasks, arguments.web
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder")
        chains = chains or tuple(sorted(folder.glob("chains*.jsonl")))
        tasks = tasks or (folder / "tasks" if (folder / "tasks").is_dir() else None)
        web = web or (folder / "web.jsonl" if (folder / "web.jsonl").is_file() else None)
    if not chains:
        raise ValueError("no chain files; give a folder with chains*.jsonl, or --chains FILE")
    for path in (*chains, *([web] if web else [])):
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
    if tasks is not None and not tasks.is_dir():
        raise ValueError(f"{tasks}: no such folder")
    return chains, tasks, web


def check(files: Sequence[Path], tasks: Path | None, web: Path | None) -> tuple[list[Problem], str]:
    """Problems in the order of files and lines, and what was checked; a part that is None is not.

    Raises OSError.
    """
    chains = Chains()
    for path in files:
        chains.read(path, tasks)
    problems, documents, pages = list(chains.problems), 0, Pages()
    if tasks is not None:
        found, documents = check_trees(tasks, chains.task_lines, chains.references)
        problems += found
    if web is not None:
        pages = check_pages(web, chains.references)
        problems += pages.problems
    checked = (
        f"{chains.chains} chains with {chains.hops} hops, {documents} private documents, "
        f"{pages.pages} web pages ({pages.empty} without text)"
    )
    skipped = [name for name, part in (("--tasks", tasks), ("--web", web)) if part is None]
    if skipped:
        checked += f"; not checked for want of {' and '.join(skipped)}"
    return sorted(set(problems)), checked


def main(argv: Sequence[str]) -> int:
    """0 if nothing is wrong, else 1."""
    parser = CommandParser(
        prog="validate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="holds chains*.jsonl, tasks/ and web.jsonl")
    parser.add_argument("--chains", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--tasks", type=Path, metavar="DIR", help="folder of task trees")
    parser.add_argument("--web", type=Path, metavar="FILE", help="web corpus {docid, url, text}")
    try:
        problems, checked = check(*parts_of(parser.parse_args(argv)))
    except (OSError, ValueError) as error:
        print(printable(f"validate: {error}"), file=sys.stderr)
        return 1
    for problem in problems:
        print(printable(str(problem)))
    print(f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)} in {checked}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    leave("validate", lambda: main(sys.argv[1:]))
