"""The service under which processes share a card: started in folders of its own, and always ended."""

import stat
from pathlib import Path

import pytest

from benchmarks.gpu import mps

CONTROL = """#!/bin/sh
echo "$1 $CUDA_MPS_PIPE_DIRECTORY ${CUDA_VISIBLE_DEVICES-all}" >> "$CALLS"
[ -z "$1" ] && cat >> "$CALLS"
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
exit ${STATUS:-0}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for the driver's program writes down how it was called."""
    program = tmp_path / mps.CONTROL
    program.write_text(CONTROL)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    return tmp_path / "calls"


def test_the_service_sees_all_cards_and_ends_when_what_it_was_for_fails(calls: Path) -> None:
    with pytest.raises(ValueError, match="inside"), mps.service() as own:
        folder = Path(own["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.is_dir()
        raise ValueError("inside")
    assert calls.read_text().splitlines() == [f"-d {folder} all", f" {folder} all", "quit"]
    assert not folder.exists()


def test_a_service_that_does_not_start_is_named(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(SystemExit, match=f"{mps.CONTROL} does not start"), mps.service():
        raise AssertionError("not reached")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="is not on this host"), mps.service():
        raise AssertionError("not reached")


def test_rates_of_processes_are_added_and_a_failed_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(mps.sys, "executable", str(program))
    for text, status in (("2.5", 0), ("out of memory", 1)):
        program.write_text(f"#!/bin/sh\necho {text} >&{1 + status}\nexit {status}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        if status == 0:
            assert mps.kernels(3, 1.0, {}) == 7.5
        else:
            with pytest.raises(RuntimeError, match="ended with 1: out of memory"):
                mps.kernels(3, 1.0, {})


def test_both_ways_stand_beside_their_ratio() -> None:
    assert [one.value for one in mps.compared("a run", "texts/s", 2.0, 3.0)] == [2.0, 3.0, 1.5]
