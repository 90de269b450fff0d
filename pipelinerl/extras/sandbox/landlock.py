"""Files and TCP by Landlock, where namespaces are refused: whatever is not granted here cannot be opened.

Applied to the template process; every process that it forks is under the same rules for ever. Each program is
in a domain of its own besides, so that programs cannot look into each other.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from pipelinerl.extras.sandbox import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_MAKE_DEVICE = 1 << 6
"""Which nobody here may do anyway."""
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files each version of the interface knows; later ones know as many as the last."""
_NET_SINCE, _SCOPES_SINCE = 4, 6
_ALL_NET, _ALL_SCOPES = 0b11, 0b11


def version() -> int:
    """Of the interface, from 1. Raises OSError where the kernel has none or a filter refuses it."""
    return kernel.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _VERSION_FLAG)


def restrict(readable: Iterable[str], devices: Iterable[str]) -> None:
    """Only these files and folders can be read, only these devices also written. Needs no_new_privs."""
    known = version()
    handled = (1 << _RIGHTS[min(known, max(_RIGHTS))]) - 1
    words = [handled]
    words += [_ALL_NET] if known >= _NET_SINCE else []
    words += [_ALL_SCOPES] if known >= _SCOPES_SINCE else []
    rules = _ruleset(words)
    try:
        for path in readable:
            _grant(rules, path, _READ_FILE | _READ_DIR)
        for path in devices:
            _grant(rules, path, _READ_FILE | _WRITE_FILE)
    except OSError:
        os.close(rules)
        raise
    _restrict_self(rules)


def separate() -> None:
    """A domain of this process's own inside of the one that it is in, which takes nothing more away.

    A process may look into others of its domain (`/proc/PID/fd` leads to their pipes whatever rules for files
    say), never into those of a domain beside or above. From version 6 on the same holds for signals and
    abstract sockets. Needs no_new_privs.
    """
    words = [_MAKE_DEVICE]
    if version() >= _SCOPES_SINCE:
        words += [0, _ALL_SCOPES]
    _restrict_self(_ruleset(words))


def _ruleset(words: list[int]) -> int:
    attributes = struct.pack(f"{len(words)}Q", *words)
    return kernel.syscall(
        "landlock_create_ruleset",
        _CREATE_RULESET,
        ctypes.create_string_buffer(attributes, len(attributes)),
        len(attributes),
        0,
    )


def _restrict_self(rules: int) -> None:
    try:
        kernel.syscall("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _grant(rules: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        kernel.syscall("landlock_add_rule", _ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
