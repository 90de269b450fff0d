"""A program that attacks others in the same sandbox, and one that does its work beside it; prints JSON.

In each way of `sandbox_ways`: the first looks for every process that it can name and tries what a process can
do to another; the second, started before it, says what became of its own.
"""

import asyncio
import json
import sys
import textwrap
from dataclasses import asdict
from typing import Any

from pipelinerl.extras.sandbox.host import Limits, Sandbox
from tests.support.sandbox_ways import enter

LIMITS = Limits(cpu_s=10, wall_s=60, memory_mb=256)
INPUT = "first\nsecond\n"
HONEST = """
    import sys, time
    print('begun', flush=True)
    import ctypes, fcntl, os, threading
    library = open(os.__file__)  # which every program reads: a lock on it would be a signal to the others
    for locked in (lambda: fcntl.flock(library, fcntl.LOCK_EX), lambda: fcntl.lockf(library, fcntl.LOCK_SH)):
        try: locked()
        except OSError: pass
    for name in ('/dev/null', '/dev/zero', '/dev/urandom'):  # which every program may write to
        try: fcntl.lockf(os.open(name, os.O_RDWR), fcntl.LOCK_EX)
        except OSError: pass
    SHARED_WORD
    def wait():
        time_s = (ctypes.c_long * 2)(5, 0)
        if libc.syscall(202, word, 0, value, ctypes.byref(time_s), None, 0) == 0: print('woken', flush=True)
    threading.Thread(target=wait).start()
    ended = time.monotonic() + 6
    while time.monotonic() < ended: time.sleep(0.05)
    print(sys.stdin.read(), end='')
    print('ended')"""
