"""Memory of a vLLM engine on its GPUs, estimated from the model's sizes.

vLLM fills the share that `gpu-memory-utilization` gives it: weights, the activations of its largest step,
CUDA graphs, and the rest as keys and values. What lies beside that share is the second copy of the weights
while they are received ahead, and what vLLM does not count.
"""

from dataclasses import dataclass

from pipelinerl.launcher.cards import GIB
from pipelinerl.launcher.decoder_shape import DecoderShape

MOST_SHARE = 0.9
"""vLLM's own default; what it does not count has room in the rest."""
UNCOUNTED = 2.75 * GIB
"""Beside the share: CUDA contexts, NCCL's buffers of updates, and what compares or scores a probe."""
FIXED = 1.5 * GIB
"""Inside the share: workspaces and CUDA graphs."""
USUAL_LENGTH = 0.5
"""Share of the longest request that a request holds in the cache on average."""
PROCESS_S = 35e-6
"""Seconds of the engine's own process for a sampled token, beside its kernels (`docs/gpu.md`)."""


@dataclass(frozen=True, kw_only=True)
class EngineWork:
    """What an engine is asked to do."""

    max_model_len: int
    """Prompt and completion of one request, in tokens."""
    batched_tokens: int = 8192
    """Tokens of its largest step."""
    cards: int = 1
    """GPUs that one copy of the weights is divided over (tensor and pipeline parallel)."""
    bytes_per_number: int = 2
    """2 for bfloat16, 4 for float32."""
    cache_bytes_per_number: int = 2
    """1 for keys and values in 8 bits."""


def weight_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """Weights on each of an engine's cards; also those of a second copy, as they travel."""
    return work.bytes_per_number * shape.parameters / work.cards


def token_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """Keys and values of one token on each of an engine's cards."""
    parts = min(work.cards, shape.key_heads or work.cards)  # with more cards than heads, they are repeated
    return 2.0 * work.cache_bytes_per_number * shape.keys * shape.layers / parts


def step_bytes(shape: DecoderShape, work: EngineWork, requests: int) -> float:
    """Activations of the largest step, logits and their log-probabilities in float32 included."""
    wide = max(shape.mlp, shape.active_experts * shape.expert_mlp + shape.shared_mlp)
    layer = work.bytes_per_number * (4.0 * shape.hidden + (2 * shape.queries + 3 * wide) / work.cards)
    logits = 3 * 4.0 * shape.vocabulary * requests
    return work.batched_tokens * layer + logits


def cache_room(shape: DecoderShape, work: EngineWork, share_bytes: float, requests: int) -> float:
    """Bytes of keys and values in a share of one card of `share_bytes`; negative where nothing is left."""
    return share_bytes - weight_bytes(shape, work) - step_bytes(shape, work, requests) - FIXED


def requests_held(shape: DecoderShape, work: EngineWork, share_bytes: float, most: int) -> int:
    """Requests of the usual length whose keys and values fit, at most `most`; 0 if not even one whole does.

    vLLM refuses to start where a single request of the full length has no room.
    """
    token, room = token_bytes(shape, work), cache_room(shape, work, share_bytes, most)
    if room < token * work.max_model_len:
        return 0
    return max(1, min(most, int(room / (token * USUAL_LENGTH * work.max_model_len))))


def seconds_per_token(shape: DecoderShape, work: EngineWork, requests: int, bandwidth: float) -> float:
    """Of a sampled token where `requests` decode together: reading weights, keys and values, and the process.

    A batch of some size reaches every expert, so all of them are read.
    """
    read = weight_bytes(shape, work) / requests
    read += token_bytes(shape, work) * USUAL_LENGTH * work.max_model_len
    return PROCESS_S + read / bandwidth
