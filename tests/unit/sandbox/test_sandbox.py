"""What a sandbox gives: outcomes, values, verdicts of tests, and each program apart from all others."""

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.extras.sandbox import host
from pipelinerl.extras.sandbox.host import Limits, Sandbox, SandboxUnavailable, mechanism, package_folder
from pipelinerl.extras.sandbox.values import decode, encode
from tests.support.sandbox_needed import need_a_sandbox
from tests.support.sandbox_ways import count_below

need_a_sandbox()

LIMITS = Limits(cpu_s=10, wall_s=100, memory_mb=256)


async def test_a_program_reads_and_prints_as_it_would_elsewhere() -> None:
    async with Sandbox(LIMITS) as box:
        outcome = await box.run("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1 2\n39\n")
        assert outcome.ok and outcome.stdout == "42\n" and outcome.stderr == ""
        outcome = await box.run("if __name__ == '__main__':\n    exit('the end')")
        assert (outcome.status, outcome.exit_code, outcome.stderr) == ("finished", 1, "the end\n")
        outcome = await box.run("print('ä€🙂', input())", "ü")
        assert outcome.stdout == "ä€🙂 ü\n"


async def test_errors_show_the_program_and_nothing_of_the_sandbox() -> None:
    async with Sandbox(LIMITS) as box:
        outcome = await box.run("def f():\n    return 1 / 0\nf()")
        assert outcome.exit_code == 1 and not outcome.ok
        assert 'File "<program>", line 2, in f\n    return 1 / 0\n' in outcome.stderr
        assert "sandbox" not in outcome.stderr
        outcome = await box.run("print('a'")
        assert outcome.exit_code == 1 and outcome.stderr.endswith("SyntaxError: '(' was never closed\n")
        assert "sandbox" not in outcome.stderr


async def test_a_preamble_has_the_names_of_contests_and_hides_no_builtin() -> None:
    code = "print(gcd(4, 6), Counter('aab')['a'], pow(2, 3, 5), heapq.heappop([1]), inf > 1)"
    async with Sandbox(LIMITS) as box:
        assert (await box.run(code, preamble=True)).stdout == "2 2 3 1 True\n"
        assert "NameError" in (await box.run(code)).stderr


async def test_modules_that_need_a_library_of_the_system_are_there() -> None:
    """Those that this interpreter has; no program can reach the folder of that library."""
    wanted = ("sqlite3", "readline", "ssl", "lzma", "bz2", "zlib", "ctypes", "decimal", "hashlib", "uuid")
    there = [name for name in wanted if importlib.util.find_spec(name)]
    async with Sandbox(LIMITS) as box:
        found = await box.run(f"import {', '.join(there)}\nprint(sqlite3.connect(':memory:').total_changes)")
    assert (found.stdout, found.stderr) == ("0\n", "")


async def test_programs_know_nothing_of_each_other() -> None:
    """Neither files nor modules nor names nor random numbers go from one to the next."""
    leaves = "import math, builtins, random; open('left', 'w').write('x'); math.pi = 3; builtins.left = 1"
    looks = "import math, builtins, os; print(math.pi > 3, hasattr(builtins, 'left'), os.listdir('.'))"
    async with Sandbox(LIMITS, modes=("namespaces",)) as box:
        assert (await box.run(leaves)).ok
        assert (await box.run(looks)).stdout == "True False []\n"
        draws = await asyncio.gather(*(box.run("import random; print(random.random())") for _ in range(4)))
        assert len({draw.stdout for draw in draws}) == 4
        order = await asyncio.gather(*(box.run("print({str(i) for i in range(99)})") for _ in range(2)))
        assert order[0].stdout == order[1].stdout, "hashes are the same, so that a verdict is"


async def test_two_programs_at_once_do_not_see_each_other() -> None:
    """Not each other's folder, process or threads: a thread bomb leaves the other its threads."""
    bomb = (
        "import threading, time\nn = 0\n"
        "try:\n    while True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start(); n += 1\n"
        "except RuntimeError: print(n, flush=True)\ntime.sleep(1)\nimport os; os._exit(0)"
    )
    async with Sandbox(Limits(wall_s=100), modes=("namespaces",)) as box:
        outcomes = await asyncio.gather(box.run(bomb), box.run(bomb), box.run(bomb))
        assert {outcome.stdout for outcome in outcomes} == {"31\n"}


async def test_long_errors_end_no_program_whatever_the_limit_of_its_output() -> None:
    async with Sandbox(Limits(wall_s=100, output_bytes=host.STDERR_BYTES)) as box:
        outcome = await box.run("import sys\nsys.stderr.write('e' * 40_000)")
        assert outcome.ok and outcome.stderr == "e" * host.STDERR_BYTES


