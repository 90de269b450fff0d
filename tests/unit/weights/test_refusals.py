"""What is read from a failure: whether another process would fail as well, and what to do about it.

Engines answer as vLLM does: an error of a worker becomes text in `_invoke_utility_method` of its engine core,
in a text of its executor where there are several workers, and in JSON by its exception handler (0.26, 0.33).
"""

import json

import pytest

from pipelinerl.base.http import CallFailed
from pipelinerl.engines.wire import PermanentUpdateError, lacks_memory, permanent_words
from pipelinerl.weights.refusals import Failure, same_words
from pipelinerl.weights.version_update import WeightUpdateError

AHEAD = (
    "weights.ahead=true needs 15.3 GiB on the engine's GPU for a second copy of the weights, 12.5 GiB are "
    "free; set it to false, or lower vllm_config.vllm_kwargs.gpu-memory-utilization"
)
MEMORY = "vllm_config.vllm_kwargs.gpu-memory-utilization"
CUDA = (
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.18 GiB of which 1.17 "
    "GiB is free. Process 71 has 78.00 GiB memory in use."
)


def answered(said: str, workers: int = 1, status: int = 500) -> CallFailed:
    """What `pipelinerl.base.http` makes of the answer when a worker raises an error of these words."""
    if workers > 1:
        said = f"Worker failed with error '{said}', please check the stack trace above for the root cause"
    error = {"message": f"Call to collective_rpc method failed: {said}", "type": "InternalServerError"}
    body = json.dumps({"error": error | {"param": None, "code": status}})
    return CallFailed(status, " ".join(body[:1000].split()))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("said", "words", "remedy"),
    [
        (str(PermanentUpdateError(AHEAD)), AHEAD, ""),
        (CUDA, "CUDA out of memory. Tried to allocate 2.32 GiB; ", MEMORY),
        ("CUDA error: out of memory\nCUDA kernel errors might be reported later", "out of memory; ", MEMORY),
        (
            str(KeyError("layers.0.mlp.gate.weight")),
            "'layers.0.mlp.gate.weight'; the model has no",
            "model_path",
        ),
        (
            "There is no module or parameter named 'v_head' in Qwen3ForCausalLM. The available parameters "
            "belonging to  (Qwen3ForCausalLM) are: {'lm_head.weight'}",
            "There is no module or parameter named 'v_head' in Qwen3ForCausalLM; ",
            "model_path",
        ),
        (
            "Attempted to load weight (torch.Size([8])) into parameter (torch.Size([4]))",
            "Attempted to load weight (torch.Size([8])) into parameter (torch.Size([4])); ",
            "model_path",
        ),
        (
            "start (0) + length (8) exceeds dimension size (4).",
            "start (0) + length (8) exceeds",
            "model_path",
        ),
        ("shape '[4, 2]' is invalid for input of size 9", "invalid for input of size 9; ", "model_path"),
        (
            "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
            "The size of tensor a (3) must match the size of tensor b (4); ",
            "model_path",
        ),
        ("module 'torch' has no attribute 'float4'", "'float4'; ", "vllm_config.vllm_kwargs.dtype"),
        (
            "Invalid weight transfer backend: files. Available engines: ['nccl', 'ipc']",
            "Invalid weight transfer backend: files; ",
            "start.sh",
        ),
        (
            "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer.",
            "Weight transfer not configured; ",
            "start.sh",
        ),
        (
            "Invalid init_info for NCCLWeightTransferEngine: unexpected keyword argument packed",
            "unexpected keyword argument packed",
            "docs/gpu.md",
        ),
        (
            "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
            "invalid usage; ",
            "transport=file",
        ),
        (
            "libnccl.so.2: cannot open shared object file: No such file or directory",
            "libnccl.so.2: cannot open shared object file; ",
            "weights.transport=file",
        ),
    ],
)
def test_what_no_restart_mends_is_told_without_what_vllm_wraps_it_in(
    said: str, words: str, remedy: str, workers: int
) -> None:
    failure = Failure("http://e", "update", answered(said, workers))
    assert failure.permanent
    assert words in failure.words and remedy in failure.words
    for wrapping in ("collective_rpc", "Worker failed", "{", "<<", ">>"):
        assert wrapping not in failure.words


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    "said",
    [
        "NCCL error: remote process exited or there was a network error",
        "NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "start_weight_update called while a weight update is already active.",
        "NCCL weight transfer not initialized. Call init_transfer_engine() first.",
        "/dev/shm/x/weights-00000064.safetensors has checksum xxh3:0, xxh3:1 was announced",
        "CUDA error: an illegal memory access was encountered",
        "the version has not arrived 60 s after its finish",
        "'spawn'",
        "",
    ],
)
def test_what_a_restart_may_mend_is_no_reason_to_end(said: str, workers: int) -> None:
    failure = Failure("http://e", "update", answered(said, workers))
    assert not failure.permanent and failure.refused


