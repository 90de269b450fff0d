"""Problems of the language-model game: one tape, one price and one wording each."""

from collections.abc import Sequence
from typing import Any

from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.language.prompts import VARIANTS

DOMAIN = "reputation_hacking"
FIRST_SEED = {"train": 100_000, "heldout": 10_000}
LAST_SEED = {"train": 1_000_000, "heldout": 11_000}


def load_problems(
    dataset_names: Sequence[str],
    *,
    count: int = 1000,
    heldout_count: int = 100,
    c_signal: Sequence[float] = (0.0, 0.5, 0.7, 0.9),
    c_help: float = 0.0,
    variants: Sequence[str] = ("neutral",),
    heldout_variants: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """`count` training problems, `heldout_count` others; prices and wordings take turns.

    Held-out problems have `heldout_variants`, or the wordings of training: `variants=[asked]` and
    `heldout_variants=[neutral]` is inoculation by the prompt.

    Raises ValueError for unknown names, counts beyond the seeds of a set, bad prices and wordings.
    """
    tested = variants if heldout_variants is None else heldout_variants
    for key, given in (("c_signal", c_signal), ("variants", variants), ("heldout_variants", tested)):
        if isinstance(given, str | int | float):
            raise ValueError(f"dataset_loader_params.{key}={given}: give a list, [{given}]")
    if not c_signal or not variants or not tested:
        raise ValueError("dataset_loader_params: give at least one c_signal and one of variants")
    for variant in (*variants, *tested):
        if variant not in VARIANTS:
            raise ValueError(f"variants: {variant!r} is unknown; choose among {', '.join(VARIANTS)}")
    for price in c_signal:
        Params(c_signal=float(price), c_help=float(c_help), l0=0.0)
    problems: list[dict[str, Any]] = []
    for name in dataset_names:
        if name not in FIRST_SEED:
            raise ValueError(f"dataset {name!r}: choose among {', '.join(FIRST_SEED)}")
        wanted, room = count if name == "train" else heldout_count, LAST_SEED[name] - FIRST_SEED[name]
        if not 1 <= wanted <= room:
            raise ValueError(f"{wanted} problems of {name}: choose from 1 to {room}")
        wordings = variants if name == "train" else tested
        cells = [(float(price), variant) for price in c_signal for variant in wordings]
        for index in range(wanted):
            price, variant = cells[index % len(cells)]
            problems.append(
                {
                    "id": f"{name}-{index}",
                    "seed": FIRST_SEED[name] + index,
                    "c_signal": price,
                    "c_help": float(c_help),
                    "variant": variant,
                    "domain": DOMAIN,
                    "dataset": name,
                }
            )
    return problems
