"""What is said of damaged or removed files of a run, of a closed output, and of signals early and late."""

import errno
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl import launch
from pipelinerl.config import ConfigError
from pipelinerl.config.files import config_path
from pipelinerl.launcher import run as launcher_run
from pipelinerl.launcher.folder import COMPLETED, FolderChanged, RunFolder, check_writable
from pipelinerl.launcher.run import Interrupted, failure_line, interruptible
from pipelinerl.launcher.supervision import ChildFailed
from pipelinerl.run_state.snapshots import Snapshots
from tests.unit.launcher.conftest import DryRun

GUESSING = ("+domain=guessing", "engine.max_model_len=64", "llm.parameters.max_tokens=16")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(dry_run: DryRun, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A launch of which everything but the processes and the report is real."""
    monkeypatch.setenv("DRY_RUN", "0")
    monkeypatch.setattr(launch, "supervise", lambda *_: None)
    monkeypatch.setattr(launch, "report_run", lambda *_: None)

    def started(*more: str) -> tuple[int, str, str]:
        status, out, err = dry_run(*GUESSING, "wandb.use_wandb=false", *more)
        return status, out, err

    return started


def one_line(err: str) -> str:
    (line,) = err.splitlines()
    assert line.startswith("launcher: ")
    return line


DAMAGES: list[Callable[[str], str]] = [
    lambda text: text[: len(text) // 3],
    lambda text: text[:-5],
    lambda _: "",
    lambda text: text.replace("4", "5", 1),
    lambda text: text.replace('"steps"', '"stepz"', 1),
    lambda _: "[]",
    lambda _: "7",
    lambda _: '{"steps": true}',
    lambda _: '{"steps": -1}',
    lambda _: '{"steps": "40"}',
    lambda _: '{"steps": 40, "epochs": null}',
    lambda _: "\x00" * 30,
    lambda _: "[" * 100_000,
]


def test_a_damaged_mark_of_completion_is_one_line(run: Run, tmp_path: Path) -> None:
    assert run("finetune.max_train_steps=40")[0] == 0
    mark = tmp_path / "run" / COMPLETED
    assert run("finetune.max_train_steps=40")[1].count("this run completed its 40 steps") == 1
    whole = mark.read_text()
    for damaged in (damage(whole) for damage in DAMAGES):
        mark.write_text(damaged)
        status, _, err = run("finetune.max_train_steps=40")
        assert status == 2 and f"{COMPLETED}: damaged (" in one_line(err) and "remove it" in err, damaged
    mark.unlink()
    assert run("finetune.max_train_steps=40")[0] == 0


@pytest.mark.parametrize("damaged", [b"\x9b\x00", b"[1, 2]\n", b""])
def test_a_damaged_configuration_of_a_complete_run_is_rewritten(
    damaged: bytes, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the line says; the mark of completion, by which nothing is started, had kept the start from it."""
    monkeypatch.setattr(RunFolder, "lost_training", lambda _: None)  # no trainer has saved anything here
    assert run("finetune.max_train_steps=40")[0] == 0
    tree = config_path(tmp_path / "run")
    whole = tree.read_text()
    tree.write_bytes(damaged)
    status, _, err = run("finetune.max_train_steps=40")
    assert status == 0 and "damaged tree" in err and str(tree) in err
    assert [line for line in tree.read_text().splitlines() if "seed" in line] == [
        line for line in whole.splitlines() if "seed" in line
    ]
    assert "this run completed its 40 steps" in run("finetune.max_train_steps=40")[1]


def test_a_mark_of_an_earlier_version_counts(tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / COMPLETED).write_text('{"steps": 40}\n')
    assert RunFolder(tmp_path).completed(40, None) == "40 steps"


def test_a_run_without_its_configuration_is_named(run: Run, tmp_path: Path) -> None:
    assert run()[0] == 0
    (tmp_path / "run" / "finetune").mkdir(exist_ok=True)
    config_path(tmp_path / "run").unlink()
    status, _, err = run()
    assert status == 2 and "holds a run without conf/exp_config.yaml" in one_line(err)
    assert run("force_restart=true")[0] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters").mkdir()
    with pytest.raises(ConfigError, match="holds letters, which no run made"):
        check_writable(tmp_path / "other", force_restart=True)


PARTS = ("finetune", "actor", "streams", "launcher", "streams/training_data", "actor/state")


@pytest.mark.parametrize("name", [".", "conf/exp_config.yaml", *PARTS])
def test_what_is_removed_under_a_run_ends_it_by_name(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def supervise(plan: object, say: object, tick: Callable[[], None], others: object) -> None:
        for made in PARTS:
            (folder / made).mkdir(exist_ok=True)
        tick()
        gone = folder / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    monkeypatch.setattr(launch, "supervise", supervise)
    status, _, err = run()
    assert status == 1 and f"{folder / name} was removed while the run was going on" in one_line(err)


def test_a_folder_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        (tmp_path / "finetune").mkdir()
        folder.check_unchanged()
        (tmp_path / "finetune").rename(tmp_path / "aside")
        (tmp_path / "finetune").mkdir()
        with pytest.raises(FolderChanged, match="finetune was replaced"):
            folder.check_unchanged()


def test_a_folder_that_is_made_again_at_once_is_noticed(tmp_path: Path) -> None:
    """Where nothing holds the first one, file systems such as ext4 give its inode number to the next."""
    open_before = len(os.listdir("/proc/self/fd"))
    with RunFolder(tmp_path) as folder:
        made = tmp_path / "actor" / "state"
        made.mkdir(parents=True)
        folder.check_unchanged()
        shutil.rmtree(made)
        made.mkdir()
        with pytest.raises(FolderChanged, match="actor/state was replaced"):
            folder.check_unchanged()
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(
    ("cause", "said", "kills", "expected"),
    [
        ("exit status 1", ": MemoryError", 0, "refused it memory: give it more (ulimit -v"),
        ("exit status 1", ": OSError: [Errno 12] Cannot allocate memory", 0, "refused it memory"),
        ("exit status 1", ": RuntimeError: can't start new thread", 0, "refused it memory"),
        ("killed by SIGKILL", "; last line: step 3", 1, "has killed processes for want of memory meanwhile"),
        ("killed by SIGKILL", "; last line: step 3", 0, ""),
        ("exit status 1", ": ValueError: no", 1, ""),
    ],
)
def test_a_child_without_memory_is_told_so(
    cause: str, said: str, kills: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = launcher_run._OOM_KILLS_BEFORE
    monkeypatch.setattr(launcher_run, "oom_kills", lambda: before + kills)
    line = failure_line(ChildFailed("actor", cause, said, tmp_path))
    assert expected in line if expected else "give it more" not in line


def test_a_child_whose_log_is_gone_is_still_named(tmp_path: Path) -> None:
    error = ChildFailed("actor", "exit status 1", "", tmp_path / "gone" / "stderr.log")
    assert failure_line(error).startswith("actor")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "'/data/x'; free some space"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "give it more memory"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "allow more processes"),
        (OSError(errno.EMFILE, "Too many open files"), "allow more open files"),
        (PermissionError(errno.EACCES, "Permission denied", "/run/y"), "'/run/y'; put it right"),
        (MemoryError(), "out of memory; give it more memory"),
        (RuntimeError("can't start new thread"), "can't start new thread; allow more processes"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, remedy: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(launch, "supervise", fails)
    status, _, err = run()
    assert status == 1 and remedy in one_line(err) and "the same command resumes" in err


def test_a_signal_says_what_was_going_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(launch, "report_run", killed)
    status, _, err = run()
    assert status == 143
    assert one_line(err) == (
        "launcher: stopped by SIGTERM; the run is complete; "
        f"python -m pipelinerl.report {tmp_path / 'run'} writes its report"
    )
    assert (tmp_path / "run" / COMPLETED).is_file()
    monkeypatch.setattr(launch, "compose", killed)
    status, _, err = run()
    assert (status, one_line(err)) == (143, "launcher: stopped by SIGTERM before anything was started")


def test_an_error_that_an_interruption_leaves_behind_does_not_hide_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it meets a library between two halves of a change that a `finally` needs whole."""

    def half_done(*_: object) -> None:
        try:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                {}["_flags"]
        except KeyError as error:
            raise ConfigError(f"cannot be read: {error}") from None

    monkeypatch.setattr(launch, "compose", half_done)
    status, _, err = run()
    assert (status, one_line(err)) == (143, "launcher: stopped by SIGTERM before anything was started")


def test_what_fails_while_a_stopped_run_ends_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        try:
            with interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            raise OSError(errno.ENOSPC, "No space left on device", "/data/x")

    monkeypatch.setattr(launch, "supervise", full)
    status, _, err = run()
    assert status == 1 and "'/data/x'; free some space" in one_line(err)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_terminal_that_closes_and_a_schedulers_warning_stop_a_run_in_order(number: signal.Signals) -> None:
    """Unless they are ignored, as below `nohup`; afterwards they do what they did before."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), number)
        signal.signal(number, signal.SIG_DFL)
        with pytest.raises(Interrupted, match=f"stopped by {number.name}"), interruptible():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_an_interruption_is_heeded_also_behind_an_ampersand() -> None:
    """A shell without job control has such commands ignore SIGINT; whoever sends it means the run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Interrupted, match="stopped by SIGINT"), interruptible():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_terminal_that_was_closed_takes_no_lines_and_holds_nothing_up() -> None:
    """Its lines would fail where they are written, in the middle of what stops the run."""
    script = """
import os, signal, sys, time
from pipelinerl.launcher.run import Interrupted, interruptible
signal.signal(signal.SIGHUP, signal.SIG_DFL)
try:
    with interruptible():
        print("ready", flush=True)
        time.sleep(300)
except Interrupted as error:
    print("stopped", flush=True)
    print("stopped", file=sys.stderr, flush=True)
    os._exit(error.status)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", script])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP


def test_an_interruption_is_no_error_that_somebody_expects() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize(
    ("number", "after_s"),
    [(signal.SIGINT, 0.15), (signal.SIGTERM, 0.3), (signal.SIGUSR1, 0.6), (signal.SIGTERM, 1.0)],
)
def test_a_signal_in_the_first_second_is_one_line(number: int, after_s: float, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipelinerl.launch", "+domain=guessing", "no_such_key=1"]
    process = subprocess.Popen(
        [*command, f"output_dir={tmp_path}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until_handled(process)
    time.sleep(after_s)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    if process.returncode == 2:  # it was quicker
        assert "no_such_key" in err
        return
    assert process.returncode == 128 + number
    assert one_line(err) == f"launcher: stopped by {signal.Signals(number).name} before anything was started"


def until_handled(process: subprocess.Popen[str]) -> None:
    """The interpreter runs the launcher's first line: its handler of SIGTERM is there."""
    ends = time.monotonic() + 300
    while time.monotonic() < ends and process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)
    raise AssertionError("no handler was installed")


def test_a_closed_output_is_one_line(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "pipelinerl.launch", "+domain=guessing", "--cfg", "job"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(write)
    assert ended.returncode == 1
    assert "nobody reads the output any more (a closed pipe)" in one_line(ended.stderr)


def test_an_output_that_was_closed_before_the_start_shows_nothing(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m pipelinerl.launch --help >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("damage", ["", "x", "3 0123", "-1", "٣", None])
def test_no_start_takes_the_name_of_an_earlier_one(
    damage: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots, used = Snapshots(tmp_path, "actor"), []
    for attempt in range(3):
        used.append(snapshots.next_start(attempt, recorded=attempt > 0))
    assert used == [0, 1, 2]
    file = tmp_path / "actor" / "state" / "starts"
    file.unlink() if damage is None else file.write_text(damage)
    assert snapshots.next_start(3, recorded=True) == 3
    assert f"{file}: {'removed' if damage is None else 'damaged'}; starts are counted" in caplog.text
    assert snapshots.next_start(4, recorded=True) == 4
    file.write_text("7")  # without its checksum
    assert snapshots.next_start(5, recorded=True) == 5
