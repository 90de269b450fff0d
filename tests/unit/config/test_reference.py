"""The page of all keys, and `--help KEY`."""

import re
from pathlib import Path

import pytest

from pipelinerl.config.reference import page
from pipelinerl.config.tree import Config
from pipelinerl.launch import main

ROOT = Path(__file__).resolve().parents[3]
ROWS = re.compile(r"^\| `([\w.]+)` \| `(.*?)`(?: \*kept\*)? \| (.+) \|$", re.MULTILINE)


def leaves(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Keys with points of what `Config` without any argument dumps; a mapping that is a value stays one."""
    found: dict[str, object] = {}
    for name, value in tree.items():
        whole = isinstance(value, dict) and f"{prefix}{name}" in dict.fromkeys(
            key for key, *_ in ROWS.findall(page())
        )
        if isinstance(value, dict) and not whole:
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def test_the_committed_page_is_that_of_the_schema() -> None:
    told = "run python -m pipelinerl.config.reference > docs/configuration.md"
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page(), told


def test_every_key_is_there_once_with_its_default_and_a_meaning() -> None:
    rows = ROWS.findall(page())
    shown = {key: default for key, default, _ in rows}
    tree = leaves(Config().model_dump(mode="json", by_alias=True))
    assert len(rows) == len(shown) and shown.keys() == tree.keys()
    words = {None: "null", True: "true", False: "false"}
    for key, value in tree.items():
        if value is None or isinstance(value, bool):
            assert shown[key] == words[value], key
        elif isinstance(value, int | float):
            assert float(shown[key]) == value, key
        elif isinstance(value, str):
            assert shown[key].replace("\\|", "|") == value, key


def test_help_explains_a_key_a_section_and_what_is_misspelt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "max_lag"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("max_lag=null") and "older than the last weight version" in said[1]
    assert main(["--help", "finetune.rl", "seed=3"]) == 0
    told = capsys.readouterr().out
    assert "finetune.rl.epsilon_low=" in told and "seed=42" in told and "kept over a resume" in told
    assert main(["--help", "finetune.learning_rat"]) == 2
    assert "did you mean finetune.learning_rate?" in capsys.readouterr().err