async def test_values_come_back_as_built_in_types() -> None:
    code = "class Fake(int):\n    def __eq__(self, other): return True\n"
    async with Sandbox(LIMITS) as box:
        outcome, value = await box.call(code + "def f(a, b): return [(a, b), {1: {2.5}}]", "f", [1, (2, "x")])
        assert outcome.ok and value == [(1, (2, "x")), {1: {2.5}}]
        _, value = await box.call(code + "def f(): return Fake(3)", "f", [])
        assert value == 3 and value != 4 and type(value) is int
        outcome, value = await box.call(
            "class A:\n  __eq__ = lambda s, o: True\ndef f(): return A()", "f", []
        )
        assert value is None and "a A is no value that can be compared" in outcome.stderr
        _, value = await box.call("class Solution:\n    def twice(self, n): return 2 * n", "twice", [4])
        assert value == 8
        _, value = await box.call("def f(n): return [n * 10**4000]", "f", [-(10**5000)])
        assert value == [-(10**9000)]  # more digits than Python reads
        outcome, value = await box.call("import os\ndef f(): os.write(3, b'{nonsense'); return 1", "f", [])
        assert outcome.ok and value is None
        outcome, value = await box.call("def f(): return 'x' * 10 ** 6", "f", [])
        assert (outcome.status, value) == ("output", None)


CHEATS = {
    "exit": "import os\ndef add(a, b): os._exit(0)",
    "exit at once": "import os, sys\nos._exit(0)",
    "exit inside the tests": "def add(a, b): raise SystemExit(0)",
    "equal to everything": "class All:\n    __eq__ = lambda s, o: True\ndef add(a, b): return All()",
    "built-ins": "import builtins\nbuiltins.AssertionError = ValueError\ndef add(a, b): return 0",
    "the frames above": "import sys, gc\ndef add(a, b):\n    sys._getframe(1).f_globals.clear(); return 0",
    "a marker": "print('PASSED', flush=True)\ndef add(a, b): print('PASSED'); return 0",
    "a written answer": "import os\ndef add(a, b): os.write(3, b'{\"value\": true}\\n' * 9); return 0",
    "the end of an iteration": "def add(a, b): raise StopIteration",
    "an end by name": "class StopIteration(Exception): pass\ndef add(a, b): raise StopIteration",
    "an error by name": "class SystemExit(Exception): pass\ndef add(a, b): raise SystemExit(0)",
    "a broken answer": "import os\ndef add(a, b): os.write(3, b'[[[[[[' * 100 + b'\\n'); return 3",
    "the tracer": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(print)\ndef add(a, b): return 0",
    "a patched judge": (
        "import sys, json\njson.dumps = lambda *a, **k: '{\"value\": true}'\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if 'sandbox' in name: vars(module).update(encode=lambda v: True, _judge=print)\n"
        "def add(a, b): return 0"
    ),
}


async def test_tests_of_a_data_set_cannot_be_passed_without_the_answer() -> None:
    tests = "for a, sum in zip(range(5), map(add, range(5), [2] * 5)):\n    assert sum == a + 2, a\n"
    tests += "assert all(map(lambda a: not add(a, -a), range(3)))"
    async with Sandbox(LIMITS) as box:
        right, passed = await box.check("def add(a, b): return a + b", ["add"], tests)
        assert right.ok and passed.ok
        for cheat, program in CHEATS.items():
            _, passed = await box.check(program, ["add"], tests)
            assert not passed.ok and passed.exit_code != 0, cheat


async def test_tests_may_expect_an_exception() -> None:
    tests = "try:\n    f(-1)\nexcept ValueError as error:\n    assert 'small' in str(error)\nelse:\n    1 / 0"
    async with Sandbox(LIMITS) as box:
        _, passed = await box.check("def f(n):\n    raise ValueError('too small')", ["f"], tests)
        assert passed.ok, passed.stderr
        _, passed = await box.check("def f(n):\n    raise KeyError('too small')", ["f"], tests)
        assert not passed.ok


async def test_a_program_that_is_no_longer_wanted_is_killed() -> None:
    async with Sandbox(Limits(wall_s=200)) as box:
        await box.run("pass")
        job = asyncio.create_task(box.run("import time\ntime.sleep(200)"))
        before = count_below()
        await _until(lambda: count_below() > before)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        await _until(lambda: count_below() <= before)


async def test_a_template_that_was_killed_is_replaced() -> None:
    async with Sandbox(LIMITS) as box:
        assert (await box.run("print(1)")).ok
        assert box._template is not None
        box._template.process.kill()
        box._template.process.wait()
        assert (await box.run("print(2)")).stdout == "2\n"


