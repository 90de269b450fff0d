"""A full disk is named, and what was complete before stays complete."""

import errno
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelinerl.base import faults
from pipelinerl.base.files import write_whole
from pipelinerl.base.line_file import LineFile
from pipelinerl.base.logs import setup_logging
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.checkpoints import save_checkpoint, settle
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.step import Learner
from pipelinerl.finetune.types import TrainingMetrics
from pipelinerl.launcher import run
from pipelinerl.launcher.run import failure_line
from pipelinerl.launcher.supervision import ChildFailed
from pipelinerl.observe import figure_style
from pipelinerl.observe.status import StatusFile
from pipelinerl.run_state.accounting import Outcome, RolloutLog, reconcile
from pipelinerl.streams import SingleStreamSpec, read_stream, write_to_streams
from pipelinerl.streams.errors import StreamError
from tests.support.builders import trainer_config
from tests.support.full_disk import enlarge, fill, small_disk
from tests.support.tiny_model import causal_lm


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    torch.set_num_threads(1)
    model = causal_lm(32, hidden=32, positions=64, spread=0.1, eos=1)
    return build_learner(trainer_config(tmp_path, model), Ranks(), tmp_path / "model")


def save(learner: Learner, root: Path, step: int) -> None:
    save_checkpoint(root, learner, TrainingMetrics(completed_steps=step), {"positions": {"0": step}})


@pytest.mark.parametrize("point", ["finetune:mid_checkpoint", "finetune:between_swaps"])
def test_a_checkpoint_that_does_not_fit_leaves_the_previous_one_or_is_complete(
    learner: Learner, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "finetune"
    save(learner, root, 1)
    monkeypatch.setattr(faults, "_asked", f"{point}:full_disk")
    monkeypatch.setenv(faults.FOLDER, str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        save(learner, root, 2)
    monkeypatch.setattr(faults, "_asked", None)
    expected = 1 if point == "finetune:mid_checkpoint" else 2
    assert settle(root) == expected
    assert sorted(p.name for p in root.iterdir()) == ["current", "training_state"]
    save(learner, root, 3)
    assert settle(root) == 3


def test_what_does_not_fit_names_its_file_and_leaves_the_old_one(learner: Learner, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "32k") as disk:
        write_whole(disk / "state.json", "old")
        with pytest.raises(OSError, match=r"No space left on device: .*/disk/state\.json"):
            write_whole(disk / "state.json", "new" * 20_000)
        assert (disk / "state.json").read_text() == "old"
        with pytest.raises(OSError, match=r"/disk/x\.png"):
            figure_style.save(disk / "x.png", lambda figure: figure.subplots().plot([1, 2]))
        with pytest.raises(OSError, match=r"No space left.*/disk/finetune"):
            save(learner, disk / "finetune", 1)  # not even the configuration fits
        enlarge(disk, "96k")
        with pytest.raises(OSError, match=r"/disk/finetune cannot be written: .*No space left"):
            save(learner, disk / "finetune", 1)  # the library that writes tensors has an error of its own


def test_a_stream_on_a_full_disk_is_named_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        spec = SingleStreamSpec(disk, "actor")
        sent, stream = 0, write_to_streams(spec)
        with stream, pytest.raises(StreamError, match=r"stream actor.* cannot be written: .*No space left"):
            for sent in range(1000):
                stream.write([{"number": sent, "array": np.zeros(1000, np.float32)}])
        assert sent > 1
        enlarge(disk, "1m")
        with write_to_streams(spec) as stream:
            stream.write([{"number": sent, "array": np.zeros(1000, np.float32)}])
        with read_stream(spec) as reader:
            assert [record[0]["number"] for record in reader.read_available()] == list(range(sent + 1))


def test_a_record_of_rollouts_names_the_file_that_cannot_grow(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        with RolloutLog(disk, "actor") as log:
            log.record(Outcome.STARTED, ["0-0/0"])
            fill(disk)
            with pytest.raises(OSError, match=r"actor\.jsonl") as error:
                for number in range(10_000):
                    log.record(Outcome.STARTED, [f"0-0/{number + 1}"])
        assert error.value.errno in (errno.ENOSPC, None)
        counts = reconcile(disk)
        assert counts.adds_up and counts.started >= 1


@pytest.fixture
def full_device() -> Iterator[Path]:
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip("needs /dev/full")
    yield path


def test_a_command_whose_output_does_not_fit_says_so_in_one_line(full_device: Path) -> None:
    command = [sys.executable, "-m", "pipelinerl.clean", "--dry-run"]
    with full_device.open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1 and line.startswith("clean: ") and "No space left on device" in line


def test_a_line_that_does_not_fit_names_its_file(full_device: Path, tmp_path: Path) -> None:
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(full_device)
    with LineFile(link) as file, pytest.raises(OSError, match=r"No space left on device: .*metrics.jsonl"):
        file.append(b"{}")


def test_a_log_that_cannot_be_written_is_said_once_and_the_work_goes_on(
    full_device: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "actor.log").symlink_to(full_device)
    setup_logging(tmp_path, "actor")
    for _ in range(3):
        logging.getLogger("pipelinerl.anything").info("a line")
    said = capsys.readouterr().err
    assert said.count("cannot be written: [Errno 28]") == 1 and "Traceback" not in said
    logging.getLogger().handlers.clear()


def test_a_status_that_cannot_be_written_stops_nobody(full_device: Path, tmp_path: Path) -> None:
    status = StatusFile(tmp_path, "actor", interval_s=60)
    (tmp_path / "actor" / "~status.json").symlink_to(full_device)
    status.set(version=1)
    status.write()
    status.close()


def test_the_launcher_says_that_the_disk_is_full_when_the_last_words_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ChildFailed("actor", "exit status 1", "", tmp_path / "stderr.log")
    assert "space" not in failure_line(error)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    assert failure_line(error).endswith(f"no space is left at {tmp_path}")
