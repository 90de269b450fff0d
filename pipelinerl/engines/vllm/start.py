"""What a vLLM engine is at between the start of its process and its first good health check.

vLLM says so only in its log. A line that contains one of these texts begins what stands beside it. The texts
are those of 0.26 to 0.33; `tests/unit/engines/test_vllm_start.py` has whole lines of both.
"""

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
