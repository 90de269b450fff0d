"""Weight files: complete or absent, two versions, checked by size and checksum."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file

from pipelinerl import clean
from pipelinerl.engines import wire
from pipelinerl.launcher import run
from pipelinerl.weights.transports.file import FileTransport
from tests.support.forked import Forked
from tests.support.version_sums import checksum


def test_a_version_is_written_with_size_and_checksum(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    staged = FileTransport(tmp_path, torch.bfloat16).stage(7, [("w", weight.T)])
    data = Path(staged.info["path"]).read_bytes()
    assert staged.info["version"] == "7"
    assert staged.info["bytes"] == staged.bytes == len(data)
    assert staged.info["checksum"] == checksum(data)
    assert staged.layout == {"w": ((3, 2), "torch.bfloat16")}
    assert torch.equal(load_file(staged.info["path"])["w"], weight.detach().T.to(torch.bfloat16))
    assert [one.name for one in tmp_path.iterdir()] == ["weights-00000007.safetensors"]


def test_two_versions_are_kept_and_all_are_removed_at_the_end(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path)
    for version in (1, 2, 3, 3):
        transport.stage(version, [("w", torch.ones(3))])
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "weights-00000002.safetensors",
        "weights-00000003.safetensors",
    ]
    transport.close()
    assert not list(tmp_path.iterdir())


def test_directory_is_shared_memory_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, run = tmp_path / "shm", tmp_path / "run"
    shared.mkdir()
    monkeypatch.setattr(wire, "SHARED_MEMORY", shared)
    chosen = wire.weights_directory(run, 1000)
    assert chosen.parent == shared and chosen == wire.weights_directory(run, 1000)
    assert chosen != wire.weights_directory(tmp_path / "other", 1000)
    (chosen / "weights-00000001.safetensors").touch()
    assert not list(wire.weights_directory(run, 1000).iterdir()), "leftovers of an earlier start go"
    assert wire.weights_directory(run, 10**18) == run / "weights"
    assert wire.weights_directory(run, 1000, shared=True) == run / "weights", "other hosts have their own"
    monkeypatch.setattr(wire.os, "access", lambda path, how: False)  # of a container that mounts it read-only
    assert wire.weights_directory(run, 1000) == run / "weights"


def test_runs_that_share_a_configured_folder_leave_each_other_and_its_owner_alone(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    mine = here / "weights-of-my-thesis.safetensors"
    mine.write_text("precious")
    runs = [tmp_path / name for name in ("one", "two")]
    first, second = (FileTransport(wire.weights_directory(run, 1000, here)) for run in runs)
    staged = [one.stage(1, [("w", torch.full((4,), value))]) for value, one in ((1.0, first), (2.0, second))]
    resumed = FileTransport(wire.weights_directory(runs[0], 1000, here))
    assert not Path(staged[0].info["path"]).exists(), "leftovers of an earlier start go"
    resumed.close()
    assert torch.equal(load_file(staged[1].info["path"])["w"], torch.full((4,), 2.0))
    second.close()
    assert list(here.iterdir()) == [mine]


def test_only_a_folder_that_a_run_made_is_removed_from_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SHARED_MEMORY", tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    for configured, left in ((mine, [mine]), (None, [mine]), (tmp_path, [mine])):
        transport = FileTransport(wire.weights_directory(tmp_path / "run", 0, configured))
        transport.stage(1, [("w", torch.ones(3))])
        transport.close()
        assert list(tmp_path.iterdir()) == left and not list(mine.iterdir())


OWNER = """
import sys, time
from pathlib import Path
from pipelinerl.engines.wire import claim
owner = claim(Path(sys.argv[1]))
print("mine", flush=True)
time.sleep(600)
"""


def test_what_a_killed_run_left_in_shared_memory_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire, "SHARED_MEMORY", tmp_path)
    living, killed, stranger = (tmp_path / f"pipelinerl-{name}" for name in ("living", "killed", "stranger"))
    command = [sys.executable, "-c", OWNER]
    owners = [Forked([*command, str(one)], stdout=subprocess.PIPE) for one in (living, killed)]
    stranger.mkdir()
    try:
        for process in owners:
            assert process.stdout is not None and process.stdout.readline() == b"mine\n"
        (killed / "weights-1.safetensors").write_bytes(b"x" * 1_500_000)
        owners[1].kill()
        owners[1].wait()
        assert clean.main(["--dry-run"]) == 0 and killed.exists()
        assert clean.main([]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said == [f"would remove {killed} (1.5 MB)", f"removed {killed} (1.5 MB)"]
        assert living.exists() and not killed.exists() and stranger.exists()
        with wire.claim(killed):
            assert wire.remove_abandoned() == {}
    finally:
        for process in owners:
            process.kill()
            process.wait()
    assert set(wire.remove_abandoned()) == {living, killed} and stranger.exists()


def test_a_folder_in_shared_memory_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    folder = wire.shared_directory(tmp_path / "run")
    for make in (lambda: wire.claim(folder).close(), lambda: wire.weights_directory(tmp_path / "run", 1)):
        make()
        assert folder.stat().st_mode & 0o777 == 0o700
        for mode in (0o777, 0o000):  # as an earlier version left it; made without any right
            folder.chmod(mode)
            make()
            assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o1777, 0o2775])
def test_a_configured_folder_where_others_write_is_as_safe(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is known beforehand, so that whoever may write there could make it first."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(mode)
    folder = wire.weights_directory(tmp_path / "run", 1, shared)
    assert folder.stat().st_mode & 0o777 == 0o700
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(OSError, match="not a folder of this user"):
        wire.weights_directory(tmp_path / "run", 1, shared)


def test_what_others_put_into_shared_memory_holds_up_no_launcher_and_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SHARED_MEMORY", tmp_path / "shm")
    pipe, linked, theirs = (tmp_path / "shm" / f"pipelinerl-{name}" for name in ("pipe", "linked", "theirs"))
    precious = tmp_path / "precious"
    for folder in (pipe, theirs, precious):
        folder.mkdir(parents=True)
        (folder / "data").write_text("x")
    os.mkfifo(pipe / wire.OWNER)  # who opens it to write waits for a reader
    linked.symlink_to(precious)
    for folder in (precious, theirs):
        (folder / wire.OWNER).touch()
    another = os.geteuid() + 1
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "geteuid", lambda: another)
        assert wire.remove_abandoned() == {}
    assert set(wire.remove_abandoned()) == {theirs}, "this user's own"
    assert (pipe / "data").exists() and (precious / "data").exists()


def test_a_folder_that_is_removed_during_a_run_is_made_again_as_private_and_as_the_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """systemd removes what a user has in shared memory who logs out; anybody may make the folder first."""
    monkeypatch.setattr(wire, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    folder = wire.weights_directory(tmp_path / "run", 1)
    transport = FileTransport(folder)
    for version in range(3):
        transport.stage(version, [("w", torch.ones(3))])
    assert not caplog.records
    shutil.rmtree(folder)
    path = Path(transport.stage(3, [("w", torch.ones(3))]).info["path"])
    assert path.exists() and folder.stat().st_mode & 0o777 == 0o700
    assert wire.remove_abandoned() == {}, "it is claimed"
    assert "was removed during the run and is made again" in caplog.text and caplog.records[0].remark  # type: ignore[attr-defined]
    shutil.rmtree(folder)
    (tmp_path / "theirs").mkdir()
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(wire.PermanentUpdateError, match="not a folder of this user"):
        transport.stage(4, [("w", torch.ones(3))])
    assert not list((tmp_path / "theirs").iterdir())
    folder.unlink()
    transport.stage(4, [("w", torch.ones(3))])
    transport.close()
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_folder_that_another_user_made_there_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    folder = wire.shared_directory(tmp_path / "run")
    if kind == "link":
        (tmp_path / "theirs").mkdir()
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir()
        another = os.geteuid() + 1  # whoever runs the tests, the folder is not this user's
        monkeypatch.setattr(os, "geteuid", lambda: another)
    for make in (lambda: wire.claim(folder), lambda: wire.weights_directory(tmp_path / "run", 1)):
        with pytest.raises(OSError, match="not a folder of this user; have its owner remove it"):
            make()


def test_a_run_with_a_folder_of_its_own_for_weights_asks_none_of_shared_memory_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy that the refusal above names; the guard removes what the trainer would write there."""
    folder, handed = wire.shared_directory(tmp_path / "run"), []
    folder = tmp_path / "shm" / folder.name
    for module in (wire, run):
        monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "shm")
    folder.parent.mkdir()
    folder.write_text("another user's, and no folder")

    def supervisor(children: object, **options: object) -> None:
        handed.append(options["leftovers"])
        raise InterruptedError("far enough")

    monkeypatch.setattr(run, "Supervisor", supervisor)
    for directory, refused in ((None, PermissionError), (str(tmp_path / "disk"), InterruptedError)):
        cfg = SimpleNamespace(
            weights=SimpleNamespace(directory=directory),
            watchdog=SimpleNamespace(silent_deadline_s=1.0),
            engine=SimpleNamespace(shutdown_deadline_s=1.0),
        )
        plan = SimpleNamespace(output_dir=tmp_path / "run", cfg=cfg, children=[])
        with pytest.raises(refused):
            run.supervise(plan, print, lambda: None)  # type: ignore[arg-type]
    assert handed == [[wire.weights_directory(tmp_path / "run", 1, tmp_path / "disk")]]


