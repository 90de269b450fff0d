"""The profile of a step adds up: every kernel in one kind, what is between them idle."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu.profile_step import breakdown


def kernel(name: str, at: float, dur: float, correlation: int, cat: str = "kernel") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": at,
        "dur": dur,
        "tid": 7,
        "args": {"correlation": correlation},
    }


def launch(at: float, correlation: int, thread: int = 1) -> dict[str, Any]:
    event = kernel("cudaLaunchKernel", at, 1.0, correlation, "cuda_runtime")
    return event | {"tid": thread}


def host(name: str, at: float, dur: float, thread: int = 1, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": dur, "tid": thread}


def test_kernels_are_sorted_by_where_they_were_launched_and_by_name() -> None:
    events = [
        host("_TokenScores", 10, 10),
        host("_TokenScoresBackward", 40, 10, thread=2),
        host("Optimizer.step#AdamW.step", 80, 10, cat="user_annotation"),
        launch(0, 1),
        launch(12, 2),
        launch(45, 3, thread=2),
        launch(45, 4, thread=1),
        launch(85, 5),
        launch(95, 6),
        launch(96, 7),
        kernel("pytorch_flash::flash_fwd_kernel", 100, 1000, 1),
        kernel("nvjet_sm90_gemm", 1100, 2000, 2),
        kernel("triton_red_fused", 3100, 1000, 3),
        kernel("nvjet_sm90_gemm", 4000, 1100, 4),
        kernel("multi_tensor_apply_kernel", 6100, 500, 5),
        kernel("triton_poi_fused_mul", 6600, 500, 6),
        kernel("Memcpy HtoD", 7100, 3000, 7, "gpu_memcpy"),
        {"ph": "M", "name": "process_name"},
    ]
    found = breakdown(events)
    assert found["wall_ms"] == pytest.approx(10.0)
    assert found["ms"] == {
        "attention": 1.0,
        "copies": 3.0,
        "idle": 1.0,
        "loss": 3.0,
        "matmul": 1.1,
        "norm_elementwise": 0.5,
        "optimizer": 0.5,
    }
    assert found["longest"][0] == {"name": "nvjet_sm90_gemm", "calls": 2, "ms": 3.1}


def test_a_trace_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="saw no kernel"):
        breakdown([host("_TokenScores", 0, 1)])
