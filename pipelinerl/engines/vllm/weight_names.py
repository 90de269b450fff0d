"""Names of tensors for vLLM, where its model does not have those of transformers'.

transformers keeps all experts of a layer in `experts.gate_up_proj` and `experts.down_proj`, and Qwen's models
in vLLM load these. The types below have other names there. Read in 0.26 and 0.33: `mixtral.py`, `phimoe.py`,
`granitemoe.py`, and `RoutedExperts`, which calls both parts of a layer `w13` and `w2` where single experts
have `w1`, `w2` and `w3`. Granite's own loop knows the names of its checkpoint only. GPT-NeoX's output head is
`embed_out` in `gpt_neox.py`, as in its checkpoints. `benchmarks.served_architectures` gives vLLM these names.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Endings = Mapping[str, str]
_STACKED: Endings = {
    ".mlp.experts.gate_up_proj": ".block_sparse_moe.experts.w13",
    ".mlp.experts.down_proj": ".block_sparse_moe.experts.w2",
}
_GRANITE: Endings = {
    ".block_sparse_moe.experts.gate_up_proj": ".block_sparse_moe.input_linear.weight",
    ".block_sparse_moe.experts.down_proj": ".block_sparse_moe.output_linear.weight",
    ".block_sparse_moe.router.weight": ".block_sparse_moe.router.layer.weight",
}
_TOGETHER: Endings = {
    ".mlp.experts.gate_up_proj": ".mlp.experts.gate_up_proj",
    ".mlp.experts.down_proj": ".mlp.experts.down_proj",
}


_BIAS = "e_score_correction_bias"
"""Chooses experts and gets no gradient. Where it is a buffer of transformers' model it is in no version."""
SINGLE = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "hunyuan_v1_moe")
"""Types whose model in vLLM loads tensors of single experts only: in 0.26 to 0.33 `deepseek_v2.py` and
`glm4_moe_lite.py`, in 0.26 `hunyuan_v1.py`."""
ENDINGS: Mapping[str, Endings] = {
    "mixtral": {**_STACKED, ".mlp.gate.weight": ".block_sparse_moe.gate.weight"},
    "phimoe": {**_STACKED, ".mlp.router.weight": ".block_sparse_moe.gate.weight"},
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
    "minimax_m2": {**_STACKED, ".mlp.gate.weight": ".block_sparse_moe.gate.weight"},
    "ernie4_5_moe": {**_TOGETHER, f".mlp.gate.moe_statics.{_BIAS}": f".mlp.moe_statics.{_BIAS}"},
    "laguna": {
        **_TOGETHER,
        f".mlp.gate.{_BIAS}": f".mlp.experts.{_BIAS}",
        ".mlp.shared_experts.gate_proj.weight": ".mlp.shared_expert.gate_proj.weight",
        ".mlp.shared_experts.up_proj.weight": ".mlp.shared_expert.up_proj.weight",
        ".mlp.shared_experts.down_proj.weight": ".mlp.shared_expert.down_proj.weight",
    },
    "gpt_neox": {"lm_head.weight": "embed_out.weight"},
}
"""By model type: what a name ends with in the trainer, and in a version for vLLM. Shapes stay."""

READ: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "minimax_m2": {"scoring_func": "sigmoid", "use_routing_bias": True},
}
"""By model type: keys of `config.json` by which vLLM chooses a router, and what transformers' model is.

Published models have them, one made from transformers' configuration class has not. `deepseek_v2.py` then
takes softmax for sigmoid, or no bias, and `minimax_m2.py` fails or takes no bias (0.26 to 0.33)."""


def vllm_names(model_type: str, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The tensors of a version under the names that vLLM's model of this type loads; some are views.

    Raises ValueError for experts of a type in the table that have a name it does not know.
    """
    endings = ENDINGS.get(model_type, {})
    for name, tensor in tensors:
        if model_type in SINGLE and name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            yield from _single(name, tensor)
            continue
        old = next((ending for ending in endings if name.endswith(ending)), None)
        if old is None and endings and (".experts." in name or ".router." in name):
            raise ValueError(f"{name}: no name of {model_type}'s experts that vLLM is known to load")
        yield (name if old is None else name.removesuffix(old) + endings[old]), tensor


def _single(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """Views of the experts of a layer, `[experts, 2 * width, hidden]` or `[experts, hidden, width]`."""
    start, _, part = name.rpartition(".")
    for number, expert in enumerate(tensor):
        pieces = expert.chunk(2) if part == "gate_up_proj" else (expert,)
        for piece, own in zip(pieces, ("gate_proj", "up_proj") if len(pieces) == 2 else (part,), strict=True):
            yield f"{start}.{number}.{own}.weight", piece