SENDERS = """
import os, signal, sys, torch
from pathlib import Path
from pipelinerl.engines import wire
from pipelinerl.weights.transports.file import FileTransport
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for folder in sys.argv[1:]:
    if os.fork() == 0:
        run = Path(folder)
        claimed = wire.claim(wire.shared_directory(run))  # else any launcher may clear it away
        disk = run / "disk"
        transport = FileTransport(wire.weights_directory(run, 1000, disk if disk.is_dir() else None))
        path = transport.stage(1, [("w", torch.ones(3))]).info["path"]
        print(folder, path, transport._guard.pid, os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR1])
        transport.close()
        sys.exit()
for _ in sys.argv[1:]: os.wait()
"""
Sender = tuple[Path, psutil.Process, int]
ON_DISK = "killed, with weights.directory"
ENDS = ("killed", "killed while its guard is stopped", "closed", ON_DISK)


@pytest.fixture(scope="module")
def senders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sender]]:
    """Processes that hold weights, by how they are to end: their file, their guard and their number."""
    runs = {str(tmp_path_factory.mktemp("run")): end for end in ENDS}
    (Path(next(run for run, end in runs.items() if end == ON_DISK)) / "disk").mkdir()
    with Forked([sys.executable, "-c", SENDERS, *runs], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = [parent.stdout.readline().split() for _ in ENDS]
        yield {
            runs[run]: (Path(path), psutil.Process(int(guard)), int(pid)) for run, path, guard, pid in said
        }
        for *_, pid in said:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGUSR1)


@pytest.mark.parametrize("end", ENDS)
def test_weights_outside_the_run_end_with_their_process(end: str, senders: dict[str, Sender]) -> None:
    """Also when nobody else is left, such as the launcher, and its guard."""
    path, guard, sender = senders[end]
    assert path.exists() and path.is_relative_to("/dev/shm") == (end != ON_DISK)
    if "stopped" in end:
        while not _ignores_hangups(guard.pid):
            time.sleep(0.02)
        guard.suspend()
    os.kill(sender, signal.SIGUSR1 if end == "closed" else signal.SIGKILL)
    deadline = time.monotonic() + 60
    while path.parent.exists() or guard.is_running():
        assert time.monotonic() < deadline, (path, guard)
        time.sleep(0.05)


def _ignores_hangups(pid: int) -> bool:
    """Whether a process has come so far; before that it would not be stopped by somebody, but hung up."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << (signal.SIGHUP - 1))
