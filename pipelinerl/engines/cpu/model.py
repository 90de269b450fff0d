"""The model of an engine: loading, the packed forward over KV slots, and the check at start that it is right.

Used by the engine thread. A forward over slots replaces parts of the architecture's own, so it is compared
with that before anything is served.
"""

import logging
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import torch
import transformers

from pipelinerl.engines.cpu.attention import SlotCache, pack
from pipelinerl.engines.cpu.delta_net import slot_states, use_slot_delta_nets
from pipelinerl.engines.cpu.forwards import (
    Forward,
    FusedForward,
    TransformersForward,
    fused_forward_applies,
)
from pipelinerl.engines.cpu.scheduler import Chunk, Plan
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.serving.backend import UnsupportedModel
from pipelinerl.engines.serving.sequence import Request
from pipelinerl.modeling.delta_net import delta_nets, use_packed_delta_nets
from pipelinerl.modeling.layer_kinds import TRAINED, unknown_kinds
from pipelinerl.modeling.loading import load_causal_lm
from pipelinerl.modeling.routing import Routers

log = logging.getLogger(__name__)

# Largest difference of a log-probability between the packed forward and the model's own, at start; ten
# nats away from 0 twice as much, since rounding grows with the logits (a sharp model's own float32 forward
# is that far from its float64 one).
SELF_CHECK_LIMITS = {torch.float32: 2e-5, torch.bfloat16: 0.25}
# Beyond that limit a forward in a wider type decides, since rounding grows with depth: the packed forward
# may be so many times as far from it as the model's own forward is.
WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float32}
ROUNDING_FACTOR = 3.0
LONGEST_CHECK = 1024
"""Tokens of the check at start of a model with sliding windows; their masks have tests of their own."""


