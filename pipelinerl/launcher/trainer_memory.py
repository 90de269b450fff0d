"""Memory of a trainer on a GPU, estimated from the model's sizes: which activations have room to be kept.

Estimates lay 1 to 13 % above what was seen, of one dense model 11 % below (`docs/gpu.md`).
"""

from pipelinerl.config.finetune import Checkpointing, FinetuneConfig, Sharding
from pipelinerl.config.tree import Config
from pipelinerl.launcher.decoder_shape import DecoderShape, decoder_shape, model_config

OPTIMISER_BYTES = {"adamw_torch": 8.0, "adamw_8bit": 2.1, "lion": 4.0, "adafactor": 1.0}
"""State of a weight; in 8 bits each block of 256 has a scale of its own."""
OTHER = 1.1e9
"""Log-probabilities of one row, whose blocks are chosen so that they need less."""


def state_bytes(
    shape: DecoderShape,
    tune: FinetuneConfig,
    ranks: int,
    sharding: Sharding | None,
    whole_on_host: bool = False,
) -> float:
    """Weights, gradients and optimizer state of one rank that computes in bfloat16.

    `whole_on_host`: the copy that the main rank gathers for the engines lies in host memory while it trains.
    Where shards are offloaded, the card holds what is whole at a time and that copy alone.
    """
    size, frozen = shape.parameters, 2.0 * shape.frozen  # what sees is in bfloat16, on each rank
    if tune.lora.enabled and sharding is None:
        return 4.0 * size + frozen  # frozen: bfloat16, and a merged copy for the engines
    exact = sharded_bytes(tune)
    if sharding is None or (ranks == 1 and not sharding.offload):
        return (2 + exact) * size + frozen
    shards = 0.0 if sharding.offload else exact * size / ranks
    copy = 0.0 if whole_on_host else 2.0 * size
    # Weights and gradients in bfloat16 of what is whole at a time: two layers, embedding and head.
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    whole = 4.0 * (embeddings + 2 * (size - embeddings) / shape.layers)
    kept = 2.0 * size if sharding.keep_gathered else 0.0
    return shards + whole + kept + copy + frozen


def sharded_bytes(tune: FinetuneConfig) -> float:
    """Of a weight over all ranks: float32 master, and its gradient and moments where it is trained."""
    return 4.0 if tune.lora.enabled else 8 + OPTIMISER_BYTES[tune.optim]


def gathering_bytes(
    shape: DecoderShape, tune: FinetuneConfig, ranks: int, sharding: Sharding | None
) -> float:
    """Of the main rank while it gathers the weights for the engines: shards and the whole copy."""
    if sharding is None:
        return 0.0
    exact = 0.0 if sharding.offload else sharded_bytes(tune)
    return shape.parameters * (exact / ranks + 2.0) + 2.0 * shape.frozen


def reference_bytes(shape: DecoderShape) -> float:
    """What a reference policy, in float32 while it loads, takes beside the trainer."""
    return 4.0 * shape.policy_parameters + 2 * OTHER


def frozen_bytes(cfg: Config, shape: DecoderShape) -> float:
    """What preprocess holds on the trainer's last card: a reference without engines of its own, and teachers.

    A teacher whose sizes cannot be read counts as the policy.
    """
    reference = cfg.finetune.rl.uses_reference and not cfg.world.preprocessor_fraction
    teachers = [decoder_shape(model_config(path, ask_hub=False)) or shape for path in cfg.teacher.paths]
    return sum(map(reference_bytes, [*([shape] if reference else []), *teachers]))


def kept_bytes(shape: DecoderShape, mode: Checkpointing, compiled: bool, linear: bool = False) -> float:
    """Activations of a token in one layer that are kept until the backward pass.

    Compiled layers keep what matrix products write, some of it twice; others also float32 copies of what is
    normalised. `selective` keeps attention and narrow products. `linear`: of a layer with a state, which
    was not measured: what goes through its convolution and its gate counts as queries, and is kept in float32
    once for each token that the convolution looks at where no compiler takes these together.
    """
    # A token passes through some experts, each with the hidden state as its input once more.
    mlp = max(shape.mlp, shape.active_experts * (shape.expert_mlp + shape.hidden) + shape.shared_mlp)
    inputs, hidden = 2.0 * shape.hidden, shape.hidden * shape.norms / 2
    queries, keys = (1 + shape.gated) * shape.queries, shape.keys
    if shape.latent is not None:  # what queries, keys and values are made of is kept beside them
        queries += shape.latent.query_rank + shape.latent.cached
    if linear and shape.linear is not None:
        queries, keys = shape.linear.mixed + shape.linear.values, 0
    if mode is True:
        return inputs
    if mode == "offload":
        return 0.0  # in host memory, but for two layers' (`needed_bytes`)
    if mode == "selective":
        residuals = hidden if compiled else 2 * hidden
        return inputs + 2.0 * (2 * queries + 2 * keys + residuals)
    if compiled:
        everything = 6.0 * (hidden + mlp + queries + 2 * keys)
    else:
        everything = 16.0 * hidden + 8.0 * mlp + 12.0 * (queries + keys)
        if linear and shape.linear is not None:
            everything += 4.0 * (1 + shape.linear.kernel) * shape.linear.mixed
    return inputs + everything if mode is False else inputs + everything * (1 - 1 / mode)


