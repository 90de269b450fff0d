"""How a command that a person gives ends: with its status and at most one line, whatever comes between."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelinerl.base.errors import leave
from pipelinerl.extras.bootstrap import __main__ as bootstrap
from pipelinerl.streams import SingleStreamSpec
from tests.support.processes import DEADLINE_S
from tests.unit.streams.conftest import fill

ROOT = Path(__file__).resolve().parents[3]
OF_THE_LAUNCHER = {
    *("actor/__main__", "actor/worker", "base/child", "base/guard", "engines/cpu/__main__"),
    *("finetune/__main__", "launcher/checks/imports", "launcher/checks/rehearsal", "launcher/mps"),
    *("launcher/environment_server", "launcher/trainer_stand_in", "observe/wandb_run", "preprocess/__main__"),
    "privacy_hopqa/scorer/__main__",
}
"""Programs of a run: their stderr is a log, and whoever started them says how they ended."""
OTHERS = {"launch", "config/reference"}
"""The launcher, which has phases of its own to name, and a page that is written into a file."""


def test_every_command_of_a_person_ends_through_leave() -> None:
    found = {
        str(path.relative_to(ROOT / room).with_suffix("")): path.read_text()
        for room in ("pipelinerl", "domains")
        for path in (ROOT / room).rglob("*.py")
    }
    commands = {name for name, text in found.items() if re.search(r'^if __name__ == "__main__":', text, re.M)}
    assert {name for name in commands if "    leave(" not in found[name]} == OF_THE_LAUNCHER | OTHERS


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        leave("bootstrap", main)
    assert ended.value.code == 130 and capsys.readouterr().err == "bootstrap: interrupted\n"


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("domains.reputation_hacking.env > /dev/full", 1, r"env: .*No space left on device.*\n"),
        ("domains.reputation_hacking.env >&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line(command: str, status: int, said: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m {command}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == status and re.fullmatch(said, done.stderr), done.stderr


def test_streams_are_read_where_nobody_sees_them(tmp_path: Path) -> None:
    fill(SingleStreamSpec(tmp_path, "stats"), {"a": 1})
    read = f"exec {sys.executable} -m pipelinerl.streams {tmp_path} stats >&-"
    done = subprocess.run(["bash", "-c", read], capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_recipe_without_a_place_or_a_tokenizer_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*given: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            leave("bootstrap", lambda: bootstrap.main(["+domain=guessing", "hardware=cpu", *given]))
        return ended.value.code, capsys.readouterr().err

    status, said = told("bootstrap.out=/proc/none")
    assert status == 1 and re.fullmatch("bootstrap: .*/proc/none.*\n", said)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    status, said = told(f"bootstrap.start={model}", f"bootstrap.out={tmp_path / 'out'}")
    assert status == 2 and re.fullmatch(f"bootstrap: {model} holds no tokenizer.json.*\n", said)
