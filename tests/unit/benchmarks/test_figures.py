"""A script's options are those of the usage in its docstring."""

import re
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks._figures import RESULTS, ROOT, command_line
from docs import pipeline, screenshots

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
    there = {path.stem for path in RESULTS.glob("*.png") if not path.stem.endswith("_dark")}
    assert there <= figures.drawers().keys()
    for name in there:
        for kept in (f"{name}.json", f"{name}.png"):
            (tmp_path / kept).write_bytes((RESULTS / kept).read_bytes())
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert figures.main([]) == 0
    assert {path.stem for path in tmp_path.glob("*_dark.png")} == {f"{name}_dark" for name in there}
    assert figures.main(["gpu_trl"]) == 2
    assert "figures: gpu_trl cannot be drawn again; there are arms, " in capsys.readouterr().err


def test_every_figure_of_a_page_is_measured_or_drawn_by_code_and_has_a_dark_variant() -> None:
    known, shown = figures.drawers().keys(), set()
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("domains/*/README.md")):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"^!\[", text, re.MULTILINE), f"{page}: a figure without a dark variant"
        pictures = re.findall(r"<picture>(.*?)</picture>", text, re.DOTALL)
        assert len(pictures) == text.count("<img"), page
        for picture in pictures:
            (light,) = re.findall(r'<img\s[^>]*\bsrc="([^"]+)"', picture)
            (dark,) = re.findall(r'media="\(prefers-color-scheme: dark\)" srcset="([^"]+)"', picture)
            path, other = (page.parent / light).resolve(), (page.parent / dark).resolve()
            assert path.is_file() and other.is_file(), f"{page}: {light}"
            pairs = {f"{path.stem}_dark", path.stem.removesuffix("_light") + "_dark"}
            assert other.stem in pairs and re.search(r'\balt="[^"]+"', picture), f"{page}: {light}"
            shown.add(path)
    measured = {path.stem for path in shown if path.parent == RESULTS}
    assert measured <= known and all((RESULTS / f"{name}.json").is_file() for name in measured)
    screens = {ROOT / "docs" / f"rollouts_{width}_light.png" for width in screenshots.SIZES}
    drawn = {ROOT / "docs" / name for name in pipeline.FILES}
    assert {path for path in shown if path.parent != RESULTS} <= screens | drawn


def test_the_diagram_is_the_one_that_its_code_draws(tmp_path: Path) -> None:
    pipeline.main([str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == set(pipeline.FILES)
    for name in pipeline.FILES:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), "python -m docs.pipeline"
