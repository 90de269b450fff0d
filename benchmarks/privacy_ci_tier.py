"""The published table in miniature with a policy of 54 logits: proof of the plumbing, not of language models.

    python -m benchmarks.privacy_ci_tier [--seeds 0 1 2] [--size small] [--steps 24] [--out FILE]

For each seed a world, and in it four policies: base, outcome reward, situational reward, situational reward
with the privacy penalty; success and leakage on held-out companies. Seeds that the result file holds with the
same recipe are not repeated. Ends with 1 if a gate does not hold.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks._figures import RESULTS, command_line, machine
from benchmarks.privacy_ci.experiment import POLICIES, Gate, gates, pooled, run_seed
from benchmarks.privacy_ci.training import Recipe
from pipelinerl.observe.intervals import bootstrap

LABEL = "a policy of {logits} logits over query templates: proves the plumbing, nothing about language models"


def table(seeds: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table, without gates."""
    first = seeds[0]
    lines = [
        f"CI tier: {LABEL.format(logits=first['logits'])}",
        f"recipe: {', '.join(f'{name} {value}' for name, value in first['recipe'].items())}",
        *(f"seed {s['seed']}: world {s['fingerprint'][:16]}, {s['cpu_s']:g} CPU s" for s in seeds),
        "",
        f"{'policy':<13}{'samples':>9}  {'success':<24}{'leakage':<24}samples to outcome's success",
    ]
    for name in POLICIES:
        samples = [seed["trained"][name]["samples"] for seed in seeds if name in seed["trained"]]
        needed = [str(seed["samples_to_target"].get(name, "-")) for seed in seeds]
        row = f"{name:<13}{sum(samples) // max(1, len(samples)):>9}  "
        for metric in ("success", "leakage"):
            found = bootstrap(pooled(seeds, name, metric))
            row += f"{f'{found.mean:.1%} [{found.low:.1%}, {found.high:.1%}]':<24}"
        lines.append(row + ("" if name == "base" else ", ".join(needed)))
    return lines


def run(seeds: Sequence[int], recipe: Recipe, out: Path | None) -> list[Gate]:
    """Run what is missing, print the table and the gates, keep the JSON after each seed."""
    stored = json.loads(out.read_text())["seeds"] if out and out.is_file() else []
    known = {seed["seed"]: seed for seed in stored if seed["recipe"] == asdict(recipe)}
    for seed in seeds:
        if seed not in known:
            with TemporaryDirectory() as folder:
                known[seed] = run_seed(seed, recipe, Path(folder), lambda line: print(line, file=sys.stderr))
        results = [known[s] for s in seeds if s in known]
        found = gates(results)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            record: dict[str, Any] = {"tier": LABEL.format(logits=results[0]["logits"]), "seeds": results}
            record |= {"gates": [asdict(gate) for gate in found], "machine": machine()}
            out.write_text(json.dumps(record) + "\n")
    print("\n".join(table(results)) + "\n")
    for gate in found:
        print(f"{'holds' if gate.holds else 'FAILS':<6} {gate.name}: {gate.found}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    found = run(
        options.seeds,
        Recipe(size=options.size, steps=options.steps),
        options.out or RESULTS / "privacy_ci_tier.json",
    )
    return int(not all(gate.holds for gate in found))


if __name__ == "__main__":
    sys.exit(main())
