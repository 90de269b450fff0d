"""Memory of a vLLM engine on its GPUs, estimated from the model's sizes.

vLLM fills the share that `gpu-memory-utilization` gives it: weights, the activations of its largest step,
CUDA graphs, and the rest as keys and values. What lies beside that share is the second copy of the weights
while they are received ahead, and what vLLM does not count.
"""

from dataclasses import dataclass

from pipelinerl.config.card_limit import EngineReads
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
STEPS_AT_ONCE = 2
"""Of vLLM with asynchronous scheduling."""
PROCESS_S = 48e-6
"""Seconds of the engine's own process for a sampled token while requests come and go (`gpu_engine.json`)."""


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
    bounded: bool = True
    """Whether layers with a window keep that alone (vLLM's hybrid cache manager), not the whole request."""
    states: int = 2
    """Of a request in each linear layer: its own, and with prefix caching that of its last full block."""
    routes: bool = False
    """Whether it says the experts of tokens."""


def weight_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """Weights on each of an engine's cards, those of a part that sees included."""
    return work.bytes_per_number * shape.served_parameters / work.cards


def copy_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """A second copy of the weights on each of an engine's cards, as they travel."""
    return work.bytes_per_number * shape.policy_parameters / work.cards


def token_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """Keys and values of one token in one layer, on each of an engine's cards.

    What latent attention keeps is for all heads, so each card has it whole.
    """
    if shape.latent is not None:
        return float(work.cache_bytes_per_number * shape.latent.cached)
    parts = min(work.cards, shape.key_heads or work.cards)  # with more cards than heads, they are repeated
    return 2.0 * work.cache_bytes_per_number * shape.keys / parts


def request_bytes(shape: DecoderShape, work: EngineWork, tokens: float, in_step: float = 0.0) -> float:
    """What one request of so many tokens holds in the cache of each card, `in_step` of them in this step.

    Layers with a window keep its tokens and those of the step, linear layers a state. vLLM hands out blocks
    of one size to groups of equally many layers of one kind; the last group of a kind may be partly empty.
    """
    linear = shape.linear.layers if shape.linear else 0
    windowed = shape.windowed if work.bounded else 0
    full = shape.attending - windowed
    counts = [count for count in (full, windowed, linear) if count]
    group = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    full, windowed, linear = (-(-count // group) * group for count in (full, windowed, linear))
    bounded = min(tokens, shape.window + in_step)
    held = token_bytes(shape, work) * (full * tokens + windowed * bounded)
    return held + linear * work.states * state_bytes(shape, work)


def state_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """The state of a request in one linear layer, on each of an engine's cards."""
    if (one := shape.linear) is None:
        return 0.0
    matrices = one.state * (one.state_bytes_per_number or work.bytes_per_number)
    return (matrices + work.bytes_per_number * one.mixed * (one.kernel - 1)) / work.cards


def step_bytes(shape: DecoderShape, work: EngineWork, requests: int) -> float:
    """Activations of the largest step, logits and their log-probabilities in float32 included."""
    wide = max(shape.mlp, shape.active_experts * shape.expert_mlp + shape.shared_mlp)
    mixer = (2 + shape.gated) * shape.queries
    if shape.linear is not None:
        mixer = max(mixer, 2 * shape.linear.mixed + 3 * shape.linear.values)
    layer = work.bytes_per_number * (4.0 * shape.hidden + (mixer + 3 * wide) / work.cards)
    logits = 3 * 4.0 * shape.vocabulary * requests
    routes = 0.0
    if work.routes:  # what layers write, in 4 bytes, and a copy of each step on its way to the host
        routes = 4.0 * shape.layers * shape.active_experts + STEPS_AT_ONCE * route_bytes(shape)
    return work.batched_tokens * (layer + routes) + logits


def route_bytes(shape: DecoderShape) -> int:
    """The record of one token's experts."""
    return shape.layers * shape.active_experts * (1 if shape.experts <= 256 else 2)


def route_store_bytes(shape: DecoderShape, work: EngineWork, cache_bytes: float) -> float:
    """Records in host memory of all tokens whose keys and values fit into a cache of so many bytes of a card.

    vLLM keeps one for every token of its cache, from 0.31 on in a store and before in one array.
    """
    token = request_bytes(shape, work, work.max_model_len) / work.max_model_len
    return cache_bytes / token * route_bytes(shape)


def cache_room(shape: DecoderShape, work: EngineWork, share_bytes: float, requests: int) -> float:
    """Bytes of keys and values in a share of one card of `share_bytes`; negative where nothing is left."""
    return share_bytes - weight_bytes(shape, work) - step_bytes(shape, work, requests) - FIXED


def requests_held(shape: DecoderShape, work: EngineWork, share_bytes: float, most: int) -> int:
    """Requests of the usual length whose keys and values fit, at most `most`; 0 if not even one whole does.

    vLLM refuses to start where a single request of the full length has no room.
    """
    room = cache_room(shape, work, share_bytes, most)
    if room < whole_request_bytes(shape, work):
        return 0
    return max(1, min(most, int(room / request_bytes(shape, work, USUAL_LENGTH * work.max_model_len))))


def whole_request_bytes(shape: DecoderShape, work: EngineWork) -> float:
    """The longest request, in the cache of each card, while the largest part of it is computed."""
    return request_bytes(shape, work, work.max_model_len, work.batched_tokens)


def decode_reads(shape: DecoderShape, work: EngineWork) -> EngineReads:
    """What a step that samples reads on each of an engine's cards.

    An embedding that is not the output head gives a few rows, a part that sees nothing.
    """
    unread = 0 if shape.tied else shape.vocabulary * shape.hidden
    linear = shape.linear.layers if shape.linear else 0
    token = token_bytes(shape, work)
    return EngineReads(
        weights=work.bytes_per_number * (shape.parameters - unread) / work.cards,
        token=token * (shape.attending - shape.windowed),
        windowed=token * shape.windowed,
        window=shape.window,
        state=linear * state_bytes(shape, work),
    )


def seconds_per_token(shape: DecoderShape, work: EngineWork, requests: int, bandwidth: float) -> float:
    """Of a sampled token where `requests` decode together: the longer of reading weights, keys and values,
    and of the engine's process, which schedules a step while the card computes the one before.

    A batch of some size reaches every expert, so all of them are read.
    """
    read = weight_bytes(shape, work) / requests
    read += request_bytes(shape, work, USUAL_LENGTH * work.max_model_len)
    return max(PROCESS_S, read / bandwidth)
