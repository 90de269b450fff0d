"""An engine that ends before it is ready: what it is quoted with, and whether it is started again."""

from pathlib import Path

import pytest

from pipelinerl.launcher.supervision import ChildFailed, ChildSpec, HealthCheck, Supervisor, core
from pipelinerl.launcher.supervision.words import last_words
from tests.support.processes import DEADLINE_S, free_port
from tests.unit.launcher.supervision.test_processes import STAGES, script

VLLM_FAILS = """
import sys
print("Loading 3 GiB")
print("(EngineCore pid=7) ERROR 11-26 10:00:00 [core.py:866] EngineCore failed to start.")
print(*{out!r}, sep="\\n", flush=True)
print(*{err!r}, sep="\\n", file=sys.stderr)
sys.exit("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}")
"""
TRACE = "(EngineCore pid=7) Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("out", "err", "said"),
    [
        (
            [],
            [TRACE, "(EngineCore pid=7) ModuleNotFoundError: No module named 'x'"],
            "ModuleNotFoundError: No module named 'x'",
        ),
        (
            ["(Worker pid=8) ERROR 11-26 10:00:00 [mp.py:1] ImportError: libx.so: cannot open"],
            ["(EngineCore pid=7) Exception: WorkerProc initialization failed. See stack trace for more."],
            "ImportError: libx.so: cannot open",
        ),
        (
            [],
            [
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, Model architectures ['X'] are not supported for now.",
            ],
            "Value error, Model architectures ['X'] are not supported for now.",
        ),
    ],
    ids=["module", "worker", "architecture"],
)
def test_an_engine_that_no_restart_mends_ends_the_run_at_once_with_its_own_error(
    tmp_path: Path, out: list[str], err: list[str], said: str
) -> None:
    """As vLLM writes it: the cause is in another process, and the last line only points to it."""
    health = HealthCheck(url=f"http://127.0.0.1:{free_port()}/", start_deadline_s=DEADLINE_S)
    code = VLLM_FAILS.format(out=out, err=err)
    spec = script("actor_vllm_0", tmp_path, code, health=health, stages=STAGES, max_restarts=3)
    # An earlier run's words in the same log are not this one's.
    spec.stderr.parent.mkdir()
    spec.stderr.write_text("ModuleNotFoundError: No module named 'of_another_run'\n")
    lines: list[str] = []
    with Supervisor([spec], announce=lines.append) as supervisor, pytest.raises(ChildFailed) as failure:
        supervisor.start()
    message = str(failure.value)
    assert message.startswith("actor_vllm_0: exit status 1, not started again, while loading weights: ")
    assert said in message and "\n" not in message and "root cause" not in message
    assert sum("started (pid" in line for line in lines) == 1


def test_an_engine_that_fails_twice_in_the_same_words_is_not_started_a_third_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "BACKOFF_S", 0.05)
    health = HealthCheck(url=f"http://127.0.0.1:{free_port()}/", start_deadline_s=DEADLINE_S)
    code = "import os, sys; sys.exit(f'RuntimeError: no kernel for this card (pid {os.getpid()})')"
    spec = script("engine", tmp_path, code, health=health, max_restarts=3)
    lines: list[str] = []
    with Supervisor([spec], announce=lines.append) as supervisor, pytest.raises(ChildFailed) as failure:
        supervisor.start()
    said = "in two starts with the same words, not started again: RuntimeError: no kernel"
    assert said in str(failure.value)
    assert sum("started (pid" in line for line in lines) == 2


def test_the_report_of_torch_on_ranks_is_read_for_the_rank_that_ended_first(tmp_path: Path) -> None:
    """Its last line is a rule."""
    rule, told = "=" * 54, "  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: 9)  ({})\n"
    first, second = told.format(0, 0, -15, "SIGTERM"), told.format(1, 1, -9, "SIGKILL")
    spec = ChildSpec(name="finetune", argv=["x"], log_dir=tmp_path)
    spec.stderr.write_text(
        f"{rule}\nFailures:\n[1]:\n{first}---\nRoot Cause (first observed failure):\n[0]:\n{second}{rule}\n"
    )
    assert last_words(spec, (0, 0)) == "rank 1 ended first, exit code -9 (pid: 9)  (SIGKILL)"


ERRORS = [
    "finetune: ValueError: rank 1 has another model",
    "finetune: RuntimeError: Connection closed by peer",
]


@pytest.mark.parametrize(
    ("exitcode", "said"),
    [
        ("1 (pid: 9) ", "exit code 1 (pid: 9): ValueError: rank 1 has another model"),
        ("-9 (pid: 9)  (SIGKILL)", "exit code -9 (pid: 9)  (SIGKILL)"),
    ],
)
def test_the_error_of_the_rank_that_ended_first_is_said_and_no_other_s(
    tmp_path: Path, exitcode: str, said: str
) -> None:
    """What follows from its end comes behind it, and a rank that was killed said nothing."""
    rule = "=" * 54
    spec = ChildSpec(name="finetune", argv=["x"], log_dir=tmp_path)
    told = f"[1]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : {exitcode}\n{rule}\n"
    spec.stderr.write_text("\n".join([*ERRORS, rule, "Root Cause (first observed failure):", told]))
    assert last_words(spec, (0, 0)) == f"rank 1 ended first, {said}"
