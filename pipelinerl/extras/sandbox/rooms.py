"""What programs see of the file system: the interpreter's library and a few devices, nothing else.

`Readable` is both the list of mounts, where namespaces can be had, and the list of grants to Landlock.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pipelinerl.extras.sandbox import kernel, landlock

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_SCRATCH = ("/tmp", "/scratch")
"""Names of the folder of a program, by preference; only with namespaces is there one."""
_FOREIGN = ("site-packages", "dist-packages")
"""Inside the library's folder, but not of the library."""
_NEW_ROOT = "/proc"
"""Any folder that exists and is not needed; the new root is mounted over it, in these processes' view."""
_LOCKED = {
    os.ST_RDONLY: kernel.MS_RDONLY,
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: 1 << 21,
}
"""Flags of a mount, as told and as given: a copy must keep those it has."""


def library() -> list[str]:
    """Folders of the standard library; some systems keep its compiled part apart."""
    return sorted({os.path.realpath(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")})


def check_readable() -> None:
    """Raises OSError where the user that programs run as cannot reach the library."""
    with open(os.__file__, "rb"):
        pass


def build(packages: list[str], folders: list[str] | None = None) -> str:
    """Mount the library, packages and devices, all but devices read only, as the only root there is.

    Returns where programs have their folder: `/tmp`, unless that would cover something of the others. There
    Python's `tempfile` finds the current folder instead, which it is.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _NEW_ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.umask(0o022)
    own = folders or library()
    _show(own)
    foreign = [at for path in own for name in _FOREIGN if os.path.isdir(at := f"{_NEW_ROOT}{path}/{name}")]
    for at in foreign:
        kernel.mount("tmpfs", at, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k,mode=755")
    _show(packages)  # which may lie in one of these
    for at in foreign:
        _read_only(at)
    os.makedirs(_NEW_ROOT + "/dev")
    for device in DEVICES:
        Path(_NEW_ROOT + device).touch()
        kernel.mount(device, _NEW_ROOT + device, None, kernel.MS_BIND)
    scratch = next(
        name for name in _SCRATCH if not any(path.startswith(f"{name}/") for path in (*own, *packages))
    )
    os.mkdir(_NEW_ROOT + scratch)
    kernel.pivot_root(_NEW_ROOT)
    _read_only("/")
    return scratch


def _show(paths: list[str]) -> None:
    for path in paths:
        os.makedirs(_NEW_ROOT + path, exist_ok=True)
        kernel.mount(path, _NEW_ROOT + path, None, kernel.MS_BIND)
        _read_only(_NEW_ROOT + path)


def _read_only(target: str) -> None:
    told = os.statvfs(target).f_flag
    kept = sum(given for flag, given in _LOCKED.items() if told & flag)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", target, None, flags | kept)


def mount_scratch(folder: str, megabytes: int, files: int) -> None:
    """An empty folder in memory for one program, in a mount namespace of its own."""
    data = f"size={megabytes}m,nr_inodes={files},mode=1777"
    kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, data)
    os.chdir(folder)


def grant(packages: list[str]) -> None:
    """The same by Landlock; there is no folder to write to, because its size could not be limited."""
    landlock.restrict([*_entries(), *packages], DEVICES)
    os.chdir("/")


def _entries() -> Iterator[str]:
    """What lies in the library's folders, but for packages that were installed there."""
    for folder in library():
        for entry in os.scandir(folder):
            if entry.name not in _FOREIGN:
                yield entry.path


class Packages:
    """Finds installed packages by name in the folders that were named, for programs that may import them."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """As `importlib` asks; names below a package are found by its own path."""
        import importlib.util

        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )

    def install(self) -> None:
        sys.meta_path.append(self)  # type: ignore[arg-type]