class PackedModel:
    """A causal LM whose forward takes one packed step (see `attention`)."""

    def __init__(self, settings: EngineSettings) -> None:
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        self._forward: Forward
        self.module = load_causal_lm(settings.model, dtype=self.dtype, local_files_only=True).eval()
        config = self.module.config.get_text_config(decoder=True)
        self.config = config
        self.vocab_size: int = config.vocab_size
        _check_config(config, settings, with_states=bool(delta_nets(self.module)))
        if self.dtype != torch.float32:
            _use_float32_head(self.module)
        # A beginning is of use only with the state behind it, and a slot has only that of its last token.
        self.pool_rows = 0 if delta_nets(self.module) else settings.pool_rows
        self.routers = _routers(self.module) if settings.enable_return_routed_experts else None
        # Not every configuration names these; where one does, `head_dim` need not be width / heads.
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache = SlotCache(
            config.num_hidden_layers,
            settings.max_num_seqs,
            settings.max_model_len,
            heads,
            head_size,
            self.dtype,
            self.pool_rows,
            None if self.routers is None else _recorded_type(self.routers),
        )
        self.cache.states = slot_states(self.module, settings.max_num_seqs)
        self._check(_check_length(config, settings), settings)

    @property
    def forward_name(self) -> str:
        """Which forward runs, for the log."""
        return type(self._forward).__name__

    @torch.inference_mode()
    def logits(self, plan: Plan, rows: SequenceOf[int]) -> torch.Tensor:
        """Run one step; float32 logits [len(rows), V] of the packed rows asked for."""
        # In this order: a slot that is to be saved may be loaded into, and what is loaded may just be saved.
        self.cache.copy(plan.saves)
        self.cache.copy(plan.loads)
        batch = pack(plan, self.cache)
        if self.routers is None or self.cache.routes is None:
            return self._forward(batch, list(rows)).float()
        with self.routers.noting():
            logits = self._forward(batch, list(rows)).float()
            chosen = self.routers.recorded().to(self.cache.routes.dtype)
            self.cache.routes.index_copy_(0, batch.places, chosen)
        for chunk in plan.chunks:
            _note_routes(chunk, self.cache)
        return logits

    def _check(self, length: int, settings: EngineSettings) -> None:
        """Choose the forward, and refuse a model whose packed, chunked logits differ from its own."""
        generator = np.random.default_rng(0)
        prompt = generator.integers(0, self.vocab_size, length).tolist()
        # With the trainer's form of those: transformers' own takes kernels of cards where they are installed.
        use_packed_delta_nets(self.module)
        with torch.inference_mode():
            # Before a forward is chosen: both change the module, one its attention, the other where weights
            # lie.
            _use_capping_attention(self.module)
            expected = self.module(torch.tensor([prompt]), use_cache=False).logits[0].float()
        if not bool(torch.isfinite(expected).all()):  # NaN differs from itself: not the architecture's fault
            raise UnsupportedModel(
                f"{type(self.module).__name__}: its own logits hold NaN or infinity, so its weights are "
                "damaged; give another folder, or an earlier checkpoint"
            )
        if fused_forward_applies(self.module):
            self._forward = FusedForward(self.module, settings.max_model_len)
        else:
            self._forward = TransformersForward(self.module)
            use_slot_delta_nets(self.module)
        cut, last = length // 2, length - 1
        request = Request("self-check", prompt, SamplingFields(), max_tokens=1, eos_ids=frozenset())
        (sequence,) = request.sequences
        # The last slot: a decode with empty slots before it is the case that spreads and gathers.
        sequence.slot = settings.max_num_seqs - 1
        # A piece from position 0, one behind it with a mask, and a decode: all that `attend` distinguishes.
        pieces = [Plan([], [Chunk(sequence, 0, cut)]), Plan([], [Chunk(sequence, cut, last)])]
        pieces.append(Plan([Chunk(sequence, last, length)], []))
        try:
            found = [
                self.logits(piece, range(chunk.end - chunk.start))
                for piece in pieces
                for chunk in (*piece.decodes, *piece.prefills)
                if chunk.end > chunk.start
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise UnsupportedModel(f"{type(self.module).__name__} cannot use KV slots: {error}") from error
        difference, limit = _difference(torch.cat(found), expected), SELF_CHECK_LIMITS[self.dtype]
        # Not `>`: that would let NaN pass.
        if not difference <= limit and not self._is_rounding(settings, prompt, torch.cat(found), expected):
            raise UnsupportedModel(
                f"{type(self.module).__name__}: the packed forward differs from the model's own by "
                f"{difference:.2g} nats, {limit} is allowed, and rounding does not explain it; "
                "this architecture needs another engine"
            )

    def _is_rounding(
        self, settings: EngineSettings, prompt: list[int], found: torch.Tensor, own: torch.Tensor
    ) -> bool:
        """Whether both logits [T, V] of `prompt` are about as far from those of a wider type."""
        # Loaded anew, because choosing a forward has changed the module; only such models pay for it.
        wider = load_causal_lm(settings.model, dtype=WIDER[self.dtype], local_files_only=True).eval()
        use_packed_delta_nets(wider)
        _use_capping_attention(wider)
        with torch.inference_mode():
            exact = wider(torch.tensor([prompt]), use_cache=False).logits[0]
        error, rounding = _difference(found, exact), _difference(own, exact)
        log.info(
            "%s: %.2g nats from its forward in %s, its own forward %.2g",
            *(type(self.module).__name__, error, WIDER[self.dtype], rounding),
        )
        return error <= ROUNDING_FACTOR * rounding


def _routers(module: transformers.PreTrainedModel) -> Routers:
    try:
        routers = Routers.of(module)
    except ValueError as error:
        raise UnsupportedModel(f"--enable-return-routed-experts: {error}") from None
    if routers is None:
        raise UnsupportedModel(
            f"--enable-return-routed-experts: {type(module).__name__} has no experts; leave the option out"
        )
    return routers


def _recorded_type(routers: Routers) -> tuple[int, int, torch.dtype]:
    # As vLLM: the narrowest type that holds every id.
    return routers.layers, routers.active, torch.uint8 if routers.experts <= 256 else torch.int16


def _note_routes(chunk: Chunk, cache: SlotCache) -> None:
    """Keep with the sequence what is new of its experts; those that a prefix cache had lie in the slot too.

    Tokens that are computed again, under new weights, keep the experts under which the next one was sampled.
    """
    sequence = chunk.sequence
    assert cache.routes is not None
    if sequence.routes is None:
        kind = np.uint8 if cache.routes.dtype == torch.uint8 else np.uint16
        sequence.routes = np.zeros((len(sequence.tokens), *cache.routes.shape[1:]), kind)
    if chunk.end > sequence.routed:
        first = sequence.slot * cache.capacity
        new = cache.routes[first + sequence.routed : first + chunk.end].numpy()
        sequence.routes[sequence.routed : chunk.end] = new
        sequence.routed = chunk.end


def _difference(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest difference of log-probabilities, in nats; those far from 0 count less, as the limits say."""
    own = reference.log_softmax(-1)
    return ((logits.log_softmax(-1) - own).abs() / (1 + own.abs() / 10)).max().item()


def _check_config(config: transformers.PreTrainedConfig, settings: EngineSettings, with_states: bool) -> None:
    if unknown := unknown_kinds(getattr(config, "layer_types", None) or (), with_states):
        raise UnsupportedModel(
            f"layers of type {', '.join(unknown)}: only {' and '.join(TRAINED)} are supported"
        )
    # RWKV and xLSTM do not name the kinds of their layers.
    if not any(getattr(config, f"num_{name}_heads", None) for name in ("key_value", "attention")):
        raise UnsupportedModel(f"layers without attention: only {' and '.join(TRAINED)} are supported")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and settings.max_model_len > longest:
        raise UnsupportedModel(
            f"--max-model-len {settings.max_model_len} exceeds the model's {longest} positions; lower it"
        )


def _check_length(config: transformers.PreTrainedConfig, settings: EngineSettings) -> int:
    """Tokens of the check at start: beyond a sliding window, where that is not too long."""
    window = getattr(config, "sliding_window", None) or 0
    return min(settings.max_model_len, max(24, min(window + 8, LONGEST_CHECK)))


def _use_capping_attention(module: Any) -> None:
    """Of transformers' own attentions for a CPU only one caps scores; the others leave the cap out."""
    if getattr(module.config, "attn_logit_softcapping", None) is not None:
        module.set_attn_implementation("eager")


def _use_float32_head(module: torch.nn.Module) -> None:
    """Compute the logits in float32 even if the weights are not."""
    # As `head_dtype` makes vLLM do. The weights stay what they are, so an update copies the same bytes.
    head = module.get_output_embeddings()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        bias = None if head.bias is None else head.bias.float()
        return torch.nn.functional.linear(hidden.float(), head.weight.float(), bias)

    head.forward = forward
