"""Writing a file that appears whole or not at all; used for everything that another process may read."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipelinerl.base.errors import ConfigError


@contextmanager
def naming(path: Path, *foreign: type[Exception]) -> Iterator[None]:
    """An error of writing that names no file, as that of a full disk, names `path`.

    `foreign`: what a library raises in place of OSError; it becomes one.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except foreign as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def write_whole(
    path: Path,
    data: str | bytes | Iterable[bytes | bytearray | memoryview],
    *,
    sync: bool = False,
    mode: int | None = None,
) -> None:
    """Write `~NAME` beside `path`, then rename it; folders are made.

    A reader sees the old content or the new one, also when the writer is killed. `sync`: wait until the disk
    has it, for files that must survive a power cut. `mode` holds before anything is in the file. Raises
    OSError that names the file, such as on a full disk; what was at `path` then stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"~{path.name}")
    pieces = [data.encode()] if isinstance(data, str) else [data] if isinstance(data, bytes) else data
    opener = partial(os.open, mode=0o666 if mode is None else mode)
    with naming(path), open(beside, "wb", opener=opener) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)  # of one that a writer that was killed has left, too
        file.writelines(pieces)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(beside, path)


def sync_files(folder: Path) -> None:
    """Wait until the disk has each file of `folder`: a power cut may leave a rename without what it moved."""
    for below, _, names in os.walk(folder):
        for name in names:
            with open(Path(below, name), "rb") as file:
                os.fsync(file.fileno())


def let_others_read(folder: Path) -> None:
    """Give safetensors files below `folder` the mode that any new file gets, which the umask decides.

    The library lets nobody but their owner read them: another user could not serve or resume the model.
    """
    probe = folder / "~mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for file in folder.rglob("*.safetensors"):
        file.chmod(mode)


def is_there(path: Path) -> bool:
    """Whether a file is there now, also one that another host has just written to a shared folder.

    Network file systems remember for up to a minute that a name was not there. They look again once they see
    that the folder was changed, and a change of one's own shows them.
    """
    if path.exists():
        return True
    try:
        os.utime(path.parent)
    except OSError:  # no such folder yet, or one of somebody else
        return False
    return path.exists()


def check_files(folder: Path) -> None:
    """Raises ConfigError for a pipe or a device below a run's folder, also behind a link.

    Whoever opens a pipe waits until somebody writes into it, and some devices have no end.
    """
    for below, _, names in os.walk(folder):
        for path in (Path(below, name) for name in names):
            if (path.is_fifo() or path.is_char_device()) and not path.samefile(os.devnull):
                raise ConfigError(
                    f"{path}: a pipe or a device, which a reader would wait for without end; remove it, or "
                    "put the file back"
                )
