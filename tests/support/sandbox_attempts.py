"""Programs that try to get out of the sandbox or to use the machine up, and what each finds.

A program prints what happened; `tests/unit/sandbox/test_attempts.py` says what must have. Names in double
braces are places of the test outside: a secret file, a folder that anyone may write to, listening sockets.
"""

ATTEMPTS: dict[str, str] = {
    # using the machine up
    "fork bomb": """
        import os
        made = refused = 0
        for _ in range(50):
            try:
                if os.fork() == 0:
                    while True: pass
                made += 1
            except PermissionError:
                refused += 1
        print(made, refused)""",
    "spawned commands": """
        import subprocess, os
        for attempt in (lambda: subprocess.run(['/bin/sh', '-c', 'id']), lambda: os.execv('/bin/sh', ['sh'])):
            try: attempt(); print('ran')
            except OSError as error: print(type(error).__name__)""",
    "thread bomb": """
        import threading, time
        started = 0
        threading.stack_size(65536)
        try:
            for _ in range(5000):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
                started += 1
        except RuntimeError as error:
            print(started, error)
        import os, sys
        sys.stdout.flush(); os._exit(0)""",
    "memory bomb": """
        held = []
        try:
            while True: held.append(bytearray(16 << 20))
        except MemoryError:
            held.clear(); print('MemoryError')""",
    "memory by mmap": """
        import mmap
        try: mmap.mmap(-1, 4 << 30); print('mapped')
        except (OSError, MemoryError) as error: print(type(error).__name__)""",
    "endless loop": "while True: pass",
    "sleep forever": """
        import time
        print('before', flush=True)
        time.sleep(1e6)""",
    "ignored signals": """
        import signal, time
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        print('ignored', flush=True)
        while True: time.sleep(1)""",
    "daemon": """
        import os
        try:
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True: pass
            print('daemon')
        except PermissionError as error: print('PermissionError')""",
    "output flood": """
        import sys
        while True: sys.stdout.write('x' * 65536)""",
    "error flood": """
        import sys
        for _ in range(200): sys.stderr.write('x' * 65536)
        print('end')""",
    "disk flood": """
        import os
        written, error = 0, None
        try:
            for index in range(1000):
                with open(f'f{index}', 'wb') as file: written += file.write(b'x' * (1 << 20))
        except OSError as found: error = type(found).__name__
        print(written <= 17 << 20, error)""",
    "one large file": """
        try:
            with open('f', 'wb') as file:
                for _ in range(100): file.write(b'x' * (1 << 20))
            print('written')
        except OSError as error: print(type(error).__name__)""",
    "sparse file": """
        import os
        try:
            with open('f', 'wb') as file: os.ftruncate(file.fileno(), 1 << 40)
            print('made')
        except OSError as error: print(type(error).__name__)""",
    "many files": """
        made = 0
        try:
            for index in range(100000): open(f'f{index}', 'w').close(); made += 1
        except OSError: pass
        print(made <= 256)""",
    "open files": """
        held = []
        try:
            while True: held.append(open('/dev/null'))
        except OSError as error: print(len(held) < 64, error.errno)""",
    "deep recursion": """
        import sys
        sys.setrecursionlimit(10 ** 9)
        def f(n): return [f(n + 1)] and repr(n)
        class A:
            def __repr__(self): return repr(self)
        repr(A())""",
    "raised limits": """
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
            try: resource.setrlimit(kind, (-1, -1)); print('raised')
            except (ValueError, OSError) as error: print(type(error).__name__)""",
    # files of others
    "shadow": """
        for path in ('/etc/shadow', '/etc/passwd', '/etc/hostname', '{{secret}}', '{{home}}/.bashrc'):
            try: open(path).read(); print('read', path)
            except OSError as error: print(type(error).__name__)""",
    "listing": """
        import os
        for path in ('{{folder}}', '/etc', '/home', '/var', '/proc', '/sys', '/dev/shm'):
            try: os.listdir(path); print('listed', path)
            except OSError: print('refused')""",
    "writing outside": """
        import os
        for path in ('{{folder}}/new', '{{secret}}', '/new', os.__file__, '/dev/shm/new', '/var/tmp/new'):
            try: open(path, 'a').write('x'); print('wrote', path)
            except OSError: print('refused')""",
    "symbolic link out": """
        import os
        for path in ('link', '/tmp/link'):
            try: os.symlink('{{secret}}', path)
            except OSError: pass
            try: open(path).read(); print('read')
            except OSError: print('refused')""",
    "hard link out": """
        import os
        for target in ('{{secret}}', os.__file__):
            try: os.link(target, '/tmp/linked'); print('linked')
            except OSError: print('refused')""",
    "setuid file": """
        import os
        try: open('mine', 'w').close()
        except OSError: pass
        for path in ('mine', os.__file__):
            try: os.chmod(path, 0o4777); print('changed')
            except OSError as error: print(type(error).__name__)""",
    "devices": """
        import os
        for path in ('/dev/mem', '/dev/sda', '/dev/vda', '/dev/kmsg', '/dev/ptmx', '/dev/tty', '/dev/fuse'):
            try: open(path, 'rb'); print('opened', path)
            except OSError: print('refused')
        try: os.mknod('/tmp/node', 0o600 | 0o020000, os.makedev(1, 1)); print('made')
        except OSError: print('refused')""",
    # other processes
    "environment of others": """
        import os
        print(dict(os.environ))
        for path in ('/proc/1/environ', '/proc/self/environ', '/proc/{{pid}}/environ', '/proc/1/cmdline'):
            try: print(open(path, 'rb').read())
            except OSError: print('refused')""",
    "memory of the parent": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for pid in (os.getppid(), {{pid}}, 1):
            try: open(f'/proc/{pid}/mem', 'rb').read(1); print('read')
            except OSError: print('refused')
            local = (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
            remote = (ctypes.c_ulong * 2)(0x400000, 8)
            libc.process_vm_readv(pid, local, 1, remote, 1, 0); print(ctypes.get_errno())""",
    "tracing": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for pid in (os.getppid(), {{pid}}):
            libc.ptrace(16, pid, 0, 0); print(ctypes.get_errno())""",
    "descriptors": """
        import os
        found = []
        for number in range(3, 4096):
            try: os.fstat(number); found.append(number)
            except OSError: pass
        print(found)
        for path in ('/proc/self/fd', '/proc/{{pid}}/fd', '/dev/fd'):
            try: print(os.listdir(path))
            except OSError: print('refused')""",
    "killing": """
        import os, signal
        for pid in (os.getppid(), {{pid}}, -1, 0, 1 if os.getpid() != 1 else 2):
            try: os.kill(pid, signal.SIGKILL); print('killed')
            except OSError as error: print(type(error).__name__)
        import fcntl
        read, write = os.pipe()
        try: fcntl.fcntl(read, fcntl.F_SETOWN, {{pid}}); print('owner')
        except OSError as error: print(type(error).__name__)""",
    # networks
    "sockets": """
        import socket
        for family, kind in ((2, 1), (2, 2), (2, 3), (10, 1), (1, 1), (1, 2), (16, 3), (17, 3), (40, 1)):
            try: socket.socket(family, kind); print('made', family)
            except OSError as error: print(type(error).__name__)""",
    "a service on this machine": """
        import socket
        for address in (('127.0.0.1', {{port}}), ('localhost', {{port}})):
            try: socket.create_connection(address, 2); print('connected')
            except OSError: print('refused')""",
    "names": """
        import socket
        try: print(socket.getaddrinfo('example.com', 80))
        except OSError: print('refused')""",
    "abstract socket": """
        import socket
        left, right = socket.socketpair()
        for attempt in (
            lambda: left.connect('\\0{{abstract}}'),
            lambda: left.sendto(b'x', '\\0{{abstract}}'),
            lambda: left.bind('\\0mine'),
            lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
            lambda: left.sendmsg([b'x'], [(1, 1, b'\\0' * 4)]),
        ):
            try: attempt(); print('done')
            except OSError: print('refused')""",
    # the kernel
    "mounts": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mount(b'none', b'/tmp', b'tmpfs', 0, None); print(ctypes.get_errno())
        libc.umount2(b'/', 2); print(ctypes.get_errno())
        libc.chroot(b'/'); print(ctypes.get_errno())""",
    "namespaces again": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000):
            libc.unshare(flag); print(ctypes.get_errno())
        libc.setns(0, 0); print(ctypes.get_errno())
        libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0); print(ctypes.get_errno())""",
    "other calls": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        numbers = dict(io_uring_setup=425, bpf=321, keyctl=250, add_key=248, perf_event_open=298,
            userfaultfd=323, memfd_create=319, kexec_load=246, init_module=175, open_by_handle_at=304,
            personality=135, prctl=157, seccomp=317, pidfd_open=434, pidfd_getfd=438, shmget=29, msgget=68,
            vmsplice=278, execveat=322, setresuid=117, capset=126, reboot=169, quotactl=179, future=500)
        for name, number in numbers.items():
            ctypes.set_errno(0)
            result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            print(name, result, ctypes.get_errno())""",
    "the 32-bit table": """
        import ctypes
        print('before', flush=True)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(0x40000000 + 39)
        print('after')""",
    "privileges": """
        import os, ctypes
        for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
            try: attempt(); print('became')
            except OSError as error: print(type(error).__name__)
        libc = ctypes.CDLL(None, use_errno=True)
        data = (ctypes.c_uint32 * 6)()
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        print(libc.capget(header, data), list(data))""",
    "shared memory": """
        from multiprocessing import shared_memory
        try: shared_memory.SharedMemory('left', create=True, size=1024); print('made')
        except (OSError, ImportError): print('refused')""",
    # tricks with the result
    "closed streams": """
        import os
        for number in (0, 1, 2): os.close(number)
        print('nobody reads this')""",
    "standard input": """
        import os, sys
        first = input()
        print(first, os.lseek(0, 0, 0), os.read(0, 5), sys.stdin.isatty())
        for attempt in (lambda: os.write(0, b'x'), lambda: os.ftruncate(0, 1 << 20)):
            try: attempt(); print('written')
            except OSError: print('refused')""",
    "forged exit": """
        import os
        print('{"code": 0, "late": false, "wall_s": 0, "cpu_s": 0, "trouble": ""}')
        for number in range(3, 100):
            try: os.write(number, b'{"code": 0, "late": false}')
            except OSError: pass
        os._exit(7)""",
    "exit functions": """
        import atexit, os
        class Last:
            def __del__(self): os.write(1, b'del ')
        last = Last()
        atexit.register(lambda: (print('atexit', flush=True), os._exit(0)))
        raise ValueError('the end')""",
    "pickles": """
        import pickle, sys
        class Evil:
            def __reduce__(self): return (print, ('unpickled',))
        sys.stdout.buffer.write(pickle.dumps(Evil()))""",
}
