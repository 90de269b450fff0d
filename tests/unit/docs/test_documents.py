"""Numbers of the documents stand in marked blocks, and each block is what the results give."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import documents
from benchmarks._results import Results, shown
from benchmarks.documents import DocumentError, filled, stale

DOMAINS = sorted(documents.ROOT.glob("domains/*/README.md"))


def test_every_block_of_the_committed_pages_is_what_the_results_give() -> None:
    assert stale() == []


@pytest.fixture
def results(tmp_path: Path) -> Results:
    content = {
        "figures": {"a: b, c": {"value": 1234.5}},
        "runs": [{"arm": "x", "seed": 0, "after": 1.0}, {"arm": "x", "seed": 1, "after": 4.0}],
        "curve": {"0": 5.0, "64": 7.5},
        "found": {"mean": 0.4504, "low": 0.4, "high": 0.5},
        "spread": {"mean": -1.0, "half_width": 0.25},
    }
    (tmp_path / "one.json").write_text(json.dumps(content))
    return Results(tmp_path, "one")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{one.f[a: b, c]:,.0f}", "1,234"),
        ("{t[runs][arm=x,seed=1][after]:x100 .0f} %", "400 %"),
        ("{t[runs][all arm=x][after].mean}", "2.5"),
        ("{t[runs][all arm=x][after]:.1f}", "1.0, 4.0"),
        ("{t[curve].list[-1]:.1f}", "7.5"),
        ("{t[found]:.3f}", "0.450 [0.400, 0.500]"),
        ("{t[found]:+.2f}", "+0.45 [+0.40, +0.50]"),
        ("{t[spread]:.1f}", "-1.0 ± 0.2"),
    ],
)
def test_a_template_reads_what_its_path_says(results: Results, template: str, text: str) -> None:
    assert template.format_map(results) == text


@pytest.mark.parametrize("template", ["{t[missing]}", "{t[runs][arm=x][after]}", "{absent[a]}"])
def test_a_path_that_leads_nowhere_or_to_two_places_fails(results: Results, template: str) -> None:
    with pytest.raises((KeyError, OSError)):
        template.format_map(results)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0682, "0.068"), (1.28, "1.3"), (11.9, "12"), (10208.2, "10,208"), (0.0, "0.0")]
)
def test_two_significant_digits(value: float, text: str) -> None:
    assert shown(value, "2s") == text


def test_nothing_rounds_to_a_negative_zero() -> None:
    assert shown(-0.0001, ".3f") == "0.000"


def test_a_row_fills_its_template_by_a_value_or_by_the_names_of_a_mapping(results: Results) -> None:
    spec = {"head": "a | b", "rows": {"x": {"file": "one", "key": "64"}, "y": {"file": "one", "key": "0"}}}
    written = documents.table(spec | {"row": "$label | {$file[curve][$key]:.1f}"}, results.folder)
    assert written.splitlines() == ["| a | b |", "| --- | --- |", "| x | 7.5 |", "| y | 5.0 |"]
    plain = {"head": "a", "file": "one", "rows": {"x": "64"}, "row": "{t[curve][$row]:.1f}"}
    assert documents.table(plain, results.folder).endswith("| 7.5 |\n")


def test_a_stale_an_unused_and_an_unknown_block_are_told_and_writing_mends_the_first(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- numbers: table -->\n| old |\n<!-- end -->\nof <!--n:one-->1<!--/n--> b\n")
    written = {"table": "| new |\n", "one": "2", "spare": "3"}
    told = stale(tmp_path, written)
    assert len(told) == 2 and told[0].startswith("README.md: its numbers") and told[1].endswith("block spare")
    assert stale(tmp_path, written, write=True) == told[1:]
    assert (
        page.read_text() == "a\n<!-- numbers: table -->\n| new |\n<!-- end -->\nof <!--n:one-->2<!--/n--> b\n"
    )
    with pytest.raises(DocumentError, match=r"README\.md: documents\.yaml has no block one"):
        filled(page.read_text(), {"table": ""}, "README.md")


@pytest.mark.parametrize("page", DOMAINS, ids=lambda page: page.parent.name)
def test_each_domain_says_last_what_has_not_been_shown(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1] == "Not shown yet"
