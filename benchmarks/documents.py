"""Writes measured numbers into the documents: `python -m benchmarks.documents [--check]`.

`documents.yaml` says what stands in each marked block: a table between `<!-- numbers: NAME -->` and
`<!-- end -->`, or a number of a sentence between `<!--n:NAME-->` and `<!--/n-->`. The numbers come from
results/*.json, so that nobody copies them by hand; `_results.py` says how a template reads them. The tables
of goals stand in blocks of `benchmarks/README.md`, as goals.yaml says (`goals.py`). `--check` writes nothing
and fails where a page says something else than its block would; `make lint` calls it.
"""

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import goals
from benchmarks._figures import RESULTS
from benchmarks._results import Results
from pipelinerl.base.errors import CommandParser

ROOT = Path(__file__).resolve().parents[1]
SPEC = Path(__file__).with_name("documents.yaml")
PAGES = (
    "README.md",
    "docs/*.md",
    "domains/*/README.md",
    "retrieval_server/README.md",
    "benchmarks/README.md",
)
BLOCK = re.compile(r"(<!-- numbers: (?P<name>\S+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!--n:(?P<name>[^>]+)-->)(?P<text>.*?)(<!--/n-->)", re.DOTALL)


class DocumentError(ValueError):
    """A block that cannot be written; the message says which and why."""


def table(spec: Mapping[str, Any], results: Path) -> str:
    """Markdown of one table.

    `rows` are lines with templates in their cells; or they fill `$label` and `$row` of the template `row`,
    or instead of `$row` each `$name` of a mapping; or they are a template for each label, whose `$column` are
    the `columns`. Every other `$word` is a key of the table.
    """
    rows = "\n".join(_rows(spec))
    for key, value in spec.items():
        rows = rows.replace(f"${key}", str(value))
    source = Results(results, spec.get("file"))
    rule = " | ".join("---" for _ in re.split(r"(?<!\\)\|", spec["head"]))
    lines = [spec["head"], rule, *(row.format_map(source) for row in rows.splitlines())]
    return "".join(re.sub(r"^\|(?: +\|)+", _narrow, f"| {line} |\n") for line in lines)


def _narrow(empty: re.Match[str]) -> str:
    return re.sub(" +", " ", empty[0])


def _rows(spec: Mapping[str, Any]) -> list[str]:
    rows = spec["rows"]
    if isinstance(rows, str):
        return rows.splitlines()
    if "columns" in spec:
        return [" | ".join([label, *_cells(one, spec["columns"])]) for label, one in rows.items()]
    labels = rows.items() if isinstance(rows, dict) else [(row, str(row).strip("`")) for row in rows]
    return [_row(spec["row"].replace("$label", str(label)), value) for label, value in labels]


def _row(template: str, value: Any) -> str:
    """`$row` stands for the value, or, if that is a mapping, `$name` for each of its values."""
    for name, one in (value if isinstance(value, dict) else {"row": value}).items():
        template = template.replace(f"${name}", str(one))
    return template


def _cells(templates: str | list[str], columns: list[Any]) -> list[str]:
    """The first template for every column, then the others as they are."""
    first, *others = [templates] if isinstance(templates, str) else templates
    return [*(first.replace("$column", str(one)) for one in columns if first), *others]


def blocks(spec: Path = SPEC, results: Path = RESULTS) -> dict[str, str]:
    """Name and text of every table (`tables`) and number (`numbers`) of the specification."""
    loaded = yaml.safe_load(spec.read_text(encoding="utf-8"))
    numbers, tables = loaded["numbers"], loaded["tables"]
    if twice := sorted(set(numbers) & set(tables)):
        raise DocumentError(f"documents.yaml: {', '.join(twice)} names a table and a number; rename one")
    every = {name: partial(str.format_map, one, Results(results)) for name, one in numbers.items()}
    every |= {name: partial(table, one, results) for name, one in tables.items()}
    every |= {f"goals-{name}": partial(goals.section, rows, results) for name, rows in goals.tables().items()}
    return {name: _told(name, write) for name, write in every.items()}


def _told(name: str, write: Callable[[], str]) -> str:
    try:
        return write()
    except (KeyError, IndexError, TypeError, ValueError, OSError) as error:
        raise DocumentError(f"documents.yaml, {name}: {error!r}; a path must lead to a value") from error


def filled(text: str, written: Mapping[str, str], page: str) -> tuple[str, set[str]]:
    """The page with its blocks as they should be, and their names."""
    used: set[str] = set()

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in written:
            raise DocumentError(f"{page}: documents.yaml has no block {name}; add it or remove the marks")
        used.add(name)
        return match[1] + written[name] + match[4]

    return INLINE.sub(put, BLOCK.sub(put, text)), used


def stale(root: Path = ROOT, written: Mapping[str, str] | None = None, *, write: bool = False) -> list[str]:
    """What is wrong with the pages: blocks that differ (put right if `write`) and unused ones."""
    written = blocks() if written is None else written
    problems, used = [], set()
    for path in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        page = str(path.relative_to(root))
        text = path.read_text(encoding="utf-8")
        new, here = filled(text, written, page)
        used |= here
        if new != text and write:
            path.write_text(new, encoding="utf-8")
        elif new != text:
            problems.append(
                f"{page}: its numbers are not those of the results; run `python -m benchmarks.documents`"
            )
    unused = sorted(set(written) - used)
    return problems + [f"documents.yaml: no page has the block {name}" for name in unused]


def main() -> int:
    parser = CommandParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is stale")
    try:
        problems = stale(write=not parser.parse_args().check)
    except DocumentError as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