BRANCH = 256
"""Tokens of a branch of shared prefixes; shorter ones have more states than are planned."""


def branch_bytes(shape: DecoderShape) -> float:
    """Of a token in a layer with a state whose row shares prefixes, while that layer's backward runs.

    What the delta rule takes and returns lies there once more, in the order of the branches, with gradients;
    each branch has the state that it begins with, and its gradient, in float32.
    """
    if shape.linear is None:
        return 0.0
    return 4.0 * (shape.linear.mixed + shape.linear.values) + 8.0 * shape.linear.state / BRANCH


def needed_bytes(
    shape: DecoderShape, mode: Checkpointing, compiled: bool, tokens: int, state: float, shares: bool = False
) -> float:
    """Peak of a rank that works on `tokens` tokens of a row, with `state` bytes of weights and their kin.

    `shares`: rows share prefixes.
    """
    linear = shape.linear.layers if shape.linear else 0
    activations = shape.attending * kept_bytes(shape, mode, compiled)
    activations += linear * kept_bytes(shape, mode, compiled, linear=True)
    # Recomputed or not, one layer lies there whole, with its gradients, while its backward runs.
    if mode is not False:
        kinds = (False, True) if linear else (False,)
        activations += 2 * max(kept_bytes(shape, False, compiled, kind) for kind in kinds)
    if mode == "offload":
        activations += 2 * kept_bytes(shape, True, compiled)
    if shares:
        activations += branch_bytes(shape)
    return state + OTHER + tokens * activations


def undivided(size: int, ranks: int, shape: DecoderShape | None) -> str | None:
    """Why rows cannot be computed by `size` of `ranks` ranks each, in one line; None if they can."""
    key = f"finetune.seq_parallel={size}"
    if ranks % size:
        return (
            f"{key}: does not divide the {ranks} trainer ranks; set world.finetune_fraction to a multiple of "
            "it, or finetune.seq_parallel=1"
        )
    if shape is not None and size > 1 and shape.linear is not None:
        return f"{key}: layers of linear attention pass a state on along a row; set finetune.seq_parallel=1"
    if shape is not None and shape.heads % size:
        return f"{key}: does not divide the model's {shape.heads} attention heads; set a number that does"
    return None


NO_KERNEL = "layers with a state, without their kernel"


def never_compiled(tune: FinetuneConfig, without_kernel: bool) -> str:
    """Why `finetune.compile=auto` compiles no layers on cards; empty where it may.

    `without_kernel`: whether the model's layers have a state and their kernel is missing.
    """
    if not (tune.load_as_bf16 and tune.use_flash_attention):
        return "attention goes sample by sample"
    return NO_KERNEL if without_kernel else ""


def tokens_of_rank(tune: FinetuneConfig) -> int:
    """Tokens of a row that one rank computes."""
    return -(-tune.seq_length // tune.seq_parallel)


def inputs_bytes(shape: DecoderShape, tune: FinetuneConfig) -> float:
    """Host memory of one rank for the inputs of all layers; torch rounds each up to a power of two."""
    one = int(tokens_of_rank(tune) * kept_bytes(shape, True, True))
    return float(shape.layers * 2 ** max(0, one - 1).bit_length())


def least_recomputed(
    shape: DecoderShape, compiled: bool, tokens: int, state: float, room: float, shares: bool = False
) -> Checkpointing:
    """The fastest way that fits into `room` bytes; all recomputed if none does.

    Choosing operations one by one costs Python time in every layer unless it is compiled away, so that
    `selective` is for compiled layers.
    """
    ways: tuple[Checkpointing, ...] = (False, "selective") if compiled else (False, 2)
    fitting = (way for way in ways if needed_bytes(shape, way, compiled, tokens, state, shares) <= room)
    return next(fitting, True)
