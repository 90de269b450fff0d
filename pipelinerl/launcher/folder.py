"""The folder of a run: one launcher at a time, resuming, starting over, the mark of completion."""

import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from omegaconf import OmegaConf
from xxhash import xxh3_64_hexdigest

from pipelinerl.base.closing import Closing
from pipelinerl.base.errors import ConfigError, first_line
from pipelinerl.base.files import check_files, write_whole
from pipelinerl.config.files import config_path, read_shown
from pipelinerl.observe.report_page import CHOICES
from pipelinerl.run_state.saved_steps import kept_step, saved_step
from pipelinerl.run_state.snapshots import Snapshots

log = logging.getLogger(__name__)

MADE_BY_A_RUN = (
    "accounting",
    "actor",
    "actor_vllm_*",
    "conf",
    "environment_*",
    "finetune",
    "finetune_*",
    "launcher",
    "preprocess",
    "ref_vllm_*",
    "report",
    "report.md",
    "services",
    "streams",
    "streams_*",
    "weights",
)
"""By the core. What a domain makes besides, it names itself (`Domain.folders`)."""

OWN_BEFORE_START = frozenset({".lock", "launcher", "conf", "world"})
"""What an interrupted start may leave before the configuration is written."""
COMPLETED = Path("launcher", "completed.json")
NEEDED = (".", "conf/exp_config.yaml", "accounting", "actor", "finetune", "preprocess", "streams", "launcher")
WRITTEN = ("streams/*", "*/state")
"""Folders that are made in the course of a run.

Without these and the ones above a run goes on for a while and then lacks what it has written.
"""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_AFTER_THAT = "what was in it is lost; put it back, or begin anew with force_restart=true"


class FolderChanged(Exception):
    """Part of a run's folder was removed or replaced while the run was going on."""


def check_name(output_dir: Path) -> None:
    """Raises ConfigError for a path that the file system does not even look at."""
    if (hindrance := _hindrance(output_dir)) is not None:
        raise _cannot_be_made(output_dir, hindrance)


