"""Document identity: which values name the gold document."""

import unicodedata
from typing import Any

import pytest

from domains.privacy_hopqa.data.identity import alias_set, value_aliases

LOCAL_GOLD = ["local/DR0005/IN002_pdf/x.md"]


def matches_gold(hit_or_value: Any, gold: list[str]) -> bool:
    given = alias_set(hit_or_value) if isinstance(hit_or_value, dict) else value_aliases([hit_or_value])
    return not given.isdisjoint(value_aliases(gold))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("drbench/data/tasks/DR0005/files/IN002_pdf/x.pdf", True),
        ("/data/DR0005/files/IN002_pdf/x.pptx.txt", True),
        ("local\\DR0005\\IN002_pdf\\X.MD", True),
        ("local/DR0005/files/IN002_pdf/x.md", True),
        ("local/DR0005/IN002_pdf/x.md#w01of03", True),
        ("x.pdf", False),
        ("shared/x.pdf", False),
        ("DR0006/files/IN002_pdf/x.pdf", False),
        ("local/DR0005/IN003_pdf/x.md", False),
    ],
)
def test_local_values_match_within_task_and_folder_only(value: str, expected: bool) -> None:
    assert matches_gold(value, LOCAL_GOLD) is expected
    assert (
        matches_gold({"doc_id": "local/DR0005/other/y.md", "metadata": {"path": value}}, LOCAL_GOLD)
        is expected
    )


def test_quarter_spellings_match_in_compact_form() -> None:
    gold = ["local/DR0005/IN002_pdf/Q1 Report.md"]
    assert matches_gold("local/DR0005/IN002_pdf/quarter1-report.pdf", gold)
    assert not matches_gold("local/DR0005/IN002_pdf/quarter2-report.pdf", gold)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("web/18639", True),
        ("WEB/18639/", True),
        ("web/18639.html", True),
        ("web/18639#w02of05", True),
        ("18639", False),
        ("web/1863", False),
    ],
)
def test_web_values(value: str, expected: bool) -> None:
    assert matches_gold(value, ["web/18639"]) is expected
    assert matches_gold({"docid": value}, ["web/18639"]) is expected


def test_a_web_page_cannot_pass_as_a_private_document() -> None:
    hit = {"docid": "web/7", "url": "local/DR0005/IN002_pdf/x.md", "title": "local/DR0005/IN002_pdf/x.md"}
    assert not matches_gold(hit, LOCAL_GOLD)
    hit["url"] = "https://host/DR0005/files/IN002_pdf/x.md"
    assert not matches_gold(hit, LOCAL_GOLD)


def test_names_in_other_scripts_are_names_of_their_own() -> None:
    report, minutes = (value_aliases([f"local/DR0005/資料/{name}.md"]) for name in ("報告書", "議事録"))
    assert not report & minutes
    assert report & value_aliases(["local/DR0005/資料/報告書.pdf"])
    decomposed = unicodedata.normalize("NFD", "local/DR0005/ガイド/Résumé.md")
    assert value_aliases(["local/DR0005/ガイド/Résumé.md"]) == value_aliases([decomposed])


def test_ambiguous_aliases_of_the_index_do_not_match() -> None:
    other = {
        "doc_id": "local/DR0005/IN002_pdf/x.csv",
        "metadata": {"ambiguous_aliases": ["local/dr0005/in002_pdf/x", "compact:dr0005/in002_pdf/x"]},
    }
    assert not matches_gold(other, LOCAL_GOLD)
    assert "local/dr0005/in002_pdf/x.csv" in alias_set(other)


def test_lists_of_values_and_missing_fields_are_accepted() -> None:
    hit = {"metadata": {"relative_paths": ["a/b", "DR0005/files/IN002_pdf/x.docx"], "file_path": None}}
    assert matches_gold(hit, LOCAL_GOLD)
    assert not matches_gold({}, LOCAL_GOLD)
    assert not matches_gold("", [""])
