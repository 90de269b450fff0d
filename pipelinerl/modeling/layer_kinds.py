"""Kinds of decoder layers that can be trained on packed rows; for the trainer and the launcher's checks.

Every other kind would pass something on from token to token, and so from sample to sample of a row.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

TRAINED = ("full_attention", "sliding_attention")
"""As `layer_types` of a configuration names them. A sliding window is cut inside of each sample."""
_REFUSED = {
    "attention with a result that is read in a layout of its own": ("afmoe", "jetmoe"),
    "attention with masks that its layers compute for each token": ("doge",),
    "attention with sinks beside values that are narrower than keys": ("mimo_v2_flash",),
    "attention that cannot be replaced": (
        *("big_bird", "bloom", "codegen", "cpmant", "falcon", "gpt_neo", "gpt_neox_japanese", "gptj"),
        *("megatron-bert", "moshi", "mpt", "mvp", "openai-gpt", "prophetnet", "reformer", "rembert"),
        *("roformer", "trocr", "xglm", "xlm", "xlnet"),
    ),
    "attention within chunks, or to tokens that an index chooses": (
        *("axk2", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "hy_v4", "llama4_text"),
    ),
    "positions that are counted over a whole row": (
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "pegasus"),
        *("modernbert-decoder", "plbart"),
    ),
    "layers that pass a state from token to token": (
        *("bamba", "falcon_h1", "falcon_mamba", "inkling_text", "jamba", "kimi_linear", "mamba", "mamba2"),
        *("minimax", "nemotron_h", "olmo_hybrid", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"),
        "zaya",
    ),
    "layers that run several times for a token": ("hrm_text",),
    "an output head of several layers": (
        *("bert", "camembert", "data2vec-text", "electra", "ernie", "roberta", "roberta-prelayernorm"),
        *("roc_bert", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    ),
}
REFUSED_TYPES = {kind: reason for reason, kinds in _REFUSED.items() for kind in kinds}
"""What models of a type have that rows of samples cannot be given, whatever the rest of `config.json` says.

Many configurations, above all older ones, do not name the kinds of their layers.
"""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of configurations for the experts of a layer."""
ACTIVE = ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk")
"""Names of configurations for the experts that one token goes to."""
OF_LAYER = re.compile(r"(?:(?:model|language_model|transformer)\.)*(?:layers|h)\.(\d+)\.(.+)")
"""A tensor of a decoder's layer: which layer, and which tensor of it."""


def stated(config: Any, names: Iterable[str]) -> int:
    """What a configuration says under the first of `names` that it has; 0 where it has none."""
    return next((int(value) for name in names if (value := getattr(config, name, None))), 0)


def unknown_kinds(kinds: Iterable[str], with_states: bool = False) -> list[str]:
    """Those of `kinds` that cannot be trained, each once and in order of their names.

    `with_states`: the linear attention of this model is a gated DeltaNet (`delta_net.py`).
    """
    return sorted({*map(str, kinds)} - {*TRAINED, *(["linear_attention"] if with_states else [])})


def refusal(unknown: Iterable[str]) -> str:
    """What is said of them behind the model's name."""
    known = " and ".join(TRAINED)
    return f"has layers of {', '.join(unknown)}; only {known} can be trained on packed rows"


def type_refusal(model_type: str) -> str:
    """What is said of a model of this type behind its name; empty where it may be trained."""
    found = REFUSED_TYPES.get(model_type)
    return f"has {found}; it cannot be trained on packed rows" if found else ""


def other_depth(names: Iterable[str], count: int) -> int | None:
    """How many layers the tensors of these names are of, where they are of a decoder of other than `count`.

    A layer behind the last one is the decoder's where it has the tensors of an earlier one. Predictors of
    further tokens, which stand there too, have others, and are none.
    """
    layers = defaultdict[int, set[str]](set)
    for name in names:
        if found := OF_LAYER.fullmatch(name):
            layers[int(found[1])].add(found[2])
    known = [tensors for index, tensors in layers.items() if index < count]
    surplus = [index for index, tensors in layers.items() if index >= count and tensors in known]
    if surplus:
        return max(surplus) + 1
    last = max(layers, default=count)
    return last + 1 if last + 1 < count else None


def cut_short(found: int, count: int, key: str = "num_hidden_layers") -> str:
    """What is said of such a folder behind its name."""
    return (
        f"its weights are of {found} layers, config.json says {key}={count}; set {found} there, "
        f"or save a model of {count} layers"
    )
