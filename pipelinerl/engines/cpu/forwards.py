"""Two ways to run one packed step: any architecture through transformers, Qwen3 and Llama with less overhead.

Both write keys and values into the slots and give the same logits; `model` proves it at start against the
model's own forward. Shapes as in `attention`; V vocabulary, M model width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.functional import silu
from transformers import AttentionInterface

from pipelinerl.engines.cpu.attention import StepBatch, attend, narrow
from pipelinerl.modeling.capped_attention import Rule

ATTENTION_NAME = "pipelinerl_slots"
# Keyword arguments of attention functions that change the result and that `attend` does not compute.
_UNSUPPORTED = ("sinks", "head_mask")
# What `FusedForward` computes, and whether queries and keys are normalised, which is all that differs.
_NORMALISED = {"Qwen3ForCausalLM": True, "LlamaForCausalLM": False}
# Kinds of rotation whose angles follow from the position alone; the others also look at how long a text is.
_FIXED_ROTATIONS = ("default", "linear", "yarn", "llama3")

# (step, packed rows) to logits [len(rows), V].
Forward = Callable[[StepBatch, list[int]], torch.Tensor]


def _slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    step_batch: StepBatch | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers: query [1, H, T, D], key and value [1, K, T, D] to [1, T, H, D]."""
    if step_batch is None:
        raise ValueError(f"{type(module).__name__} does not hand keyword arguments to its attention function")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} needs attention with {name}, which is not supported")
    layer = module.layer_idx
    step_batch.cache.store(layer, step_batch.places, key[0].transpose(0, 1), value[0].transpose(0, 1))
    rule = Rule(sliding_window, softcap, s_aux)
    output = attend(query[0].transpose(0, 1), layer, step_batch, step_batch.prefills, scaling, rule)
    return output[None], None


AttentionInterface.register(ATTENTION_NAME, _slot_attention)


class TransformersForward:
    """Runs the model's own modules with the slot attention in place of theirs."""

    def __init__(self, module: Any) -> None:
        module.set_attn_implementation(ATTENTION_NAME)
        self._module = module

    def __call__(self, batch: StepBatch, rows: list[int]) -> torch.Tensor:
        output = self._module(
            input_ids=batch.ids[None],
            position_ids=batch.positions[None],
            # The slots are the cache; transformers' own would be built and thrown away.
            use_cache=False,
            logits_to_keep=torch.tensor(rows, dtype=torch.int64),
            # transformers hands keyword arguments it does not know down to the attention function.
            step_batch=batch,
        )
        return output.logits[0]


