"""Resuming, starting over, and what each leaves alone."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl import report, view
from pipelinerl.base.ports import ReservedPorts
from pipelinerl.config import ConfigError
from pipelinerl.config.files import config_path
from pipelinerl.launcher.folder import RunFolder, check_writable
from tests.support.one_line import check_one_line
from tests.unit.launcher.conftest import Refused


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that was started twice."""
    config_path(tmp_path).parent.mkdir()
    config_path(tmp_path).write_text("attempt: 1\n")
    for name in ("streams/actor", "streams_0", "finetune/current", "actor_vllm_0", "services/retrieval"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    return RunFolder(tmp_path)


def test_attempts_are_counted(folder: RunFolder, tmp_path: Path) -> None:
    assert folder.next_attempt() == 2
    assert RunFolder(tmp_path / "fresh").next_attempt() == 0


@pytest.mark.parametrize(
    "damage", [b"attempt: 1\n" + bytes(20), b"attempt: [", b"attempt: x", b"seed: 1\n", b"7", b"\xff"]
)
def test_a_damaged_tree_does_not_stop_a_resume(
    damage: bytes, folder: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config_path(tmp_path).write_bytes(damage)
    (tmp_path / "streams_0.bak").mkdir()  # somebody's copy
    assert folder.next_attempt() == 2
    assert "counted by the streams that were set aside" in caplog.text and "\n" not in caplog.messages[0]


def test_streams_of_the_last_attempt_are_set_aside(folder: RunFolder, tmp_path: Path) -> None:
    folder.set_streams_aside(2)
    assert (tmp_path / "streams_1/actor").is_dir() and not (tmp_path / "streams").exists()
    folder.set_streams_aside(2)


def test_starting_over_removes_only_what_a_run_made(folder: RunFolder, tmp_path: Path) -> None:
    for name in ("world", "theirs"):
        (tmp_path / name).mkdir()
    folder.start_over(["world"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "theirs"]


def test_a_checkpoint_counts_only_when_it_is_whole(folder: RunFolder, tmp_path: Path) -> None:
    assert folder.checkpoint is None
    (tmp_path / "finetune/current/config.json").write_text("{}")
    assert folder.checkpoint == tmp_path / "finetune/current"


def test_completion_is_remembered(folder: RunFolder) -> None:
    assert folder.completed(1, None) is None
    folder.mark_completed(40, None)
    assert folder.completed(40, None) == folder.completed(20, 3) == "40 steps"
    assert folder.completed(41, None) is None
    folder.mark_completed(40, 2)
    assert folder.completed(40, 2) == folder.completed(40, 1) == "2 epochs"
    assert folder.completed(40, 3) is None and folder.completed(40, None) is None


def test_which_folders_may_hold_a_run(folder: RunFolder, tmp_path: Path) -> None:
    check_writable(tmp_path)
    check_writable(tmp_path / "new/deep")
    with pytest.raises(ConfigError, match="a file; choose another folder"):
        check_writable(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("dangling", "dangling is a link to .*gone, which is not there"),
        ("dangling/run", "dangling is a link to .*gone, which is not there"),
        ("file/run", "Not a directory"),
        ("file/deep/run", "Not a directory"),
        ("circle", "Too many levels of symbolic links"),
        ("circle/run", "Too many levels of symbolic links"),
        ("a" * 300, "File name too long"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named_in_one_line(where: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "file").touch()
    said = rf"^output_dir=.*{where}: cannot be made: .*{why}; choose another folder$"
    with pytest.raises(ConfigError, match=said):
        check_writable(tmp_path / where)
    with pytest.raises(ConfigError, match=rf"^output_dir=.*{where}: cannot be made: "):
        RunFolder(tmp_path / where).__enter__()


def test_the_launcher_names_a_folder_that_cannot_be_made(refused: Refused, tmp_path: Path) -> None:
    said = refused(f"output_dir={tmp_path}/{'a' * 300}")
    assert said.startswith("launcher: output_dir=") and "File name too long" in said


def test_a_file_system_that_takes_no_folders_is_named_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^output_dir=/proc/run: cannot be made: .*; choose another"):
        RunFolder(Path("/proc/run")).__enter__()


@pytest.mark.parametrize("where", ["/proc/run", "/proc/deep/run", "/dev/fd/run", "/sys/kernel/run"])
def test_a_place_that_takes_no_files_is_refused_before_anything_starts(where: str) -> None:
    """Also for a superuser, who may write there by the folder's mode."""
    with pytest.raises(ConfigError, match=rf"^output_dir={where}: .*; choose another folder$"):
        check_writable(Path(where), force_restart=True)


def test_looking_whether_files_can_be_made_leaves_none(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "new/deep"):
        check_writable(where)
    assert list(tmp_path.iterdir()) == []


def test_validating_refuses_a_place_that_takes_no_files(refused: Refused) -> None:
    said = refused("output_dir=/proc/run", "validate=true")
    assert said.startswith("launcher: output_dir=/proc/run: cannot be made: ")


def test_a_reserved_port_is_not_given_to_a_second_launcher(tmp_path: Path) -> None:
    with ReservedPorts(tmp_path) as first, ReservedPorts(tmp_path) as second:
        port = next(port for port in range(21000, 22000) if first.take(port))
        assert not second.take(port)
    with ReservedPorts(tmp_path) as third:
        assert third.take(port)


@pytest.mark.parametrize("name", ["launcher/completed.json", "finetune/metrics.jsonl", "streams/0/1.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_a_device_among_the_files_of_a_run_is_refused(
    name: str, make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever opens a pipe waits until somebody writes, and /dev/zero has no end."""
    config_path(tmp_path).parent.mkdir()
    config_path(tmp_path).touch()
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.with_name("nothing.log").symlink_to(os.devnull)
    check_writable(tmp_path)
    make(file)
    with pytest.raises(ConfigError) as refused:
        check_writable(tmp_path)
    check_one_line(str(refused.value), f"{file}: a pipe or a device")
    for command in (report.main, view.main):
        assert command([str(tmp_path)]) == 1
        check_one_line(capsys.readouterr().err.strip().partition(": ")[2], f"{file}: a pipe or a device")
