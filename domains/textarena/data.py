"""Deals of a mixture of games: the loader of `+domain=textarena`."""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from domains.blocks import options_of

DOMAIN = "textarena"
PARTS = ("train", "test")
Games = Mapping[str, Mapping[str, Any] | None]
named = partial(options_of, "games", "game", "{TicTacToe-v0: {}}")


def load_problems(
    dataset_names: Sequence[str], games: Games, count: int = 200, test_count: int = 32
) -> list[dict[str, Any]]:
    """Problems `{id, game, options, seed, dataset, domain}`; `options` is JSON text.

    A name begins with `train` or `test` and decides the seeds: `count` deals of each game, or `test_count`.
    A game whose options are null is left out. Raises ValueError in one line.
    """
    chosen = named(games)
    if count < 1 or test_count < 1:
        raise ValueError(f"count={count}, test_count={test_count}: counts begin at 1")
    problems = []
    for name in dataset_names:
        if not str(name).startswith(PARTS):
            raise ValueError(f"dataset {name!r}: a name begins with {' or '.join(PARTS)}")
        for game, options in chosen.items():
            for index in range(count if str(name).startswith(PARTS[0]) else test_count):
                seed = int.from_bytes(sha256(f"{name}/{game}/{index}".encode()).digest()[:4])
                deal = {"id": f"{name}/{game}-{index}", "game": game, "options": options, "seed": seed}
                problems.append({**deal, "dataset": f"{name}/{game}", "domain": DOMAIN})
    return problems
