"""Kinds of decoder layers that can be trained on packed rows; for the trainer and the launcher's checks.

Every other kind would pass something on from token to token, and so from sample to sample of a row.
"""

from collections.abc import Iterable

TRAINED = ("full_attention", "sliding_attention")
"""As `layer_types` of a configuration names them. A sliding window is cut inside of each sample."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of configurations for the experts of a layer."""


def unknown_kinds(kinds: Iterable[str], with_states: bool = False) -> list[str]:
    """Those of `kinds` that cannot be trained, each once and in order of their names.

    `with_states`: the linear attention of this model is a gated DeltaNet (`delta_net.py`).
    """
    return sorted({*map(str, kinds)} - {*TRAINED, *(["linear_attention"] if with_states else [])})


def refusal(unknown: Iterable[str]) -> str:
    """What is said of them behind the model's name."""
    known = " and ".join(TRAINED)
    return f"has layers of {', '.join(unknown)}; only {known} can be trained on packed rows"
