"""Generate a world: `python -m domains.privacy_hopqa.world --size small --seed 0 --out DIR`."""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipelinerl.base.errors import CommandParser, leave, printable

from .config import MANIFEST, SIZES, WorldConfig, WorldError, world_config
from .write import generate


def _arguments() -> argparse.Namespace:
    parser = CommandParser(prog="python -m domains.privacy_hopqa.world", description=__doc__)
    parser.add_argument("--size", default="small", help=f"one of {', '.join(SIZES)}, custom")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    custom = parser.add_argument_group("custom", "counts of a custom world; left out means as in small")
    for field in fields(WorldConfig):
        if field.type is int and field.name != "seed":
            custom.add_argument(f"--{field.name.replace('_', '-')}", type=int, metavar="N")
    parser.add_argument("--patterns", type=_weights, help="weights of hop patterns, as in LW=4,WL=1")
    parser.add_argument("--long-fraction", type=float, help="share of documents above 12,000 characters")
    return parser.parse_args()


def _weights(text: str) -> dict[str, int]:
    """`LW=4,WL=1` as a mapping; argparse turns the ValueError of anything else into its own message."""
    pairs = (part.split("=") for part in text.split(","))
    return {pattern.strip(): int(weight) for pattern, weight in pairs}


def main() -> int:
    """Write the world and print what it holds; 1 and one line on standard error if it cannot be made."""
    options = vars(_arguments())
    out = options.pop("out")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    try:
        directory = generate(world_config(**given), out)
    except (WorldError, OSError) as error:
        print(printable(f"world: {error}"), file=sys.stderr)
        return 1
    manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    summary = {key: manifest[key] for key in ("fingerprint", "statistics", "temptation")}
    print(json.dumps(summary, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    leave("world", main)
