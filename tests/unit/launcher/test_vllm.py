"""Command lines of vLLM by version."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pipelinerl
from pipelinerl.config.serving import VllmConfig
from pipelinerl.engines.vllm.compile_once import DECORATORS, LOOK
from pipelinerl.engines.vllm.options import (
    VllmOptions,
    VllmVersion,
    api_servers,
    flag,
    kwargs_problems,
    packing,
    pause_routes,
    register_plugins,
    serve_argv,
    serve_env,
    trainer_endpoint,
)
from pipelinerl.engines.vllm.start import STARTED_AT, say_when_it_started


def options(version: str, **changes: Any) -> VllmOptions:
    values: dict[str, Any] = {
        "model": "/models/x",
        "served_model_name": "x",
        "host": "127.0.0.1",
        "port": 8080,
        "max_model_len": 4096,
        "transport": "nccl",
        "version": VllmVersion.parse(version),
        "kwargs": {},
    }
    return VllmOptions(**{**values, **changes})


def test_the_flags_of_0_26() -> None:
    assert serve_argv(options("0.26.1")) == [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "/models/x"),
        *("--served-model-name", "x", "--host", "127.0.0.1", "--port", "8080"),
        *("--max-model-len", "4096", "--seed", "0", "--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm", "--weight-transfer-config", '{"backend": "nccl"}'),
        *("--disable-uvicorn-access-log", "--middleware", "pipelinerl.base.access.GuardedApp"),
        *("--hf-overrides", '{"head_dtype": "float32"}'),
    ]


def test_the_engine_runs_under_the_interpreter_that_was_named() -> None:
    command = serve_argv(options("0.32.0", python="/env/bin/python"))
    assert command[:3] == ["/env/bin/python", "-m", "vllm.entrypoints.cli.main"]
    without = serve_argv(options("0.32.0", python="/env/bin/python", command=False))
    assert without[:3] == ["/env/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert without[3:5] == ["--model", "/models/x"] and without[5:] == command[5:]


def test_0_30_and_later_open_the_token_routes() -> None:
    assert "--enable-scale-out" not in serve_argv(options("0.29.9"))
    assert "--enable-scale-out" in serve_argv(options("0.30.0"))
    assert "--enable-scale-out" in serve_argv(options("1.0.0+cu130"))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("async-scheduling", True, ["--async-scheduling"]),
        ("async-scheduling", False, ["--no-async-scheduling"]),
        ("enable-chunked-prefill", "", ["--enable-chunked-prefill"]),
        ("max_model_len", 10, ["--max-model-len", "10"]),
        ("x", None, []),
        ("x", {"a": 1}, ["--x", '{"a": 1}']),
    ],
)
def test_how_a_value_becomes_a_flag(name: str, value: Any, expected: list[str]) -> None:
    assert flag(name, value) == expected


def test_the_user_s_flags_win_and_appear_once() -> None:
    kwargs = VllmConfig().vllm_kwargs | {"max_model_len": 2048, "hf_overrides": {"rope_theta": 1}}
    argv = serve_argv(options("0.32.0", kwargs=kwargs))
    assert argv[argv.index("--max-model-len") + 1] == "2048"
    assert argv.count("--max-model-len") == argv.count("--logprobs-mode") == 1
    assert '{"head_dtype": "float32", "rope_theta": 1}' in argv
    assert "--enable-prefix-caching" in argv and "--enable-chunked-prefill" in argv


def test_options_that_are_off_leave_no_flag() -> None:
    argv = serve_argv(options("0.32.0", fp32_head=False))
    assert "--hf-overrides" not in argv and "--api-server-count" not in argv
    assert "--trust-remote-code" not in argv
    argv = serve_argv(options("0.32.0", api_server_count=4, trust_remote_code=True))
    assert argv[argv.index("--api-server-count") + 1] == "4" and "--trust-remote-code" in argv


@pytest.mark.parametrize(
    ("cores", "gpus", "of", "expected"),
    [(16, 1, 1, 4), (32, 1, 2, 4), (128, 1, 8, 4), (128, 4, 8, 8), (200, 1, 1, 8), (3, 1, 2, 1)],
)
def test_front_ends_take_a_quarter_of_the_cores_that_fall_to_an_engine(
    cores: int, gpus: int, of: int, expected: int
) -> None:
    assert api_servers(cores, gpus, of) == expected


def test_several_front_ends_say_when_their_engine_started(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str, float]] = []

    def gauge(name: str, _: str, *, registry: None, multiprocess_mode: str) -> SimpleNamespace:
        return SimpleNamespace(set=lambda value: said.append((name, multiprocess_mode, value)))

    monkeypatch.setitem(sys.modules, "prometheus_client", SimpleNamespace(Gauge=gauge))
    monkeypatch.setenv(STARTED_AT, f"{os.getpgid(0) + 1} 5.0")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    before = time.time()
    say_when_it_started()
    assert not said, "a single one says it by itself"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/tmp/counters")
    say_when_it_started()
    say_when_it_started()
    ((name, mode, started), again) = said
    assert (name, mode) == ("process_start_time_seconds", "max") and before <= started <= time.time()
    assert again == said[0], "whoever comes later says the same"


def test_every_version_agrees_on_the_packing_in_one_place_only() -> None:
    assert [VllmVersion.parse(text).packed_at_init for text in ("0.26.0", "0.27.1", "0.28.0", "0.33.0")] == [
        *(False, False, True, True)
    ]
    assert packing(5, 2) == {"packed": True, "packed_buffer_size_bytes": 5, "packed_num_buffers": 2}


def test_only_a_pause_that_keeps_the_cache_can_be_the_quick_one() -> None:
    assert pause_routes("0.26.0", False).pause == "/sleep?level=0&mode=keep"
    assert pause_routes("0.26.0", True).pause == "/pause?mode=keep&clear_cache=true"
    embedded = pause_routes(None, False)
    assert (embedded.pause, embedded.resume) == ("/pause?mode=keep&clear_cache=false", "/resume")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of vLLM that are reached for, holding whatever a test puts there."""
    parts = SimpleNamespace(registered=[])

    class Factory:
        @staticmethod
        def register_engine(*arguments: str) -> None:
            if arguments in parts.registered:
                raise ValueError("already registered")
            parts.registered.append(arguments)

    package = "vllm.distributed.weight_transfer"
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.distributed": {},
        package: {},
        f"{package}.nccl_common": {"trainer_init": lambda info: ("common", info)},
        f"{package}.factory": {"WeightTransferEngineFactory": Factory},
        "vllm.compilation": {},
        DECORATORS: {LOOK: lambda model, path: None},
    }
    for name, attributes in contents.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    yield parts


