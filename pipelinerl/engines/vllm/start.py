"""What a vLLM engine is at between the start of its process and its first good health check.

vLLM says so only in its log. A line that contains one of these texts begins what stands beside it. The texts
are those of 0.26 to 0.33; `tests/unit/engines/test_vllm_start.py` has whole lines of both. The processes of
an engine say the time of their start by themselves.
"""

import os
import time
from importlib import import_module

from pipelinerl.engines.engine_metrics import STARTED

# Variable by which the processes of one engine know when it started: their process group and the time.
STARTED_AT = "PIPELINERL_ENGINE_STARTED_AT"

COMPILES = "no compiled model is kept: this engine compiles it"
WAITS = "another engine compiles this model: waiting for it"
"""Said by `compile_once.py`."""

STAGES = (
    ("Initializing a V1 LLM engine", "preparing its device"),
    ("Starting to load model", "loading weights"),
    ("Model loading took", "profiling memory"),
    (WAITS, "waiting for another engine to compile"),
    (COMPILES, "compiling"),
    ("Starting torch.compile", "compiling"),
    ("Warming up model for the compilation", "compiling"),  # a CPU build
    ("Using cache directory:", "compiling"),
    ("Directly load AOT compilation", "profiling memory"),
    ("torch.compile took", "profiling memory"),
    ("torch.compile and initial profiling/warmup run together took", "profiling memory"),
    ("Available KV cache memory", "preparing its cache"),
    ("KV cache size:", "warming up and capturing graphs"),
    ("init engine (profile, create kv cache, warmup model) took", "starting its HTTP servers"),
)


def say_when_it_started() -> None:
    """Let the metrics of an engine with several HTTP processes have `process_start_time_seconds` again.

    prometheus_client leaves it out where processes share counters; those of a process group inherit a value.
    """
    group, _, started = os.environ.get(STARTED_AT, "").partition(" ")
    # The processes of one engine are one process group and inherit the variable from its first process. The
    # value of another group is that of another start.
    if group != str(os.getpgid(0)):
        started = repr(time.time())
        os.environ[STARTED_AT] = f"{os.getpgid(0)} {started}"
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        client = import_module("prometheus_client")
        about = "Start time of the engine since unix epoch in seconds."
        client.Gauge(STARTED, about, registry=None, multiprocess_mode="max").set(float(started))
