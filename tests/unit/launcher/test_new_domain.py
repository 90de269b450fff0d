"""A domain to begin with: what is refused; that it runs is tested with the README's command."""

from pathlib import Path

import pytest

from pipelinerl.new_domain import main
from tests.support.one_line import check_one_line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-domain", "'my-domain' is no module name"),
        ("Guess", "'Guess' is no module name"),
        ("class", "'class' is no module name"),
        ("guessing", "guessing is a domain that is installed"),
        ("json", "json is a module that Python finds already"),
    ],
)
def test_a_name_that_could_not_be_imported_or_is_taken_is_refused(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--into", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    check_one_line(error, "new_domain: ", name)
    assert said in error and not (tmp_path / "new").exists()


def test_files_of_the_user_are_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("x")
    assert main(["fresh_domain", "--into", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
