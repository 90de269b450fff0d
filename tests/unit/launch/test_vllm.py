"""Command lines of vLLM by version."""

from __future__ import annotations

from typing import Any

import pytest

from pipelinerl.config.serving import VllmConfig
from pipelinerl.inference.vllm import (
    VllmOptions,
    VllmVersion,
    flag,
    kwargs_problems,
    serve_argv,
    serve_env,
)


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
        *("vllm", "serve", "/models/x", "--served-model-name", "x", "--host", "127.0.0.1", "--port", "8080"),
        *("--max-model-len", "4096", "--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm", "--weight-transfer-config", '{"backend": "nccl"}'),
        *("--hf-overrides", '{"head_dtype": "float32"}'),
    ]


def test_0_32_and_later_open_the_token_routes() -> None:
    assert "--enable-scale-out" not in serve_argv(options("0.31.9"))
    assert "--enable-scale-out" in serve_argv(options("0.32.0"))
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
    assert "--no-enable-prefix-caching" in argv and "--enable-chunked-prefill" in argv


def test_options_that_are_off_leave_no_flag() -> None:
    argv = serve_argv(options("0.32.0", fp32_head=False))
    assert "--hf-overrides" not in argv and "--api-server-count" not in argv
    assert "--trust-remote-code" not in argv
    argv = serve_argv(options("0.32.0", api_server_count=4, trust_remote_code=True))
    assert argv[argv.index("--api-server-count") + 1] == "4" and "--trust-remote-code" in argv


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
    }
