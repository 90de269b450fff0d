"""A disk of a few kilobytes that fills up for real, where the machine lets a test mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of `size` at `folder`; skips the test where mounting is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)):
        pytest.skip("this machine does not let a test mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=300)


def enlarge(folder: Path, size: str) -> None:
    """Somebody has made room."""
    assert _mount("-o", f"remount,size={size}", str(folder))


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, timeout=300).returncode == 0
    except FileNotFoundError:
        return False


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return path