class FusedForward:
    """Qwen3 and Llama in float32 without the modules' overhead, on the modules' own weights.

    Projections that read the same input become one matrix, stored input first, which multiplies a few rows a
    quarter faster. The parameters are made views of it, so that an in-place update of a parameter updates the
    matrix. The last layer computes only what is asked for.
    """

    def __init__(self, module: Any, capacity: int) -> None:
        self._module = module
        config = module.config
        self._normalised = _NORMALISED[type(module).__name__]
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._size, self._eps = config.head_dim, config.rms_norm_eps
        self._fused = [_fuse_layer(layer) for layer in module.model.layers]
        positions = torch.arange(capacity)[None]
        # The model's own module is asked, once for all positions, so that its kind of scaling is included.
        cos, sin = module.model.rotary_emb(torch.zeros(1, dtype=torch.float32), positions)
        self._cos = cos[0, :, None].contiguous()
        self._signed_sin = sin[0, :, None].clone()  # [C, 1, D]; the first half meets -x of the second
        self._signed_sin[..., : self._size // 2].neg_()

    def __call__(self, batch: StepBatch, rows: list[int]) -> torch.Tensor:
        model = self._module.model
        hidden = model.embed_tokens(batch.ids)
        cos, sin = self._cos[batch.positions], self._signed_sin[batch.positions]
        segments, kept, asked = narrow(batch, rows)
        last = len(model.layers) - 1
        for index, layer in enumerate(model.layers):
            query, key, value = self._project(layer, index, hidden, cos, sin)
            batch.cache.store(index, batch.places, key, value)
            now = batch.prefills
            # Keys and values of all rows are stored above. Beyond them the last layer matters only for the
            # rows whose logits are asked for, one of a piece of a prompt.
            if index == last and len(kept) < len(batch.ids):
                hidden, query, now = hidden[kept], query[kept], segments
            attended = attend(query, index, batch, now, layer.self_attn.scaling)
            hidden = torch.addmm(hidden, attended.flatten(1), self._fused[index].output)
            hidden = self._feed_forward(layer, index, hidden)
        if len(kept) == len(batch.ids):
            asked = torch.tensor(rows, dtype=torch.int64)
        return self._module.lm_head(self._norm(hidden[asked], model.norm.weight))

    def _project(
        self, layer: Any, index: int, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries [T, H, D] and keys [T, K, D], of Qwen3 normalised before, and values [T, K, D]."""
        heads, half = self._heads, self._size // 2
        joined = self._norm(hidden, layer.input_layernorm.weight) @ self._fused[index].query_key_value
        joined = joined.view(len(hidden), -1, self._size)
        turned = heads + self._key_heads
        both = joined[:, :turned]
        if self._normalised:
            attention = layer.self_attn
            # Joined in every step and not once: an update changes the norms' weights in place.
            scales = torch.cat(
                (
                    attention.q_norm.weight.expand(heads, -1),
                    attention.k_norm.weight.expand(self._key_heads, -1),
                )
            )
            both = self._norm(both, scales)
        swapped = torch.cat((both[..., half:], both[..., :half]), -1)
        both = torch.addcmul(both * cos, swapped, sin)
        return both[:, :heads], both[:, heads:], joined[:, turned:]

    def _feed_forward(self, layer: Any, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` plus the layer's feed-forward block."""
        fused = self._fused[index]
        joined = self._norm(hidden, layer.post_attention_layernorm.weight) @ fused.gate_up
        gate, up = joined.chunk(2, -1)
        return torch.addmm(hidden, silu(gate).mul_(up), fused.down)

    def _norm(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Root-mean-square normalisation over the last dimension (Zhang and Sennrich 2019, eq. 4)."""
        scale = values.square().mean(-1, keepdim=True).add_(self._eps).rsqrt_()
        return (values * scale).mul_(weight)


def fused_forward_applies(module: Any) -> bool:
    """Whether `FusedForward` computes this model; everything else takes `TransformersForward`."""
    config = module.config
    return (
        type(module).__name__ in _NORMALISED
        and config.hidden_act == "silu"
        and "sliding_attention" not in (getattr(config, "layer_types", None) or ())
        and config.rope_parameters["rope_type"] in _FIXED_ROTATIONS
        # The fused matrices have no place for a bias.
        and not any(name.endswith(".bias") for name, _ in module.named_parameters())
        and next(module.parameters()).dtype == torch.float32
    )


class _Fused(NamedTuple):
    """The matrices of one layer, each [inputs, outputs]."""

    query_key_value: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def _fuse_layer(layer: Any) -> _Fused:
    attention, mlp = layer.self_attn, layer.mlp
    return _Fused(
        _fuse(attention.q_proj, attention.k_proj, attention.v_proj),
        _fuse(attention.o_proj),
        _fuse(mlp.gate_proj, mlp.up_proj),
        _fuse(mlp.down_proj),
    )


@torch.no_grad()
def _fuse(*projections: torch.nn.Linear) -> torch.Tensor:
    """One matrix [inputs, sum of outputs]; the weights of `projections` become views of it."""
    joined = torch.cat([one.weight for one in projections]).t().contiguous()
    begin = 0
    for one in projections:
        end = begin + one.out_features
        # `.data` keeps the parameter itself, and with it its name and its place in the module.
        one.weight.data = joined[:, begin:end].t()
        begin = end
    return joined