@pytest.mark.parametrize("status", [401, 403, 404, 405, 422, 501])
def test_a_call_that_is_not_offered_is_not_asked_for_again(status: int) -> None:
    failure = Failure("http://e", "pause", CallFailed(status, '{"detail":"Not Found"}'))
    assert failure.permanent and f"HTTP {status}" in failure.words and "start.sh" in failure.words


@pytest.mark.parametrize("status", [400, 409, 500, 502, 503])
def test_a_status_alone_is_not_permanent(status: int) -> None:
    failure = Failure("http://e", "start", CallFailed(status, "<html>Bad Gateway</html>"))
    assert not failure.permanent and failure.words == f"HTTP {status}: <html>Bad Gateway</html>"


def test_an_engine_that_is_gone_was_lost_and_did_not_refuse() -> None:
    for lost in (
        CallFailed(None, "POST /update_weights: RemoteDisconnected: closed"),
        CallFailed(None, "POST /update_weights: no answer within 30 s"),
        answered("EngineCore encountered an issue. See stack trace (above) for the root cause."),
        CallFailed(503, "EngineDeadError"),
    ):
        failure = Failure("http://e", "update", lost)
        assert not failure.refused and not failure.permanent


def test_an_error_of_the_trainer_itself_is_told_as_it_is() -> None:
    missing = ImportError("weights.transport=nccl: the trainer cannot import vLLM")
    assert Failure("the trainer", "join", missing).permanent
    assert Failure("the trainer", "send", PermanentUpdateError("no room")).words == "no room"
    assert not Failure("the trainer", "send", RuntimeError("the broadcast was aborted")).permanent


def test_the_same_words_with_other_numbers_are_the_same() -> None:
    assert same_words(
        "weights-00000016 has checksum xxh3:0a1b2c3d", "weights-00000032 has checksum xxh3:99ffaa01"
    )
    assert same_words("12.5 GiB are free", "7 GiB are free")
    assert not same_words("no memory", "no room") and not same_words("", "no room")


def test_the_marks_of_a_permanent_error_are_found_in_any_text() -> None:
    error = PermanentUpdateError("two\n lines")
    assert error.words == "two lines" and permanent_words(f"a {error} b") == "two lines"
    assert permanent_words("two lines") is None
    assert permanent_words(str(error)[:-4]) == "two lin", "the end of a long answer is cut off"


def test_memory_is_told_from_other_errors() -> None:
    assert lacks_memory(MemoryError()) and lacks_memory(RuntimeError(CUDA))
    assert lacks_memory(
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    )
    assert not lacks_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def failures(*said: str) -> list[Failure]:
    return [Failure(f"http://{index}", "update", answered(one)) for index, one in enumerate(said)]


def test_engines_with_one_problem_are_named_together_and_each_problem_once() -> None:
    permanent = str(PermanentUpdateError("no room"))
    error = WeightUpdateError(failures(permanent, permanent), ["http://0", "http://1"])
    assert str(error) == "weight update failed at update of http://0 and http://1: no room"
    other = WeightUpdateError(failures(permanent, str(PermanentUpdateError("no such name"))))
    assert (
        str(other)
        == "weight update failed at update of http://0: no room; at update of http://1: no such name"
    )


def test_the_cause_comes_first() -> None:
    lost = Failure("http://9", "update", CallFailed(None, "closed"))
    followed = failures("NCCL error: remote process exited")
    error = WeightUpdateError([*followed, lost], ["http://9", "http://0"])
    assert (error.engine, error.permanent) == ("http://9", False)
    assert str(error).endswith("; broken: http://0, http://9")
    ends = WeightUpdateError([lost, *followed, *failures(CUDA)])
    assert ends.permanent and ends.body.startswith("CUDA out of memory") and "closed" not in str(ends)
