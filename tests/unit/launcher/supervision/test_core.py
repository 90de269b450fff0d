"""The state machine: order of starts, restarts with backoff, deadlines, giving up."""

from pathlib import Path
from typing import Any

import pytest

from pipelinerl.launcher.supervision import (
    ChildSpec,
    HealthCheck,
    write_start_script,
)
from pipelinerl.launcher.supervision.core import (
    ChildPhase,
    GiveUp,
    GoOnWithout,
    KillChild,
    RestartChild,
    StartChild,
    SupervisorCore,
    describe_exit,
)


def child(name: str, **policy: Any) -> ChildSpec:
    return ChildSpec(name=name, argv=["true"], log_dir=Path("/nowhere"), **policy)


def engine(deadline_s: float = 60.0) -> ChildSpec:
    health = HealthCheck(url="http://127.0.0.1:1/", start_deadline_s=deadline_s)
    return child("engine", max_restarts=3, health=health)


def begun(*specs: ChildSpec, ready: bool = False) -> SupervisorCore:
    """At time 0, with an engine that is healthy if it is to be `ready`."""
    core = SupervisorCore(list(specs))
    core.tick(0.0)
    if ready:
        core.healthy("engine", 0)
    return core


def test_a_child_waits_until_those_it_depends_on_are_healthy() -> None:
    core = SupervisorCore([child("actor", depends=("engine",)), engine()])
    assert core.tick(0.0) == [StartChild("engine", 0)]
    assert core.phase("actor") is ChildPhase.WAITING
    core.healthy("engine", 0)
    assert core.tick(1.0) == [StartChild("actor", 0)]
    assert core.all_ready


def test_an_engine_restarts_three_times_with_growing_delays_and_then_ends_the_run() -> None:
    core = begun(engine())
    now, delays = 0.0, []
    for generation in range(3):
        (action,) = core.exited("engine", generation, -9, now)
        assert isinstance(action, RestartChild)
        assert action.cause == "killed by SIGKILL"
        delays.append(action.delay_s)
        assert core.tick(now + action.delay_s - 0.01) == []
        now += action.delay_s
        assert core.next_timer() == now
        assert core.tick(now) == [StartChild("engine", generation + 1)]
    assert delays == [1.0, 2.0, 4.0]
    assert core.exited("engine", 3, 1, now) == [GiveUp("engine", "exit status 1, after 3 restarts")]
    assert core.phase("engine") is ChildPhase.FAILED


def several(least: int = 1, restarts: int = 0) -> list[ChildSpec]:
    """Engines of which each can stand in for the others."""
    names = ("e0", "e1", "e2")
    health = HealthCheck(url="http://127.0.0.1:1/")
    policy = {"alike": names, "least": least, "spare": True, "max_restarts": restarts, "health": health}
    return [child(name, **policy) for name in names]


def test_one_of_several_engines_is_given_up_and_the_last_one_ends_the_run() -> None:
    core = begun(*several(restarts=1), child("actor", depends=("e0", "e1", "e2")))
    for name in ("e0", "e1", "e2"):
        core.healthy(name, 0)
    assert core.tick(0.5) == [StartChild("actor", 0)] and core.all_ready
    for index, name in enumerate(("e0", "e1")):
        assert isinstance(core.exited(name, 0, -9, 1.0)[0], RestartChild)
        core.tick(10.0 + index)
        # It never answered again; that it had is what counts.
        assert core.exited(name, 1, 1, 20.0) == [GoOnWithout(name, "exit status 1, after 1 restarts")]
        assert core.phase(name) is ChildPhase.ENDED and core.all_ready and not core.completed
        assert core.still_serve(name) == f", {2 - index} of 3 still serve"
        assert core.tick(100.0) == [] and core.unresponsive(name, 1, "half a model") == []
    assert core.exited("e2", 0, 2, 200.0) == [GiveUp("e2", "exit status 2, not started again")]


def test_one_of_several_engines_that_was_never_ready_ends_the_run() -> None:
    core = begun(*several(restarts=1))
    core.healthy("e0", 0)
    assert isinstance(core.exited("e1", 0, 1, 1.0)[0], RestartChild)
    core.tick(10.0)
    cause = "exit status 1, after 1 restarts, without having been ready once"
    assert core.exited("e1", 1, 1, 11.0) == [GiveUp("e1", cause)]


