"""Writes measured numbers into the documents: `python -m benchmarks.documents [--check]`.

`documents.yaml` says what stands in each marked block: a table between `<!-- numbers: NAME -->` and
`<!-- end -->`, or a number of a sentence between `<!--n:NAME-->` and `<!--/n-->`. The numbers come from
results/*.json, so that nobody copies them by hand. `--check` writes nothing and fails where a page says
something else than its block would; `tests/unit/docs/test_documents.py` calls it.

A template is a Python format string over the results: `{arms[table][start][success]:.3f}` reads arms.json.
What a path leads to says how it is shown:

- a number, by Python's format, behind `x100 ` multiplied by 100; `2s` shows at least two significant digits;
- an interval (mean or value with low and high, or with half_width) as `0.45 [0.40, 0.50]` or `19.7 ± 0.7`;
- a list, item by item, with commas between.

`[name]` is a key of an object, a position in a list, or that key of each item of a list. `[arm=raro,seed=0]`
is the only item of a list with these values, `[all arm=raro]` a list of such. `.f[NAME]` is the value of the
figure NAME; `.list` are the values of an object, `.mean`, `.min` and `.max` those of a list. `.interval`
takes mean, lower and upper end from a list, `.ends` from a mean with half a width.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import derived
from benchmarks._figures import RESULTS

ROOT = Path(__file__).resolve().parents[1]
SPEC = Path(__file__).with_name("documents.yaml")
PAGES = ("README.md", "docs/*.md", "domains/*/README.md", "retrieval_server/README.md")
BLOCK = re.compile(r"(<!-- numbers: (?P<name>\S+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!--n:(?P<name>[^>]+)-->)(?P<text>.*?)(<!--/n-->)", re.DOTALL)


class DocumentError(ValueError):
    """A block that cannot be written; the message says which and why."""


@dataclass(frozen=True)
class Found:
    """A place in a result, as format strings walk through it."""

    value: Any

    def __getitem__(self, key: str | int) -> "Found":
        name = str(key)
        if isinstance(self.value, Mapping):
            return Found(self.value[name])
        if "=" in name:
            return Found(_selected(self.value, name))
        if re.fullmatch(r"-?\d+", name):
            return Found(self.value[int(name)])
        return Found([Found(item)[name].value for item in self.value])

    @property
    def f(self) -> "Found":
        return Found({name: figure["value"] for name, figure in self.value["figures"].items()})

    @property
    def list(self) -> "Found":
        if isinstance(self.value, Mapping):
            return Found(list(self.value.values()))
        return Found([list(item.values()) for item in self.value])

    @property
    def mean(self) -> "Found":
        """Over the first axis."""
        return Found(np.mean(self.value, axis=0).tolist())

    @property
    def interval(self) -> "Found":
        """Of a list of mean, lower and upper end."""
        return Found(dict(zip(("mean", "low", "high"), self.value, strict=True)))

    @property
    def ends(self) -> "Found":
        """Mean, lower and upper end of a mean with half a width."""
        middle, half = self.value["mean"], self.value["half"]
        return Found({"mean": middle, "low": middle - half, "high": middle + half})

    @property
    def min(self) -> "Found":
        return Found(min(self.value))

    @property
    def max(self) -> "Found":
        return Found(max(self.value))

    def __format__(self, spec: str) -> str:
        return shown(self.value, spec)


def _selected(items: list[Any], condition: str) -> Any:
    """The only item that meets `a=1,b=2`, or all of them behind `all `."""
    every, wanted = condition.startswith("all "), condition.removeprefix("all ")
    pairs = [pair.split("=", 1) for pair in re.split(r",(?=\w+=)", wanted)]
    met = [item for item in items if all(str(item[key]) == value for key, value in pairs)]
    if every:
        return met
    if len(met) != 1:
        raise KeyError(f"{len(met)} items have {wanted}, one is needed")
    return met[0]


def shown(value: Any, spec: str) -> str:
    """A number, an interval, a list or a word as a page has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(shown(item, spec) for item in value)
    if isinstance(value, Mapping):
        middle = shown(value["mean"] if "mean" in value else value["value"], spec)
        if "half_width" in value:
            return f"{middle} ± {shown(value['half_width'], spec)}"
        middle += value.get("unit", "")
        return f"{middle} [{shown(value['low'], spec)}, {shown(value['high'], spec)}]"
    factor, _, digits = spec.rpartition(" ")
    number = value * float(factor.removeprefix("x")) if factor else value
    if significant := re.fullmatch(r"(\d)s", digits):
        size = math.floor(math.log10(abs(number))) if number else 0
        digits = f",.{max(0, int(significant[1]) - 1 - size)}f"
    text = format(number, digits)
    return text.lstrip("-") if text.startswith("-") and not re.search(r"[1-9]", text) else text


class Results(Mapping[str, Found]):
    """The files of a folder by name, then the derived values of `derived.py`; `t` is a table's own file."""

    def __init__(self, folder: Path, own: str | None = None) -> None:
        self.folder, self.own = folder, own

    def __getitem__(self, name: str) -> Found:
        name = (self.own or name) if name == "t" else name
        if name in derived.VALUES:
            return Found(_derived(derived.VALUES[name], self.folder))
        return Found(_read(self.folder, name))

    def __iter__(self) -> Any:
        return iter([])

    def __len__(self) -> int:
        return 0


@cache
def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@cache
def _derived(function: Callable[..., Any], folder: Path) -> Any:
    return function(lambda name: _read(folder, name))


def table(spec: Mapping[str, Any], results: Path) -> str:
    """Markdown of one table.

    `rows` are lines with templates in their cells; or they fill `$label` and `$row` of the template `row`; or
    they are a template for each label, whose `$column` are the `columns`. Every other `$word` is a key of the
    table.
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
    return [spec["row"].replace("$label", str(label)).replace("$row", str(key)) for label, key in labels]


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
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
