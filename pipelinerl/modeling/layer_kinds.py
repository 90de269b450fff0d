"""Kinds of decoder layers that can be trained on packed rows; for the trainer and the launcher's checks.

Every other kind would pass something on from token to token, and so from sample to sample of a row.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

TRAINED = ("full_attention", "sliding_attention")
"""As `layer_types` of a configuration names them. A sliding window is cut inside of each sample."""
OTHER_ATTENTION = {
    "afmoe": "a result that is read in a layout of its own",
    "doge": "masks that its layers compute for each token",
    "mimo_v2_flash": "sinks beside values that are narrower than keys",
}
"""By model type, what attention of a known kind has there that rows of samples cannot be given."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of configurations for the experts of a layer."""
_OF_LAYER = re.compile(r"(?:(?:model|language_model|transformer)\.)*(?:layers|h)\.(\d+)\.(.+)")
"""A tensor of a decoder's layer: which layer, and which tensor of it."""


def unknown_kinds(kinds: Iterable[str], with_states: bool = False) -> list[str]:
    """Those of `kinds` that cannot be trained, each once and in order of their names.

    `with_states`: the linear attention of this model is a gated DeltaNet (`delta_net.py`).
    """
    return sorted({*map(str, kinds)} - {*TRAINED, *(["linear_attention"] if with_states else [])})


def refusal(unknown: Iterable[str]) -> str:
    """What is said of them behind the model's name."""
    known = " and ".join(TRAINED)
    return f"has layers of {', '.join(unknown)}; only {known} can be trained on packed rows"


def attention_refusal(model_type: str) -> str:
    """What is said of its attention behind the model's name; empty where it can be trained."""
    found = OTHER_ATTENTION.get(model_type)
    return f"has attention with {found}; it cannot be trained on packed rows" if found else ""


def deeper(names: Iterable[str], count: int) -> int | None:
    """How many layers the tensors of these names are of, where they are of a decoder of more than `count`.

    A layer behind the last one is the decoder's where it has the tensors of an earlier one. Predictors of
    further tokens, which stand there too, have others, and are none.
    """
    layers = defaultdict[int, set[str]](set)
    for name in names:
        if found := _OF_LAYER.fullmatch(name):
            layers[int(found[1])].add(found[2])
    known = [tensors for index, tensors in layers.items() if index < count]
    surplus = [index for index, tensors in layers.items() if index >= count and tensors in known]
    return max(surplus) + 1 if surplus else None


def cut_short(found: int, count: int) -> str:
    """What is said of such a folder behind its name."""
    return (
        f"its weights are of {found} layers, config.json says num_hidden_layers={count}; set {found} there, "
        f"or save a model of {count} layers"
    )