def test_engines_are_given_up_only_while_as_many_are_left_as_are_needed() -> None:
    core = begun(*several(least=2))
    for name in ("e0", "e1", "e2"):
        core.healthy(name, 0)
    assert core.exited("e1", 0, -9, 1.0) == [GoOnWithout("e1", "killed by SIGKILL")]
    assert core.exited("e0", 0, -9, 1.0) == [GiveUp("e0", "killed by SIGKILL, 1 of 3 left, 2 needed")]


def test_an_engine_that_is_being_started_again_is_left_but_does_not_serve() -> None:
    core = begun(*several(restarts=1))
    for name in ("e0", "e1", "e2"):
        core.healthy(name, 0)
    core.exited("e0", 0, -9, 1.0)
    assert core.exited("e1", 0, 127, 1.0) == [GoOnWithout("e1", "exit status 127, not started again")]
    assert core.still_serve("e1") == ", 1 of 3 still serve (1 starting)"
    assert core.exited("e2", 0, 127, 1.0) == [GoOnWithout("e2", "exit status 127, not started again")]
    assert core.still_serve("e2") == ", 0 of 3 still serve (1 starting)"


def test_the_death_of_a_child_without_restarts_ends_the_run_at_once() -> None:
    core = begun(child("actor"))
    assert core.exited("actor", 0, 1, 5.0) == [GiveUp("actor", "exit status 1")]
    assert not core.completed


def test_the_run_is_complete_when_every_child_without_restarts_has_ended_with_zero() -> None:
    core = begun(child("actor"), child("finetune"), engine(), ready=True)
    assert core.exited("finetune", 0, 0, 1.0) == []
    assert not core.completed
    assert core.exited("actor", 0, 0, 2.0) == []
    assert core.completed


def test_an_engine_that_exits_with_zero_is_restarted_all_the_same() -> None:
    core = begun(engine())
    assert [type(a) for a in core.exited("engine", 0, 0, 1.0)] == [RestartChild]


@pytest.mark.parametrize("ready", [False, True])
def test_a_server_without_restarts_is_never_done(ready: bool) -> None:
    server = child("engine", health=HealthCheck(url="http://127.0.0.1:1/"))
    core = begun(server, child("trainer"), ready=ready)
    assert core.exited("engine", 0, 0, 1.0) == [GiveUp("engine", "exit status 0")]
    core = begun(server, child("trainer"), ready=ready)
    assert core.exited("trainer", 0, 0, 1.0) == [] and core.completed


@pytest.mark.parametrize("code", [2, 127])
def test_what_no_start_could_mend_ends_the_run_at_once(code: int) -> None:
    for ready in (False, True):
        core = begun(engine(), ready=ready)
        assert core.exited("engine", 0, code, 1.0) == [
            GiveUp("engine", f"exit status {code}, not started again")
        ]
        assert core.phase("engine") is ChildPhase.FAILED
    core = begun(child("wandb", optional=True, max_restarts=1))
    assert core.exited("wandb", 0, code, 0.0) == [
        GoOnWithout("wandb", f"exit status {code}, not started again")
    ]


SAID = [
    "ModuleNotFoundError: No module named 'flashinfer'",
    "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    "(EngineCore pid=41) ImportError: cannot import name 'x' from 'vllm'",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, Model",
    "ValueError: Model architectures ['XForCausalLM'] are not supported for now.",
    "api_server.py: error: unrecognized arguments: --no-such-flag",
    "vllm: error: argument --dtype: invalid choice: 'f16'",
]


@pytest.mark.parametrize("words", SAID)
def test_an_engine_that_lacks_something_is_not_started_again(words: str) -> None:
    assert begun(engine()).exited("engine", 0, 1, 1.0, words) == [
        GiveUp("engine", "exit status 1, not started again")
    ]
    served = begun(engine(), ready=True).exited("engine", 0, 1, 1.0, words)  # perhaps of one request
    killed = begun(engine()).exited("engine", 0, -9, 1.0, words)
    assert [type(one) for one in (*served, *killed)] == [RestartChild, RestartChild]


def ended_twice(first: str, second: str, was_ready: bool = False) -> object:
    core = begun(engine(), ready=was_ready)
    core.exited("engine", 0, 1, 0.0, first)
    core.tick(10.0)
    if was_ready:
        core.exited("engine", 1, 1, 10.0, first)
        core.tick(20.0)
    (action,) = core.exited("engine", 1 + was_ready, 1, 20.0, second)
    return action