SHARED_WORD = """
    # Futexes of a file are known by the file's page, however it is mapped.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    word = ctypes.c_void_p(libc.mmap(None, 4096, 1, 2, os.open(os.__file__, os.O_RDONLY), ctypes.c_long(0)))
    value = ctypes.c_uint32.from_address(word.value).value
"""
ATTACKER = """
    import ctypes, fcntl, mmap, os, resource, signal, socket, struct, time
    me, reached = os.getpid(), []
    libc = ctypes.CDLL(None, use_errno=True)
    def attempt(what, action):
        try: found = action()
        except (OSError, ValueError): return
        if found is None or (isinstance(found, int) and found < 0): return
        reached.append(what)
    def processes():
        for pid in range(max(1, me - 400), me + 400):
            if pid == me: continue
            try: os.stat(f'/proc/{pid}')
            except OSError: continue
            yield pid
    ended = time.monotonic() + 2
    while time.monotonic() < ended:
        for pid in [*processes(), os.getppid()]:
            if pid == 0: continue
            for number in range(10):
                path = f'/proc/{pid}/fd/{number}'
                attempt('read link', lambda: os.readlink(path) and 1)
                for flags in (os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY | os.O_NONBLOCK):
                    def opened():
                        descriptor = os.open(path, flags)
                        if flags & os.O_WRONLY:
                            os.write(descriptor, b'from a neighbour\\n')
                        else:
                            os.read(descriptor, 100)
                        return 1
                    attempt('descriptor', opened)
            for name in ('mem', 'maps', 'environ', 'cmdline', 'root', 'cwd', 'ns/pid'):
                attempt(name, lambda: os.open(f'/proc/{pid}/{name}', os.O_RDONLY))
            attempt('list', lambda: len(os.listdir(f'/proc/{pid}/fd')))
            for number in (0, signal.SIGSTOP, signal.SIGKILL):
                attempt('kill', lambda: os.kill(pid, number) or 1)
                attempt('kill group', lambda: os.killpg(pid, number) or 1)
                for call in (129, 297, 200, 424):  # sigqueueinfo, tgsigqueueinfo, tkill, pidfd_send_signal
                    attempt('signal', lambda: libc.syscall(call, pid, number, 0, 0))
            attempt('limits', lambda: resource.prlimit(pid, resource.RLIMIT_CPU) and 1)
            attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) or 1)
            attempt('affinity', lambda: os.sched_setaffinity(pid, {0}) or 1)
            attempt('processor time', lambda: time.clock_gettime((~pid << 3) | 2))
            attempt('session', lambda: os.getsid(pid))
            attempt('process group', lambda: os.getpgid(pid))
            attempt('processors', lambda: len(os.sched_getaffinity(pid)))
            attempt('pidfd', lambda: libc.syscall(434, pid, 0))
            for call in (101, 310, 311, 312, 440):  # ptrace, process_vm_*, kcmp, process_madvise
                attempt('memory', lambda: libc.syscall(call, 16 if call == 101 else pid, pid, 0, 0, 0))
            attempt('owner', lambda: fcntl.fcntl(0, fcntl.F_SETOWN, pid))
        time.sleep(0.02)
    # The kernel queues a user's signals up to a limit for all its processes: how many of one's own come
    # through would tell what the neighbours keep waiting. Without a queue it is one.
    waiting = signal.SIGRTMIN
    signal.pthread_sigmask(signal.SIG_BLOCK, [waiting])
    for _ in range(5): os.kill(me, waiting)
    came = 0
    while signal.sigtimedwait([waiting], 0): came += 1
    if came != 1: reached.append('queue of signals')
    library = open(os.__file__)
    try: fcntl.flock(library, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: reached.append('lock')
    except OSError: pass
    wanted = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
    held = lambda: struct.unpack('hh', fcntl.fcntl(library, fcntl.F_GETLK, wanted)[:4])[0] != fcntl.F_UNLCK
    attempt('lock of a part', lambda: held() or None)
    for name in ('/dev/null', '/dev/zero', '/dev/urandom'):
        try: fcntl.lockf(os.open(name, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError: reached.append('lock of a device')
        except OSError: pass
    SHARED_WORD
    for command in (1, 3, 4, 10):  # wake, requeue, compare and requeue, wake those of some bits
        others = (100, ctypes.c_long(100), word, value)
        attempt('futex', lambda: libc.syscall(202, word, command, *others) or None)
    attempt('shared memory', lambda: libc.syscall(29, 4711, 4096, 0o1777))
    attempt('queue', lambda: libc.syscall(68, 4711, 0o1777))
    attempt('semaphore', lambda: libc.syscall(64, 4711, 1, 0o1777))
    attempt('posix queue', lambda: libc.syscall(240, b'neighbour', 0o102, 0o666, 0))
    for name in ('/dev/shm/neighbour', '/dev/mqueue/neighbour'):  # /tmp is its own, where it has one
        attempt('file', lambda: os.open(name, os.O_RDWR | os.O_CREAT))
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        attempt('socket', lambda: socket.socket(socket.AF_UNIX, kind).bind(chr(0) + 'neighbour') or 1)
    attempt('port', lambda: socket.create_server(('127.0.0.1', 0)) and 1)
    print(sorted(set(reached)))"""


async def beside_each_other() -> dict[str, Any]:
    shared = SHARED_WORD.strip()
    honest, attacker = (textwrap.dedent(one.replace("SHARED_WORD", shared)) for one in (HONEST, ATTACKER))
    async with Sandbox(LIMITS, at_once=3) as box:
        works = [asyncio.create_task(box.run(honest, INPUT)) for _ in range(2)]
        await asyncio.sleep(1)
        attack, mode = await box.run(attacker, ""), box.mode
        outcomes = [asdict(await work) for work in works]
        # A keeper whose pipe was written into would make this raise.
        after = asdict(await box.run("print(input())", "still here\n"))
    return {"mode": mode, "attack": asdict(attack), "honest": outcomes, "after": after}


if __name__ == "__main__":
    enter(sys.argv[1])
    print(json.dumps(asyncio.run(beside_each_other())))
