"""Memory of a trainer on a GPU, estimated from the model's sizes: which activations have room to be kept.

Estimates lie 0 to 14 % above what was measured (`docs/gpu.md`, "Measured").
"""

from pipelinerl.config.finetune import Checkpointing, FinetuneConfig, Sharding
from pipelinerl.launcher.decoder_shape import DecoderShape

OPTIMISER_BYTES = {"adamw_torch": 8, "lion": 4, "adafactor": 1}
"""Float32 state of a weight."""
OTHER = 1.1e9
"""Log-probabilities of one row, whose blocks are chosen so that they need less."""


def state_bytes(shape: DecoderShape, tune: FinetuneConfig, ranks: int, sharding: Sharding | None) -> float:
    """Weights, gradients and optimizer state of one rank that computes in bfloat16."""
    size = shape.parameters
    if tune.lora.enabled:
        return 4.0 * size  # frozen: bfloat16, and a merged copy for the engines
    exact = 4 + 4 + OPTIMISER_BYTES[tune.optim]
    if sharding is None or ranks == 1:
        return float((2 + exact) * size)
    # The main rank gathers a whole copy in bfloat16 for the engines.
    kept = 2.0 * size if sharding.keep_gathered else 0.0
    return exact * size / ranks + kept + 2.0 * size


def reference_bytes(shape: DecoderShape) -> float:
    """What a reference policy, in float32 while it loads, takes beside the trainer."""
    return 4.0 * shape.parameters + 2 * OTHER


def kept_bytes(shape: DecoderShape, mode: Checkpointing, compiled: bool) -> float:
    """Activations of a token in one layer that are kept until the backward pass.

    Compiled layers keep what matrix products write, some of it twice; others also float32 copies of what is
    normalised. `selective` keeps attention and narrow products.
    """
    inputs = 2.0 * shape.hidden
    if mode is True:
        return inputs
    if mode == "selective":
        residuals = shape.hidden if compiled else 2 * shape.hidden
        return inputs + 2.0 * (2 * shape.queries + 2 * shape.keys + residuals)
    if compiled:
        everything = 6.0 * (shape.hidden + shape.mlp + shape.queries + 2 * shape.keys)
    else:
        everything = 16.0 * shape.hidden + 8.0 * shape.mlp + 12.0 * (shape.queries + shape.keys)
    return inputs + everything if mode is False else inputs + everything * (1 - 1 / mode)


def needed_bytes(
    shape: DecoderShape, mode: Checkpointing, compiled: bool, tokens: int, state: float
) -> float:
    """Peak of a rank that works on rows of `tokens` tokens, with `state` bytes of weights and their kin."""
    activations = shape.layers * kept_bytes(shape, mode, compiled)
    # Recomputed or not, one layer lies there whole, with its gradients, while its backward runs.
    if mode is not False:
        activations += 2 * kept_bytes(shape, False, compiled)
    return state + OTHER + tokens * activations


def least_recomputed(
    shape: DecoderShape, compiled: bool, tokens: int, state: float, room: float
) -> Checkpointing:
    """The fastest way that fits into `room` bytes; all recomputed if none does.

    Choosing operations one by one costs Python time in every layer unless it is compiled away, so that
    `selective` is for compiled layers.
    """
    ways: tuple[Checkpointing, ...] = (False, "selective") if compiled else (False, 2)
    fitting = (way for way in ways if needed_bytes(shape, way, compiled, tokens, state) <= room)
    return next(fitting, True)