def test_the_same_words_of_two_starts_end_the_run() -> None:
    one, two = "RuntimeError: no kernel image (pid 41)", "RuntimeError: no kernel image (pid 97)"
    cause = "exit status 1, in two starts with the same words, not started again"
    assert ended_twice(one, two) == GiveUp("engine", cause)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("RuntimeError: one", "RuntimeError: other"),
        ("", ""),
        2 * ("OSError: [Errno 98] address in use",),
        2 * ("ConnectionError: no route to the hub",),
        2 * ("ValueError: Free memory on device cuda:0 (1/80 GiB) is less than",),
    ],
)
def test_what_may_pass_by_itself_keeps_its_restarts(first: str, second: str) -> None:
    assert isinstance(ended_twice(first, second), RestartChild)


def test_an_engine_that_served_before_keeps_its_restarts_too() -> None:
    assert isinstance(ended_twice("RuntimeError: NCCL", "RuntimeError: NCCL", was_ready=True), RestartChild)


def test_a_child_that_was_killed_is_restarted_whatever_its_status() -> None:
    core = begun(engine(), ready=True)
    core.unresponsive("engine", 0, "half a model")
    assert [type(action) for action in core.exited("engine", 0, 2, 1.0)] == [RestartChild]


def test_a_start_deadline_kills_and_names_the_url() -> None:
    core = begun(engine(deadline_s=10.0))
    assert core.next_timer() == 10.0
    assert core.tick(10.0) == [KillChild("engine")]
    assert core.tick(10.1) == []
    (action,) = core.exited("engine", 0, -9, 10.2)
    assert isinstance(action, RestartChild)
    assert action.cause == "not healthy at http://127.0.0.1:1/ 10 s after its start"


def test_news_of_an_earlier_start_is_ignored() -> None:
    core = begun(engine())
    core.exited("engine", 0, 1, 0.0)
    core.tick(1.0)
    core.healthy("engine", 0)
    assert core.phase("engine") is ChildPhase.STARTING
    assert core.exited("engine", 0, 1, 1.0) == []
    core.healthy("engine", 1)
    assert core.phase("engine") is ChildPhase.READY


def test_an_engine_that_falls_silent_is_killed_and_restarted_once_it_was_ready() -> None:
    core = begun(engine())
    assert core.unresponsive("engine", 0, "half a model") == []
    core.healthy("engine", 0)
    assert core.unresponsive("engine", 0, "half a model") == [KillChild("engine")]
    (action,) = core.exited("engine", 0, -9, 1.0)
    assert isinstance(action, RestartChild) and action.cause == "half a model"


def test_children_stop_before_those_they_depend_on() -> None:
    engine = child("engine", depends=("service",))
    core = SupervisorCore([child("service"), engine, child("actor", depends=("engine", "service"))])
    assert core.stop_order({"service", "engine", "actor"}) == [{"actor"}, {"engine"}, {"service"}]


def test_the_run_goes_on_without_an_optional_child_which_stops_last() -> None:
    core = begun(child("wandb", optional=True, max_restarts=1), child("actor"))
    assert core.stop_order({"wandb", "actor"}) == [{"actor"}, {"wandb"}]
    assert isinstance(core.exited("wandb", 0, -9, 0.0)[0], RestartChild)
    assert core.tick(100.0) == [StartChild("wandb", 1)]
    assert core.exited("wandb", 1, 1, 100.0) == [GoOnWithout("wandb", "exit status 1, after 1 restarts")]
    assert core.all_ready and core.tick(200.0) == [] and not core.completed


def test_exit_codes_are_described() -> None:
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-15) == "killed by SIGTERM"
    assert describe_exit(-99) == "killed by signal 99"


def test_the_start_script_quotes_and_holds_only_the_child_s_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    spec = ChildSpec(
        name="x", argv=["python", "-c", "print('a b')"], log_dir=tmp_path, env={"OMP_NUM_THREADS": "1"}
    )
    text = write_start_script(spec).read_text()
    assert "export OMP_NUM_THREADS=1" in text
    assert "secret" not in text
    assert text.endswith("""exec python -c 'print('"'"'a b'"'"')'\n""")


@pytest.mark.parametrize("secret", ["it's-a-secret", "two\nlines of it", "abc"])
def test_a_start_script_with_a_secret_is_its_owners_alone(secret: str, tmp_path: Path) -> None:
    spec = ChildSpec(name="x", argv=["serve", "--api-key", secret], log_dir=tmp_path, env={})
    assert write_start_script(spec, {("api_key",): secret}).stat().st_mode & 0o077 == 0
    assert write_start_script(spec, {("api_key",): "another-secret"}).stat().st_mode & 0o055 == 0o055
