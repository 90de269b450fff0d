"""Fault points: refused outside tests, taken once, free when unset."""

import errno
import os
import re
import signal
from pathlib import Path

import pytest

from pipelinerl import launch
from pipelinerl.base import faults
from tests.support.one_line import check_one_line

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("value", "folder", "message"),
    [
        ("finetune:start:kill", None, "faults are for tests"),
        ("finetune:start:kill", "missing", "faults are for tests"),
        ("finetune:begin:kill", ".", "no point finetune:begin; use one of launcher:start"),
        ("finetune:start:explode", ".", "no action 'explode'; use one of hold"),
        ("finetune:start", ".", "no action ''"),
        ("finetune:start:kill:0", ".", "the count '0' is not a number from 1"),
        ("finetune:start:kill:1:2", ".", "no action 'kill'"),
    ],
)
def test_a_wrong_fault_is_refused_in_one_line(
    value: str, folder: str | None, message: str, tmp_path: Path
) -> None:
    where = None if folder is None else str(tmp_path / folder)
    with pytest.raises(faults.FaultRefused, match=re.escape(message)) as error:
        faults.parse(value, where)
    assert "\n" not in str(error.value)


def test_the_launcher_refuses_a_fault_that_no_test_enabled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "_asked", "finetune:start:kill")
    assert launch.main(["+domain=guessing", "hardware=cpu"]) == 2
    check_one_line(capsys.readouterr().err, "faults are for tests")


def test_unset_a_point_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_asked", None)
    faults.hit("finetune:start")
    faults.hit("no such point")


def ask(monkeypatch: pytest.MonkeyPatch, folder: Path, value: str) -> None:
    monkeypatch.setattr(faults, "_asked", value)
    monkeypatch.setattr(faults, "_passages", {})
    monkeypatch.setenv(faults.FOLDER, str(folder))


def test_the_count_says_which_passage_is_hit_and_it_is_hit_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    ask(monkeypatch, tmp_path, "worker:mid_rollout:kill:3")
    for passages in range(1, 6):
        faults.hit("worker:mid_rollout")
        faults.hit("finetune:start")
        assert len(sent) == (passages >= 3)
    assert sent == [(os.getpid(), signal.SIGKILL)]
    assert int((tmp_path / faults.HIT).read_text()) == os.getpid()


def test_a_held_process_goes_on_when_it_is_released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask(monkeypatch, tmp_path, "finetune:start:hold")
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            (tmp_path / faults.RELEASE).touch()

    monkeypatch.setattr(faults.time, "sleep", nap)
    faults.hit("finetune:start")
    assert len(naps) == 3


def test_a_full_disk_stays_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask(monkeypatch, tmp_path, "streams:write:full_disk")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as error:
            faults.hit("streams:write")
        assert error.value.errno == errno.ENOSPC


def test_memory_is_gone_in_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask(monkeypatch, tmp_path, "engine:mid_update:no_memory")
    for _ in range(2):
        with pytest.raises(MemoryError, match="engine:mid_update"):
            faults.hit("engine:mid_update")


def test_every_point_stands_somewhere_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "pipelinerl").rglob("*.py"))
    started = {f"{role}:start" for role in re.findall(r'run_role\(\s*"(\w+)"', code)}
    assert set(re.findall(r'faults\.hit\("([^"]+)"\)', code)) | started == set(faults.POINTS)
