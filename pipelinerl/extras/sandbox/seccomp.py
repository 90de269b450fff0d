"""Which system calls a program may make: what one Python process needs, and no other.

A call that is not listed fails with EPERM, one that libc tries before an older one with ENOSYS; calls of
another architecture's table end the process. Without fork, exec, sockets, signals to others, mounts, keys,
tracing, io_uring and BPF most ways out are closed whatever else the host offers. x86_64 only.
"""

import errno
import struct

SIMPLE = {
    # reading and writing of what is open
    "read": 0,
    "write": 1,
    "readv": 19,
    "writev": 20,
    "pread64": 17,
    "pwrite64": 18,
    "preadv": 295,
    "pwritev": 296,
    "close": 3,
    "close_range": 436,
    "fstat": 5,
    "lseek": 8,
    "dup": 32,
    "dup2": 33,
    "dup3": 292,
    "pipe": 22,
    "pipe2": 293,
    "fsync": 74,
    "fdatasync": 75,
    "ftruncate": 77,
    "select": 23,
    "pselect6": 270,
    "poll": 7,
    "ppoll": 271,
    "epoll_create": 213,
    "epoll_create1": 291,
    "epoll_ctl": 233,
    "epoll_wait": 232,
    "epoll_pwait": 281,
    "eventfd2": 290,
    # files by name; what a name leads to is decided by the mounts or by Landlock
    "stat": 4,
    "lstat": 6,
    "newfstatat": 262,
    "statx": 332,
    "access": 21,
    "faccessat": 269,
    "faccessat2": 439,
    "creat": 85,
    "mkdir": 83,
    "mkdirat": 258,
    "rmdir": 84,
    "unlink": 87,
    "unlinkat": 263,
    "rename": 82,
    "renameat": 264,
    "renameat2": 316,
    "readlink": 89,
    "readlinkat": 267,
    "symlink": 88,
    "symlinkat": 266,
    "getdents": 78,
    "getdents64": 217,
    "getcwd": 79,
    "chdir": 80,
    "fchdir": 81,
    "umask": 95,
    # memory, threads, time
    "mmap": 9,
    "munmap": 11,
    "mprotect": 10,
    "mremap": 25,
    "madvise": 28,
    "brk": 12,
    "set_robust_list": 273,
    "rseq": 334,
    "membarrier": 324,
    "sched_yield": 24,
    "nanosleep": 35,
    "gettimeofday": 96,
    "time": 201,
    "times": 100,
    "alarm": 37,
    "setitimer": 38,
    "getitimer": 36,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "rt_sigpending": 127,
    "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130,
    "sigaltstack": 131,
    "restart_syscall": 219,
    "pause": 34,
    "getrandom": 318,
    "exit": 60,
    "exit_group": 231,
    # what a process may know of itself; limits only go down
    "getpid": 39,
    "gettid": 186,
    "getppid": 110,
    "getuid": 102,
    "geteuid": 107,
    "getgid": 104,
    "getegid": 108,
    "getgroups": 115,
    "getresuid": 118,
    "getresgid": 120,
    "getpgrp": 111,
    "uname": 63,
    "getrlimit": 97,
    "setrlimit": 160,
    "getrusage": 98,
    "wait4": 61,
    "waitid": 247,
    # on the pairs of sockets that asyncio wakes itself with; nothing can be bound or connected
    "sendto": 44,
    "recvfrom": 45,
    "shutdown": 48,
    "getsockopt": 55,
    "getsockname": 51,
}
_CLONE, _CLONE3, _KILL, _TGKILL, _PRLIMIT64, _FCNTL, _IOCTL, _SOCKETPAIR = 56, 435, 62, 234, 302, 72, 16, 53
_FUTEX = 202
_CLOCKS = (228, 229, 230)
"""clock_gettime, clock_getres and clock_nanosleep, with a clock as their first argument."""
_OF_PROCESS = (121, 124, 204)
"""getpgid, getsid and sched_getaffinity, with a process as their first argument."""
_FOREIGN_CLOCKS = 1 << 31
"""From here on, which is below zero, a clock is the processor time of the process whose id is in it."""
_OPEN, _OPENAT = 2, 257
_CLONE_THREAD = 0x00010000
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
"""Duplicates and flags. Not F_SETOWN, which sends signals, nor F_GETLK, which like `flock` tells of locks
that other programs hold on files and devices which all of them open."""
_FCNTL_LOCKS = (6, 7)
"""F_SETLK and F_SETLKW succeed without a lock: a process has no conflict with its own, and one on `/dev/null`
would be seen by the other programs."""
_FUTEX_COMMAND, _FUTEX_PRIVATE, _FUTEX_WAITS = 0x7F, 0x80, (0, 9)
"""FUTEX_WAIT and FUTEX_WAIT_BITSET. A futex that is not private is known by its file: programs that map the
same library would wake each other."""
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_AF_UNIX, _SOCK_STREAM = 1, 1
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]