@pytest.mark.usefixtures("stand_in")
def test_the_trainer_joins_through_the_function_that_every_version_offers() -> None:
    assert trainer_endpoint()({"world_size": 2}) == ("common", {"world_size": 2})


def test_the_plug_in_registers_each_back_end_once(stand_in: SimpleNamespace) -> None:
    register_plugins()
    register_plugins()
    assert [name for name, _, _ in stand_in.registered] == ["file", "file_ahead", "nccl_ahead"]
    assert hasattr(getattr(sys.modules[DECORATORS], LOOK), "__wrapped__")
    root = Path(pipelinerl.__file__).parents[1]
    for _, module, engine in stand_in.registered:  # they import vLLM, which may not be here
        source = (root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert f"class {engine}(" in source


def test_flags_of_the_launcher_are_refused() -> None:
    assert kwargs_problems({"port": 1, "dtype": "auto", "served_model_name": "y"}) == [
        "vllm_config.vllm_kwargs.port: decided by the launcher; remove it",
        "vllm_config.vllm_kwargs.served-model-name: decided by the launcher; remove it",
    ]


@pytest.mark.parametrize(
    ("text", "message"), [("0.25.3", "too old"), ("new", "not a version"), ("1", "not a")]
)
def test_unusable_versions_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VllmVersion.parse(text)


def test_the_environment_opens_the_update_routes_on_the_given_devices() -> None:
    assert serve_env(["3", "GPU-a"]) == {
        "CUDA_VISIBLE_DEVICES": "3,GPU-a",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
        "VLLM_USE_RUST_FRONTEND": "0",
    }


def test_an_engine_of_one_card_is_a_copy_of_its_server_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "VLLM_WORKER_MULTIPROC_METHOD"
    monkeypatch.delenv(name, raising=False)
    assert serve_env(["3"])[name] == "fork"
    assert name not in serve_env(["3", "4"]) and name not in serve_env([])
    monkeypatch.setenv(name, "spawn")
    assert serve_env(["3"])[name] == "spawn"
