"""An attention back-end for vLLM that reads what requests of a step begin with once for all of them.

Attempts at one problem share the blocks of its prompt through the prefix cache, and vLLM reads them for each
of them in every step. Here one call reads a group's shared blocks with the queries of all its requests,
another what each has by itself, and both are merged by their log-sum-exp, as a softmax over two parts can be
(https://arxiv.org/abs/2501.01005, section 2.2). Steps with prompts in them, layers with windows or sinks, and
steps of few requests go vLLM's way. vLLM's plug-in registers it as `CUSTOM`; it is imported in processes of
vLLM alone.

The first layer of a step finds the groups, on the device. Under a CUDA graph this is recorded with the rest,
so that each replay finds the groups of its own step, and the host does nothing for it.
"""

import inspect
import logging
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.ops.merge_attn_states import merge_attn_states
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from pipelinerl.engines.vllm.prompt_groups import groups_of

# vLLM writes out only what its own loggers say.
log = logging.getLogger(f"vllm.{__name__}")
TAKEN = {
    FlashAttentionMetadataBuilder.build: ("common_prefix_len", "common_attn_metadata", "fast_build"),
    FlashAttentionImpl.forward: ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
    merge_attn_states: ("output", "prefix_output", "prefix_lse", "suffix_output", "suffix_lse"),
}
"""First parameters, behind `self`, of what is called or replaced."""
FEWEST_REQUESTS = 8
"""In a step; fewer are no work for a card either way."""


class SharedPromptBuilder(FlashAttentionMetadataBuilder):
    """Says in vLLM's metadata, as `grouped`, whether a step's groups are to be found; `groups` are those."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def use_cascade_attention(self, *args: Any, **named: Any) -> bool:
        """vLLM up to 0.32 asks; one prefix of all requests is the case of a single group."""
        return False

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> FlashAttentionMetadata:
        made = super().build(common_prefix_len, common_attn_metadata, fast_build)
        made.grouped, made.groups = self._decodes(made), None
        return made

    def update_block_table(self, metadata: Any, blk_table: Any, slot_mapping: Any) -> Any:
        """For another group of layers, whose blocks are others."""
        made = super().update_block_table(metadata, blk_table, slot_mapping)
        made.grouped, made.groups = metadata.grouped, None
        return made

    def _decodes(self, made: FlashAttentionMetadata) -> bool:
        """Whether it is a step of one token for each of many requests. A graph is captured for either answer,
        so this depends on shapes alone."""
        requests = made.seq_lens.shape[0]
        plain = made.causal is True and made.max_query_len == 1 and made.num_actual_tokens == requests
        return plain and requests >= FEWEST_REQUESTS and self.dcp_world_size == 1


class SharedPromptImpl(FlashAttentionImpl):
    """One layer."""

    def _may_share(self) -> bool:
        return (
            self.attn_type == AttentionType.DECODER
            and self.sliding_window == (-1, -1)
            and self.alibi_slopes is None
            and self.sinks is None
            and self.vllm_flash_attn_version in (2, 3)
        )

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As FlashAttentionImpl: query [T, H, D], cache [blocks, H_kv, size, 2 D], into output [T, H, D]."""
        share = output_scale is None and self._may_share()
        groups = groups_of(attn_metadata, kv_cache) if share else None
        if groups is None:
            scales = output_scale, output_block_scale
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *scales)
        count = attn_metadata.num_actual_tokens
        keys, values = (
            canonicalize_singleton_dim_strides(part)
            for part in kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        )
        if is_quantized_kv_cache(self.kv_cache_dtype):
            keys, values = (part.view(current_platform.fp8_dtype()) for part in (keys, values))
        scales = (count, self.num_kv_heads)
        same: dict[str, Any] = {
            "k": keys,
            "v": values,
            "max_seqlen_k": attn_metadata.max_seq_len,
            "softmax_scale": self.scale,
            "window_size": [-1, -1],
            "softcap": self.logits_soft_cap,
            # A bound under CUDA graphs, as for vLLM's own call; 0: as the kernel finds best.
            "num_splits": attn_metadata.max_num_splits,
            "return_softmax_lse": True,
            "fa_version": self.vllm_flash_attn_version,
            "q_descale": layer._q_scale.expand(scales) if self.supports_quant_query_input else None,
            "k_descale": layer._k_scale.expand(scales),
            "v_descale": layer._v_scale.expand(scales),
        }
        query = query[:count]
        shared, shared_lse = flash_attn_varlen_func(
            q=query[groups.order],
            cu_seqlens_q=groups.starts,
            seqused_k=groups.shared,
            max_seqlen_q=count,
            block_table=groups.blocks,
            causal=False,
            **same,
        )
        own, own_lse = flash_attn_varlen_func(
            q=query,
            cu_seqlens_q=attn_metadata.query_start_loc,
            seqused_k=groups.own,
            max_seqlen_q=1,
            block_table=groups.own_blocks,
            causal=True,
            **same,
        )
        place = groups.place
        # A request that shares nothing has read no key there: its part counts nothing, whatever it holds.
        parts = shared[place], shared_lse[:, place].contiguous()
        merge_attn_states(output[:count], *parts, own, own_lse)
        return output


class SharedPromptBackend(FlashAttentionBackend):
    """FlashAttention that reads shared prompts once."""

    @staticmethod
    def get_impl_cls() -> type[FlashAttentionImpl]:
        return SharedPromptImpl

    @staticmethod
    def get_builder_cls() -> type[FlashAttentionMetadataBuilder]:
        return SharedPromptBuilder


def fitting(taken: dict[Any, tuple[str, ...]] = TAKEN) -> type[FlashAttentionBackend]:
    """This back-end, or vLLM's where functions of its release take other parameters."""
    for function, expected in taken.items():
        found = tuple(name for name in inspect.signature(function).parameters if name != "self")
        if found[: len(expected)] != expected:
            log.warning("each request reads its prompt: %s takes %s", function.__qualname__, ", ".join(found))
            return FlashAttentionBackend
    return SharedPromptBackend


Backend = fitting()
