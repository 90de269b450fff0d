"""Where the time of a step goes on the GPU, from the trace of torch's profiler."""

import bisect
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Span = tuple[float, float]
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
_ATTENTION = ("flash", "fmha", "cudnn_generated_fort")
_MATMUL = ("gemm", "nvjet", "cutlass", "xmma", "splitk", "cublas")


def profile_step(step: Callable[[], object]) -> dict[str, Any]:
    """Run `step` under the profiler: shares of the device's wall time by kind, and the longest kernels."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return breakdown(events)


def breakdown(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds and shares of attention, matmul, norm_elementwise, loss, optimizer, copies and idle.

    Kernels belong to the loss or the optimizer when they were launched inside of it, to the others by name.
    Shares are of the time from the first kernel's start to the last one's end.
    """
    events = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") in ON_DEVICE]
    if not kernels:
        raise ValueError("the profiler saw no kernel")
    ranges = {"loss": _ranges(events, "_TokenScores"), "optimizer": _ranges(events, "Optimizer.step")}
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    spent: dict[str, float] = defaultdict(float)
    by_name: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        launch = launches.get(kernel.get("args", {}).get("correlation"))
        spent[_kind(kernel, launch, ranges)] += kernel["dur"]
        by_name[kernel["name"][:90]].append(kernel["dur"])
    first = min(kernel["ts"] for kernel in kernels)
    wall = max(kernel["ts"] + kernel["dur"] for kernel in kernels) - first
    spent["idle"] = wall - _covered([(kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels])
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:25]
    return {
        "wall_ms": round(wall / 1e3, 3),
        "kernels": len(kernels),
        "ms": {kind: round(time / 1e3, 3) for kind, time in sorted(spent.items())},
        "share": {kind: round(time / wall, 4) for kind, time in sorted(spent.items())},
        "longest": [
            {"name": name, "calls": len(times), "ms": round(sum(times) / 1e3, 3)} for name, times in longest
        ],
    }


def _ranges(events: Iterable[dict[str, Any]], name: str) -> dict[Any, list[Span]]:
    """Spans on the host whose name starts so, by thread, in order of their start."""
    found: dict[Any, list[Span]] = defaultdict(list)
    for event in events:
        on_host = event.get("cat") in ("cpu_op", "user_annotation")
        if on_host and event["name"].startswith(name):
            found[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return {thread: sorted(spans) for thread, spans in found.items()}


def _inside(launch: dict[str, Any], ranges: dict[Any, list[Span]]) -> bool:
    spans = ranges.get(launch["tid"], [])
    at = bisect.bisect_right(spans, (launch["ts"], float("inf"))) - 1
    return at >= 0 and launch["ts"] <= spans[at][1]


def _kind(
    kernel: dict[str, Any], launch: dict[str, Any] | None, ranges: dict[str, dict[Any, list[Span]]]
) -> str:
    if launch is not None:
        for kind, spans in ranges.items():
            if _inside(launch, spans):
                return kind
    name = kernel["name"].lower()
    if kernel["cat"] != "kernel":
        return "copies"
    if any(part in name for part in _ATTENTION):
        return "attention"
    return "matmul" if any(part in name for part in _MATMUL) else "norm_elementwise"


def _covered(spans: list[Span]) -> float:
    """Length of the union."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