def _load(offset: int) -> Instruction:
    return _LOAD, 0, 0, offset


def _answer(value: int) -> Instruction:
    return _RETURN, 0, 0, value


def _argument(index: int) -> Instruction:
    """The lower half, which is all of an int."""
    return _load(_ARGUMENTS + 8 * index)


def _one_of(values: tuple[int, ...]) -> list[Instruction]:
    """Allowed for these values of what is loaded, else EPERM."""
    found = [step for value in values for step in ((_JUMP_EQ, 0, 1, value), _answer(_ALLOW))]
    return [*found, _answer(_ERRNO | errno.EPERM)]


def _opened(flags: int) -> list[Instruction]:
    """Files, but none that is emptied without being opened for writing.

    Landlock knows that a file is emptied only from its version 3 on (Linux 6.2): an ordinary user's program
    would empty the library it may read, where the interpreter is that user's own.
    """
    emptied = tuple(_O_TRUNC | mode for mode in (0o0, 0o3))
    steps = [step for value in emptied for step in ((_JUMP_EQ, 0, 1, value), _answer(_ERRNO | errno.EPERM))]
    return [_argument(flags), (_AND, 0, 0, _O_TRUNC | _O_ACCMODE), *steps, _answer(_ALLOW)]


def _woken() -> list[Instruction]:
    """Private futexes. Of others only waits, as for a thread that is joined; the kernel wakes those."""
    private = [_argument(1), (_JUMP_SET, 0, 1, _FUTEX_PRIVATE), _answer(_ALLOW)]
    return [*private, (_AND, 0, 0, _FUTEX_COMMAND), *_one_of(_FUTEX_WAITS)]


def _controlled() -> list[Instruction]:
    """Commands of fcntl."""
    unlocked = [step for one in _FCNTL_LOCKS for step in ((_JUMP_EQ, 0, 1, one), _answer(_ERRNO))]
    return [_argument(1), *unlocked, *_one_of(_FCNTL_COMMANDS)]


def _clock() -> list[Instruction]:
    """Clocks of the machine and of the program itself."""
    refused = _answer(_ERRNO | errno.EPERM)
    return [_argument(0), (_JUMP_GE, 0, 1, _FOREIGN_CLOCKS), refused, _answer(_ALLOW)]


def _special(own_pid: int) -> dict[int, list[Instruction]]:
    """Calls that depend on their arguments."""
    refused = _answer(_ERRNO | errno.EPERM)
    return {
        **{number: _clock() for number in _CLOCKS},
        **{number: [_argument(0), *_one_of((0, own_pid))] for number in _OF_PROCESS},
        _CLONE: [_argument(0), (_JUMP_SET, 0, 1, _CLONE_THREAD), _answer(_ALLOW), refused],
        _OPEN: _opened(1),
        _OPENAT: _opened(2),
        _CLONE3: [_answer(_ERRNO | errno.ENOSYS)],
        _KILL: [_argument(0), *_one_of((own_pid,))],
        _TGKILL: [_argument(0), *_one_of((own_pid,))],
        _PRLIMIT64: [_argument(0), *_one_of((0,))],
        _FCNTL: _controlled(),
        _FUTEX: _woken(),
        _IOCTL: [_argument(1), *_one_of(_IOCTL_COMMANDS)],
        _SOCKETPAIR: [
            *(_argument(0), (_JUMP_EQ, 1, 0, _AF_UNIX), refused),
            *(_argument(1), (_AND, 0, 0, 0xF), *_one_of((_SOCK_STREAM,))),
        ],
    }


def assemble(instructions: list[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


def _start() -> list[Instruction]:
    return [
        _load(_ARCHITECTURE),
        (_JUMP_EQ, 1, 0, _AUDIT_ARCH_X86_64),
        _answer(_KILL_PROCESS),
        _load(_NUMBER),
        (_JUMP_GE, 0, 1, _X32_BIT),
        _answer(_KILL_PROCESS),
    ]


def program_filter(own_pid: int) -> bytes:
    """The filter of one program, whose process id (in its own view) it may send signals to."""
    steps = _start()
    for number in SIMPLE.values():
        steps += [(_JUMP_EQ, 0, 1, number), _answer(_ALLOW)]
    for number, then in _special(own_pid).items():
        steps += [(_JUMP_EQ, 0, len(then), number), *then]
    return assemble([*steps, _answer(_ERRNO | errno.EPERM)])