async def test_packages_are_what_was_named_and_no_more() -> None:
    async with Sandbox(Limits(wall_s=100, memory_mb=1024), packages=["mpmath"]) as box:
        assert (await box.run("import mpmath; print(mpmath.sqrt(16))")).stdout == "4.0\n"
        for other in ("numpy", "pipelinerl", "pip"):
            outcome = await box.run(f"import {other}")
            assert f"No module named '{other}'" in outcome.stderr
    with pytest.raises(ValueError, match="sandbox package 'no_such': not installed"):
        Sandbox(packages=["no_such"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import other_one", r"No module named 'other_one'; name the packages that it imports as well"),
        ("raise RuntimeError('not\\ntoday')", "RuntimeError: not today"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it lacks, and not as a kernel that offers nothing."""
    for name, text in (("needs_another", source), ("other_one", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ValueError, match=rf"sandbox package 'needs_another' cannot be imported here: .*{said}$"
    ):
        mechanism(["needs_another"])


async def test_a_package_below_the_usual_folder_of_programs_is_not_covered_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        (folder / "lies_in_tmp").mkdir()
        (folder / "lies_in_tmp/__init__.py").write_text("from . import part")
        (folder / "lies_in_tmp/part.py").write_text("VALUE = 3")
        monkeypatch.syspath_prepend(str(folder))
        async with Sandbox(Limits(wall_s=100), packages=["lies_in_tmp"]) as box:
            shown = "print(it.part.VALUE, open(it.__file__).read())"
            source = f"import lies_in_tmp as it, tempfile\ntempfile.mkstemp()\n{shown}"
            outcome = await box.run(source)
    finally:
        shutil.rmtree(folder)
    if mechanism() == "namespaces":  # with Landlock there is no folder to write to
        assert outcome.stdout == "3 from . import part\n", outcome.stderr


IN_THE_LIBRARY = """
import os, sys
from pathlib import Path
from pipelinerl.extras.sandbox import kernel, rooms
library, user, group = sys.argv[1], os.geteuid(), os.getegid()
packages = library + "/site-packages"
kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if user else 0))
if user:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
rooms.build([packages + "/named"], [library])
print(os.listdir(packages), Path(packages + "/named/part.py").read_text())
try: os.mkdir(packages + "/more")
except OSError as error: print(error.strerror)
"""


def test_a_package_inside_of_the_library_is_shown_and_its_neighbours_are_not(tmp_path: Path) -> None:
    """As where an interpreter has its own `site-packages`, with no environment beside it."""
    if mechanism() != "namespaces":
        pytest.skip("this machine mounts nothing")
    for name in ("named", "neighbour"):
        (tmp_path / "site-packages" / name).mkdir(parents=True)
    (tmp_path / "site-packages/named/part.py").write_text("VALUE = 3")
    said = subprocess.run(
        [sys.executable, "-c", IN_THE_LIBRARY, str(tmp_path)], capture_output=True, text=True
    )
    assert said.stdout == "['named'] VALUE = 3\nRead-only file system\n", said.stderr


def test_the_ways_are_tried_in_order_and_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"namespaces": "namespaces: unshare: no", "landlock": "landlock: none\nof it"}
    monkeypatch.setattr(host._Template, "hello", lambda self: said[self.mode])
    with pytest.raises(SandboxUnavailable, match=r"here: namespaces: unshare: no; landlock: none of it\. A"):
        mechanism()


@pytest.mark.parametrize(
    "value", [None, True, -(10**40), 2.5, "ä", [1, [2]], (1, ()), {1, 2}, {"a": (1,), 2: None}, 1j, b"\0x"]
)
def test_values_survive(value: object) -> None:
    assert decode(encode(value)) == value and type(decode(encode(value))) is type(value)


@pytest.mark.parametrize("bad", [{}, {"list": []}, {"dict": 3}, {"bytes": "zz"}, {"set": [{"dict": []}]}])
def test_what_is_no_value_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="not an encoded value"):
        decode(bad)


def test_package_folder_needs_a_folder() -> None:
    assert os.path.isdir(package_folder("psutil"))
    with pytest.raises(ValueError, match="no package with a folder"):
        package_folder("typing_extensions")


async def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


EMPTYING = """
import os, sys
from pipelinerl.extras.sandbox import kernel, seccomp
path = sys.argv[1]
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.set_filter(seccomp.program_filter(os.getpid()))
for mode in (os.O_RDONLY, 3):
    try: os.open(path, mode | os.O_TRUNC); print('emptied')
    except PermissionError: print('refused')
print(os.read(os.open(path, os.O_RDONLY), 99).decode(), end='')
os.open(path, os.O_WRONLY | os.O_TRUNC)
"""


def test_a_file_is_not_emptied_by_opening_it_for_reading(tmp_path: Path) -> None:
    """Without Landlock, as with its first two versions, which know nothing of emptying."""
    path = tmp_path / "file"
    path.write_text("kept\n")
    said = subprocess.run([sys.executable, "-c", EMPTYING, path], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("refused\nrefused\nkept\n", "")
    assert path.read_text() == ""  # opened for writing, which rules for files decide
