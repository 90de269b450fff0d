"""Ways out of the sandbox or of using the machine up, and what each finds.

The ways are real: as root and as an ordinary user, with namespaces and, refused by a filter, without them.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import pytest

from tests.support.sandbox_attempts import ATTEMPTS
from tests.support.sandbox_ways import ENDLESS, LIMITS, SECRET, SHORT, WAYS, in_way

pytestmark = pytest.mark.skipif(
    not __import__("sys").platform.startswith("linux"), reason="the sandbox is made of Linux"
)
REFUSED = "PermissionError\n"
OTHER_CALLS = (
    *("io_uring_setup", "bpf", "keyctl", "add_key", "perf_event_open", "userfaultfd", "memfd_create"),
    *("kexec_load", "init_module", "open_by_handle_at", "personality", "prctl", "seccomp", "pidfd_open"),
    *("pidfd_getfd", "shmget", "msgget", "vmsplice", "execveat", "setresuid", "capset", "reboot", "quotactl"),
    "future",
)

FINISHED: dict[str, str] = {
    "fork bomb": "0 50\n",
    "spawned commands": REFUSED * 2,
    "memory bomb": "MemoryError\n",
    "memory by mmap": "OSError\n",
    "daemon": REFUSED,
    "error flood": "end\n",
    "many files": "True\n",
    "open files": "True 24\n",
    "raised limits": "ValueError\n" * 4,
    "listing": "refused\n" * 7,
    "writing outside": "refused\n" * 6,
    "symbolic link out": "refused\n" * 2,
    "hard link out": "refused\n" * 2,
    "setuid file": REFUSED * 2,
    "devices": "refused\n" * 8,
    "environment of others": "{}\n" + "refused\n" * 4,
    "memory of the parent": "refused\n1\n" * 3,
    "tracing": "1\n" * 2,
    "descriptors": "[]\n" + "refused\n" * 3,
    "killing": REFUSED * 6,
    "sockets": REFUSED * 9,
    "a service on this machine": "refused\n" * 2,
    "names": "refused\n",
    "abstract socket": "refused\n" * 5,
    "mounts": "1\n" * 3,
    "namespaces again": "1\n" * 6,
    "other calls": "".join(f"{name} -1 1\n" for name in OTHER_CALLS),
    "privileges": REFUSED * 3 + "-1 [0, 0, 0, 0, 0, 0]\n",
    "shared memory": "refused\n",
    "closed streams": "",
    "standard input": "first 0 b'first' False\nrefused\nrefused\n",
    "exit functions": "atexit\n",
}
"""Attempts that come to their own end, with what they say of it, whatever the way."""
WITH_NAMESPACES = {
    "thread bomb": f"{LIMITS.threads - 1} can't start new thread\n",
    "disk flood": "True OSError\n",
    "one large file": "OSError\n",
    "sparse file": "OSError\n",
    "shadow": "FileNotFoundError\n" * 5,
}
WITHOUT = {
    "disk flood": "True PermissionError\n",
    "one large file": REFUSED,
    "sparse file": REFUSED,
}
OTHERWISE = {
    *ENDLESS,
    "output flood",
    "deep recursion",
    "the 32-bit table",
    "forged exit",
    "pickles",
}
"""Attempts with a test of their own below."""


@cache
def found(way: str) -> dict[str, Any]:
    return in_way(way)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_attempt_has_an_expectation() -> None:
    assert set(ATTEMPTS) == FINISHED.keys() | WITH_NAMESPACES.keys() | OTHERWISE


@pytest.mark.parametrize("name", FINISHED)
def test_an_attempt_finds(way: str, name: str) -> None:
    outcome = found(way)[name]
    assert (outcome["status"], outcome["exit_code"]) == ("finished", 0), outcome["stderr"]
    assert outcome["stdout"] == FINISHED[name]


@pytest.mark.parametrize("name", WITH_NAMESPACES)
def test_an_attempt_finds_by_its_way(way: str, name: str) -> None:
    outcome = found(way)[name]
    assert (outcome["status"], outcome["exit_code"]) == ("finished", 0), outcome["stderr"]
    if "landlock" not in way:
        assert outcome["stdout"] == WITH_NAMESPACES[name]
    elif name == "shadow":
        assert set(outcome["stdout"].split()) <= {"PermissionError", "FileNotFoundError"}
    elif name == "thread bomb":
        # Its threads are those of a user of its own, or end with its memory.
        most = LIMITS.threads if way.startswith("root") else LIMITS.memory_mb * 16
        assert 0 < int(outcome["stdout"].split()[0]) < most
    else:
        assert outcome["stdout"] == WITHOUT[name]


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_ended(way: str, name: str) -> None:
    outcome = found(way)[name]
    assert (outcome["status"], outcome["exit_code"]) == ("timeout", -9)
    said = {"sleep forever": "before\n", "ignored signals": "ignored\n"}
    assert outcome["stdout"] == said.get(name, "")
    assert outcome["cpu_s"] < SHORT.cpu_s + 0.5 and outcome["wall_s"] < LIMITS.wall_s


def test_a_flood_of_output_is_cut_and_ends_the_program(way: str) -> None:
    outcome = found(way)["output flood"]
    assert (outcome["status"], len(outcome["stdout"])) == ("output", LIMITS.output_bytes)
    assert len(found(way)["error flood"]["stderr"]) == 16_384


def test_recursion_in_c_crashes_only_the_program(way: str) -> None:
    outcome = found(way)["deep recursion"]
    assert outcome["status"] in ("signal", "finished") and outcome["exit_code"] in (-11, 1)


def test_a_call_of_another_table_ends_the_program(way: str) -> None:
    outcome = found(way)["the 32-bit table"]
    assert (outcome["status"], outcome["exit_code"], outcome["stdout"]) == ("signal", -31, "before\n")


def test_a_program_cannot_write_its_own_report(way: str) -> None:
    outcome = found(way)["forged exit"]
    assert (outcome["status"], outcome["exit_code"], outcome["stdout"]) == ("finished", 7, "")


def test_what_a_program_prints_is_text(way: str) -> None:
    outcome = found(way)["pickles"]
    assert "unpickled" in outcome["stdout"] and "builtins" in outcome["stdout"]


def test_nothing_was_reached_and_nothing_is_left(way: str) -> None:
    left = found(way)["left"]
    assert left["mode"] == ("landlock" if "landlock" in way else "namespaces")
    # The template, and with namespaces the process that waits for it; no keeper, no program.
    assert left["processes"] == (1 if left["mode"] == "landlock" else 2) and left["after"] == 0
    assert left["folder"] == ["secret"] and left["secret"] == SECRET and left["shm"] == []
    assert "connected" not in found(way)


@cache
def beside_each_other() -> dict[str, Any]:
    """By way. All at once: a program may see those of other sandboxes, which it must not reach either."""
    with ThreadPoolExecutor(len(WAYS)) as pool:
        found = pool.map(partial(in_way, module="tests.support.sandbox_neighbours"), WAYS)
        return dict(zip(WAYS, found))


def test_programs_beside_each_other_reach_nothing_of_each_other(way: str) -> None:
    found = beside_each_other()[way]
    assert found["mode"] == ("landlock" if "landlock" in way else "namespaces")
    assert (found["attack"]["stdout"], found["attack"]["stderr"]) == ("[]\n", "")
    for honest in found["honest"]:
        assert (honest["status"], honest["exit_code"]) == ("finished", 0)
        assert honest["stdout"] == "begun\nfirst\nsecond\nended\n"
    assert found["after"]["stdout"] == "still here\n"


def test_a_kernel_that_offers_nothing_is_refused_in_one_line() -> None:
    said = in_way("nothing", "start")["said"]
    assert said.startswith("no sandbox for programs here: namespaces: unshare: Operation not permitted; ")
    assert "landlock: Landlock: landlock_create_ruleset: Operation not permitted" in said
    assert "\n" not in said and "docs/sandbox.md" in said
