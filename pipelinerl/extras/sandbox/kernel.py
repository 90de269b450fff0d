"""Calls of the Linux kernel that Python has no name for; they raise OSError as functions of `os` do.

Called by the template process, which has the standard library only.
"""

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

_CAPABILITY_VERSION_3 = 0x20080522
_SYS_PIVOT_ROOT = 155
_M_ARENA_MAX = -8
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    """A call by its number (x86_64); integers are passed as 64 bits, None as a null pointer."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *given), what)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(result, f"mount {target}")


def pivot_root(folder: str) -> None:
    """Make a mount point the root of this process's files, and drop all others."""
    os.chdir(folder)
    syscall("pivot_root", _SYS_PIVOT_ROOT, b".", b".")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def prctl(option: int, *arguments: int) -> None:
    given = [*arguments, 0, 0, 0, 0][:4]
    _checked(_libc.prctl(option, *map(ctypes.c_ulong, given)), f"prctl({option})")


def one_arena() -> None:
    """Threads share glibc's heap: 64 MiB for each would fill a limit of address space."""
    _libc.mallopt(_M_ARENA_MAX, 1)


def drop_capabilities() -> None:
    """This thread has none afterwards and, with no_new_privs, never will."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, struct.pack("6I", *(0,) * 6)), "capset")


def set_filter(program: bytes) -> None:
    """Install a classic BPF program for system calls; needs no_new_privs."""
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)), struct.calcsize("HxxxxxxQ")
    )
    result = _libc.prctl(
        PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_ulong(ctypes.addressof(header)), 0, 0
    )
    _checked(result, "prctl(PR_SET_SECCOMP)")
