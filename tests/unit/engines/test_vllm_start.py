"""Stages of a vLLM engine that starts, from lines as its releases write them."""

from pathlib import Path

import pytest

from pipelinerl.engines.vllm.compile_once import log as compile_log
from pipelinerl.engines.vllm.start import COMPILES, STAGES, WAITS
from pipelinerl.launcher.supervision import ChildSpec
from pipelinerl.launcher.supervision.starting import FIRST_STAGE, StartLog

CORE = "(EngineCore pid=812) INFO 07-29 10:11:12"
CACHE = "/home/u/.cache/vllm/torch_compile_cache/torch_aot_compile/1f/rank_0_0/model"
BY_026 = [
    ("INFO 07-29 10:10:58 [config/model.py:623] Resolved architecture: Qwen3ForCausalLM", FIRST_STAGE),
    (
        f"{CORE} [v1/engine/core.py:116] Initializing a V1 LLM engine (v0.26.0) with ...",
        "preparing its device",
    ),
    (f"{CORE} [v1/worker/gpu_model_runner.py:5250] Starting to load model /m...", "loading weights"),
    (f"{CORE} [default_loader.py:430] Loading weights took 3.10 seconds", "loading weights"),
    (
        f"{CORE} [gpu_model_runner.py:5347] Model loading took 3.22 GiB memory and 4.2 seconds",
        "profiling memory",
    ),
    (f"{CORE} [compile_once.py:90] {WAITS}, at most 300 s", "waiting for another engine to compile"),
    (f"{CORE} [decorators.py:311] Directly load AOT compilation from path {CACHE}", "profiling memory"),
    (f"{CORE} [compile_once.py:60] {COMPILES}", "compiling"),
    (
        f"{CORE} [backends.py:1094] Using cache directory: /c/backbone for vLLM's torch.compile",
        "compiling",
    ),
    (f"{CORE} [backends.py:1155] Dynamo bytecode transform time: 5.50 s", "compiling"),
    (f"{CORE} [monitor.py:48] torch.compile took 21.30 s in total", "profiling memory"),
    (f"{CORE} [gpu_worker.py:560] Available KV cache memory: 61.1 GiB", "preparing its cache"),
    (
        f"{CORE} [kv_cache_utils.py:2177] GPU KV cache size: 571,200 tokens",
        "warming up and capturing graphs",
    ),
    (
        f"{CORE} [gpu_model_runner.py:6844] Graph capturing finished in 6 secs, took 0.91 GiB",
        "warming up and capturing graphs",
    ),
    (
        f"{CORE} [core.py:330] init engine (profile, create kv cache, warmup model) took 41.20 s "
        "(compilation: 21.30 s)",
        "starting its HTTP servers",
    ),
]
BY_032_ON_A_CPU = [
    ("(Worker pid=9) INFO [cpu_model_runner.py:68] Starting to load model /m...", "loading weights"),
    ("(Worker pid=9) INFO [cpu_model_runner.py:87] Warming up model for the compilation...", "compiling"),
    (
        "(EngineCore pid=8) INFO [shm_broadcast.py:871] No available shared memory broadcast block",
        "compiling",
    ),
    (
        "(EngineCore pid=8) INFO [kv_cache_utils.py:2327] CPU KV cache size: 465,920 tokens, Maximum ...",
        "warming up and capturing graphs",
    ),
]
BY_033 = [
    (
        "(APIServer pid=800) INFO 07-29 10:10:58 [vllm.py:900] Asynchronous scheduling is enabled.",
        FIRST_STAGE,
    ),
    (f"{CORE} [core.py:139] Initializing a V1 LLM engine (v0.33.0) with config: ...", "preparing its device"),
    (f"{CORE} [model_runner.py:400] Starting to load model /m...", "loading weights"),
    (f"{CORE} [model_runner.py:428] Model loading took 3.22 GiB memory and 4.2 seconds", "profiling memory"),
    (f"{CORE} [monitor.py:40] [backbone] Starting torch.compile", "compiling"),
    (
        f"{CORE} [backends.py:1125] [backbone] Using cache directory: /c for vLLM's torch.compile",
        "compiling",
    ),
    (f"{CORE} [monitor.py:63] [backbone] torch.compile took 19.00 s in total", "profiling memory"),
    (
        f"{CORE} [decorators.py:326] [backbone] Directly load AOT compilation from path {CACHE}",
        "profiling memory",
    ),
    (f"{CORE} [gpu_worker.py:772] Available KV cache memory: 61.1 GiB", "preparing its cache"),
    (
        f"{CORE} [kv_cache_utils.py:1147] GPU KV cache size: 571,200 tokens, Maximum concurrency for "
        "2,048 tokens per request: 278.91x",
        "warming up and capturing graphs",
    ),
    (f"{CORE} [kernel_warmup.py:179] JIT kernel warmup starting.", "warming up and capturing graphs"),
    (
        f"{CORE} [core.py:412] init engine (profile, create kv cache, warmup model) took 22.00 s",
        "starting its HTTP servers",
    ),
    (
        "(APIServer pid=800) INFO [entry.py:139] Starting vLLM server on http://h:1",
        "starting its HTTP servers",
    ),
]


def engine(folder: Path) -> ChildSpec:
    return ChildSpec(name="actor_vllm_0", argv=["true"], log_dir=folder, stages=STAGES)


@pytest.mark.parametrize("lines", [BY_026, BY_032_ON_A_CPU, BY_033], ids=["0.26", "CPU", "0.33"])
def test_each_line_of_a_start_says_what_the_engine_is_at(
    tmp_path: Path, lines: list[tuple[str, str]]
) -> None:
    start = StartLog(engine(tmp_path), 0.0)
    with (tmp_path / "stdout.log").open("a") as log:
        for line, stage in lines:
            log.write(line + "\n")
            log.flush()
            assert start.look(0.0)["stage"] == stage, line


def test_a_stage_lasts_from_its_first_line_and_an_earlier_start_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_text(f"{CORE} Starting to load model /m...\n")
    start = StartLog(engine(tmp_path), 100.0)
    assert start.look(103.0) == {"who": "actor_vllm_0", "stage": FIRST_STAGE, "for_s": 3.0}
    with path.open("a") as log:
        log.write(f"{CORE} {COMPILES}\n{CORE} half a li")
        log.flush()
        assert start.look(110.0)["for_s"] == 0.0
        log.write("ne of KV cache size: 7 tokens")  # no end yet: not read
        log.flush()
    assert start.look(123.0) == {"who": "actor_vllm_0", "stage": "compiling", "for_s": 13.0}


def test_what_this_package_says_in_an_engine_gets_into_its_log() -> None:
    """vLLM sets up no logger but those below its own name."""
    assert compile_log.name.startswith("vllm.")
