"""A script's options are those of the usage in its docstring."""

import re
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks._figures import RESULTS, ROOT, command_line

USAGE = """What it measures.

    python -m benchmarks.it [--texts 1024] [--seconds 5.0] [--out FILE] [--work results/it] [--seeds 0 1]
                            [--names NAME ...] [--cpu] [--hardware gpu|cpu] [--size 1.7B]
                            [key=value ...]

The words [beside] it are no options.
"""


def test_defaults_and_types_are_read_off_the_usage() -> None:
    found = vars(command_line(USAGE, []))
    assert found == {
        "texts": 1024,
        "seconds": 5.0,
        "out": None,
        "work": Path("results/it"),
        "seeds": [0, 1],
        "names": [],
        "cpu": False,
        "hardware": "gpu",
        "size": "1.7B",
        "overrides": [],
    }


def test_what_is_given_has_the_type_of_the_default() -> None:
    given = ["--seconds", "2", "--out", "x", "--seeds", "3", "--names", "a", "b", "--cpu", "a.b=1"]
    found = command_line(USAGE, [*given, "--hardware", "cpu", "--texts", "7"])
    assert (found.seconds, found.out, found.seeds, found.names) == (2.0, Path("x"), [3], ["a", "b"])
    assert (found.texts, found.cpu, found.hardware, found.overrides) == (7, True, "cpu", ["a.b=1"])


@pytest.mark.parametrize("given", [["--texts", "many"], ["--hardware", "tpu"], ["--names", "c"], ["--other"]])
def test_what_an_option_does_not_allow_is_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        command_line(USAGE, given, names=("a", "b"))


@pytest.mark.usefixtures("undrawn")
def test_every_figure_that_can_be_is_drawn_again_from_its_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = figures.drawers().keys()
    there = {path.stem for path in RESULTS.glob("*.png")} & known
    assert {"arms", "capacity", "gpu_privacy_language", "text_domains", "pretrained_gpu"} <= there
    for name in there:
        for kept in (f"{name}.json", f"{name}.png"):
            (tmp_path / kept).write_bytes((RESULTS / kept).read_bytes())
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert figures.main([]) == 0
    assert {path.stem for path in tmp_path.glob("*_dark.png")} == {f"{name}_dark" for name in there}
    assert figures.main(["gpu_raro"]) == 2
    assert "figures: gpu_raro cannot be drawn again; there are arms, " in capsys.readouterr().err


def test_pages_show_the_dark_variant_of_a_figure_that_has_one() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("domains/*/README.md")]
    for page in pages:
        for name in re.findall(r"^!\[[^]]*\]\((\S+)\.png\)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert not (page.parent / f"{name}_dark.png").exists(), f"{page}: {name}"
