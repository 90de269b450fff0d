"""A script's options are those of the usage in its docstring."""

from pathlib import Path

import pytest

from benchmarks._figures import command_line

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