def check_writable(output_dir: Path, force_restart: bool = False) -> None:
    """Raises ConfigError if a run may not write here."""
    key = f"output_dir={output_dir}"
    check_name(output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise ConfigError(f"{key}: a file; choose another folder")
    nearest_parent = next(path for path in (output_dir, *output_dir.parents) if path.exists())
    if not os.access(nearest_parent, os.W_OK):
        raise ConfigError(f"{key}: {nearest_parent} is not writable; choose another folder")
    if output_dir.is_dir() and not config_path(output_dir).exists():
        foreign = sorted(path.name for path in output_dir.iterdir() if path.name not in OWN_BEFORE_START)
        if "finetune" in foreign:
            if not force_restart:
                raise ConfigError(
                    f"{key}: holds a run without conf/exp_config.yaml, with which a resume is compared; "
                    "put the file back, choose another folder, or give force_restart=true"
                )
        elif foreign:
            raise ConfigError(f"{key}: holds {foreign[0]}, which no run made; choose an empty folder")
    check_files(output_dir)
    _try_to_write(output_dir, nearest_parent)


def _hindrance(output_dir: Path) -> str | None:
    """Why no folder can be made there, as far as can be told without making one."""
    for path in (output_dir, *output_dir.parents):
        try:
            path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                return f"{path} is a link to {path.readlink()}, which is not there"
        except OSError as error:  # below a file, links in a circle, a name that is too long
            return error.strerror
        else:
            return None
    return None


def _try_to_write(output_dir: Path, nearest_parent: Path) -> None:
    """Make a file, in a folder if there is none yet: /proc lets a superuser write and takes neither."""
    try:
        if nearest_parent == output_dir:
            tempfile.TemporaryFile(dir=output_dir).close()
            return
        with tempfile.TemporaryDirectory(prefix=".pipelinerl-", dir=nearest_parent) as folder:
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno in _FULL:  # the launcher says what to do about these
            raise
        raise _cannot_be_made(output_dir, f"{nearest_parent} takes no files ({error.strerror})") from None


def _cannot_be_made(output_dir: Path, why: str | None) -> ConfigError:
    """For a run whose folder the file system refuses."""
    return ConfigError(f"output_dir={output_dir}: cannot be made: {why}; choose another folder")


class RunFolder(Closing):
    """`output_dir`; while it is open, this launcher alone owns it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._held: list[int] = []
        """Descriptors of the folders seen, whose numbers the file system gives to no other meanwhile."""

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a+")
        except OSError as error:
            if error.errno in _FULL:
                raise
            raise _cannot_be_made(self.path, error.strerror) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise ConfigError(
                f"output_dir={self.path}: in use by launcher process {owner}; stop it or choose another"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {socket.gethostname()}\n")  # hosts may share the folder
        lock.flush()
        self._lock = lock
        return self

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
        while self._held:
            os.close(self._held.pop())

    def next_attempt(self) -> int:
        """0 for a fresh folder, then one more at every start; dry runs do not count.

        A tree that is damaged, or cut off before it says so, is no reason to refuse a sound checkpoint, since
        this start writes it anew: then the streams that earlier starts set aside are counted.
        """
        left = self.began, (self.path / "streams").is_dir(), (self.path / CHOICES).is_file()
        if not config_path(self.path).is_file() or not any(left):  # then only a dry run wrote the tree
            return 0
        try:
            return int(OmegaConf.select(read_shown(self.path), "attempt")) + 1
        except (ConfigError, ValueError, TypeError) as error:
            named = (path.name.removeprefix("streams_") for path in self.path.glob("streams_[0-9]*"))
            aside = [int(number) for number in named if number.isdecimal()]
            log.warning("damaged tree: starts are counted by the streams that were set aside: %s", error)
            return max(aside, default=-1) + 2

    def set_streams_aside(self, attempt: int) -> None:
        """Keep what the previous attempt did not deliver, out of the way of this one."""
        streams = self.path / "streams"
        if streams.is_dir():
            streams.rename(self.path / f"streams_{attempt - 1}")

    def made(self, also: Iterable[str]) -> Iterator[Path]:
        """What runs made here, with the domain's folders `also`."""
        for pattern in (*MADE_BY_A_RUN, *also):
            yield from self.path.glob(pattern)

    def start_over(self, also: Iterable[str]) -> None:
        """Remove what runs made here, with the domain's folders `also`, and nothing else."""
        for path in list(self.made(also)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    @property
    def checkpoint(self) -> Path | None:
        """The latest saved model, or None before the first checkpoint."""
        current = self.path / "finetune" / "current"
        return current if (current / "config.json").is_file() else None

    @property
    def began(self) -> bool:
        """Whether a start goes on from an earlier one: its checkpoint, or what its actor drew and evaluated.

        Before the first checkpoint a start draws on, and keeps the evaluation of the first weights.
        """
        return self.checkpoint is not None or bool(Snapshots(self.path, "actor").versions())

    def lost_training(self) -> str | None:
        """What to say where a run trained and all that its trainer saved is gone; None for any other.

        A start would begin at step 0, over what is left. Raises ConfigError as `completed`.
        """
        if saved_step(self.path) != 0:
            return None
        versions = Snapshots(self.path, "actor").versions()
        if steps := self._done()["steps"]:
            trained = f"this run completed {steps} steps"
        elif versions and max(versions) > 0 and not (self.path / "finetune").exists():
            trained = f"this run trained {max(versions)} samples"
        elif step := kept_step(self.path):  # a save that was interrupted has left more than this
            trained = f"this run kept the model of step {step}"
        else:
            return None
        return (
            f"{self.path / 'finetune'}: has no checkpoint, although {trained}; put it back, or train anew "
            "with force_restart=true"
        )

    def completed(self, steps: int, epochs: int | None) -> str | None:
        """What the run completed here, if that is as much as is asked for now: `40 steps` or `3 epochs`."""
        done = self._done()
        by_epochs = done.get("epochs")
        if done["steps"] < steps or (by_epochs is not None and (epochs is None or by_epochs < epochs)):
            return None
        return f"{done['steps']} steps" if by_epochs is None else f"{by_epochs} epochs"

    def _done(self) -> dict[str, int]:
        """What the mark says. Raises ConfigError for a damaged one."""
        mark = self.path / COMPLETED
        if not mark.exists():
            return {"steps": 0}
        try:
            text, _, checksum = mark.read_text(encoding="utf-8").partition("\n")
            if checksum.strip() not in ("", xxh3_64_hexdigest(text.encode())):
                raise ValueError("its checksum differs")
            done = json.loads(text)
            if not isinstance(done, dict) or not {"steps"} <= done.keys() <= {"steps", "epochs"}:
                raise ValueError(f"{text[:40]!r} is not a mark of completion")
            if not all(type(value) is int and value >= 0 for value in done.values()):
                raise ValueError(f"{text[:40]!r} has no count of steps")
        except (ValueError, RecursionError, OSError) as error:
            raise ConfigError(
                f"{mark}: damaged ({first_line(error)}); remove it; the same command then continues from "
                "the last checkpoint, or finds all steps done"
            ) from None
        return done

    def mark_completed(self, steps: int, epochs: int | None) -> None:
        """Remember that training reached `steps`, or `epochs` before, and everything ended in order."""
        limits = {"steps": steps} if epochs is None else {"steps": steps, "epochs": epochs}
        text = json.dumps(limits)
        write_whole(self.path / COMPLETED, f"{text}\n{xxh3_64_hexdigest(text.encode())}\n")

    def check_unchanged(self) -> None:
        """Raises FolderChanged where a folder that a running run needs is not the one that it was before."""
        if self._lock is None:
            return
        written = (path.relative_to(self.path) for pattern in WRITTEN for path in self.path.glob(pattern))
        for name in dict.fromkeys(
            (*NEEDED, *map(str, written), *self._seen)
        ):  # a folder before what is in it
            path = self.path / name
            try:
                found = path.stat()
            except FileNotFoundError:
                if name not in self._seen:
                    continue
                raise FolderChanged(f"{path} was removed while the run was going on; {_AFTER_THAT}") from None
            is_folder = stat.S_ISDIR(found.st_mode)
            identity = found.st_dev, found.st_ino if is_folder else 0
            if is_folder and name not in self._seen:
                with suppress(OSError):  # gone again, or no descriptor is left
                    self._held.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            if self._seen.setdefault(name, identity) != identity:
                raise FolderChanged(f"{path} was replaced while the run was going on; {_AFTER_THAT}")
