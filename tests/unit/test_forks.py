"""The workers of `make test` run each test once, say what failed, and lose nothing to one that dies."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, warnings
from pathlib import Path
import pytest

@pytest.fixture(autouse=True)
def noted(request):
    with open(Path(__file__).with_name("ran.txt"), "a") as file:
        file.write(f"{request.node.nodeid} {os.getpid()}\\n")

@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    yield tmp_path_factory.mktemp("kept")
    raise ValueError("at the very end")

def test_passes(kept): warnings.warn("a warning of a test")
def test_prints_and_fails(capfd): os.system("echo printed by a child"); assert capfd.readouterr().out == ""
def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_comes_after(kept): assert kept.is_dir()
def test_ends_its_process(): os._exit(0)
@pytest.mark.xfail
def test_is_known_to_fail(kept): assert False
@pytest.mark.skip
def test_is_left_out(): pass
"""


def test_each_test_runs_once_and_a_worker_that_dies_fails_one(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    options = ["-p", "tests.support.forks", "--forks", "2", f"--rootdir={tmp_path}"]
    words = [*options, "-c", str(tmp_path / "pytest.ini"), "--import-mode=importlib", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "250"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "6 failed, 4 passed, 2 skipped, 2 xfailed, 2 warnings, 2 errors in" in ended.stdout
    ran, pids = zip(*(line.split() for line in (tmp_path / "ran.txt").read_text().splitlines()))
    assert len(ran) == len(set(ran)) == 12 and len(set(pids)) == 6, "two workers, and one after each death"
    for name in ("test_one.py", "test_two.py"):
        assert f"{name}::test_is_killed - the worker ended with -9 in this test" in ended.stdout
        assert f"{name}::test_ends_its_process - the worker ended with 0 in this test" in ended.stdout
        assert f"{name}::test_prints_and_fails - AssertionError: assert 'printed by" in ended.stdout
    assert "ValueError: at the very end" in ended.stdout and "a warning of a test" in ended.stdout
