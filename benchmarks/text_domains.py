"""Do the small models of `counting`, `ifeval` and `fn_calling` learn? Several seeds each, on a CPU.

    python -m benchmarks.text_domains [--domains counting ifeval fn_calling] [--seeds 0 1 2] [--limit 1800.0]
                                      [--work results/text_domains] [--out FILE] [key=value ...]

Of each domain and seed one run of `+domain=NAME hardware=cpu` from the bundled model, evaluated before, while
and after it trains on problems that training never gives. Success before and after is paired by problem and
pooled over the seeds, with 95 % bootstrap intervals. Each run's row is written to `--work` at its end; those
with a row there are not run again. A run that reaches `--limit` seconds is ended and counts up to its last
evaluation. The table goes to `--out` (`results/text_domains.json` beside this file), the figure beside it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks._figures import RESULTS, Figure, at_least, command_line, report, write_json
from benchmarks.gpu import runs
from benchmarks.gpu.runs import LimitedRun
from benchmarks.pretrained import reached, table_of
from pipelinerl.observe.plots import COLOURS, DASHES, MARKERS

Row = dict[str, Any]
GAIN_GOAL = 0.05
"""Lower end of the pooled difference."""


def group_of(problem: Mapping[str, Any]) -> str:
    """What a domain's problems are told apart by: how many instructions, or what their data set names."""
    if "num_constraints" in problem:
        return f"{problem['num_constraints']} instructions"
    return str(problem["dataset"]).rpartition("/")[2]


def run(options: Any, domain: str, seed: int) -> None:
    """One run; its row goes to `--work`."""
    out = runs.fresh(options.work / f"{domain}_{seed}")
    given = [f"+domain={domain}", "hardware=cpu", f"seed={seed}", "observe.rollout_page=false"]
    command = runs.launcher(out, [*given, *options.overrides])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    one = LimitedRun(command, options.work / f"{domain}_{seed}.log", environment)
    status = one.end(options.limit)
    with runs.survived(f"{domain}, seed {seed}"):
        found = reached(f"{domain}, seed {seed}", out, one.seconds, status, group_of)
        write_json(options.work / f"{domain}_{seed}.json", {"domain": domain, "seed": seed, **found})
    if one.terminated:
        raise runs.Terminated


def figures_of(rows: Sequence[Row], tables: Mapping[str, Any]) -> list[Figure]:
    """Of each domain the pooled numbers, and what each seed reached."""
    figures = []
    for domain, table in tables.items():
        for name, one in table.items():
            said = domain if name == "all" else f"{domain} {name}"
            figures += [
                Figure(f"{said}: success {when}", one[when]["mean"], "") for when in ("before", "after")
            ]
            figures.append(Figure(f"{said}: difference", one["difference"]["mean"], ""))
            goal = GAIN_GOAL if name == "all" else None
            figures.append(at_least(f"{said}: difference, lower end", one["difference"]["low"], "", goal))
            figures.append(Figure(f"{said}: difference, upper end", one["difference"]["high"], ""))
    for row in rows:
        said = f"{row['domain']}, seed {row['seed']}"
        figures += [
            Figure(f"{said}: success before", row["curve"][0]["success"], ""),
            Figure(f"{said}: success after", row["curve"][-1]["success"], ""),
            Figure(f"{said}: optimizer steps", row["steps"], "steps"),
            Figure(f"{said}: training", row["training_s"] / 60, "min"),
        ]
    return figures


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the figure: a panel per domain, a line per seed."""
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    figure, panels = plt.subplots(
        1, len(domains), figsize=(4 * len(domains), 3.4), squeeze=False, sharey=True
    )
    for axes, domain in zip(panels[0], domains, strict=True):
        for number, row in enumerate(row for row in rows if row["domain"] == domain):
            look = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKERS[number]}
            points = [(one["texts"] / 1000, 100 * one["success"]) for one in row["curve"]]
            axes.plot(
                *zip(*points, strict=True), **look, markersize=4, linewidth=1.4, label=f"seed {row['seed']}"
            )
        axes.set(title=domain, xlabel="thousand texts trained", ylim=(0, 100))
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("percent of held-out problems")
    panels[0][0].legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    runs.leave_in_order()
    options.work = options.work.absolute()
    wanted = [(domain, seed) for domain in options.domains for seed in options.seeds]
    for domain, seed in wanted:
        if not (options.work / f"{domain}_{seed}.json").is_file():
            run(options, domain, seed)
    found = [options.work / f"{domain}_{seed}.json" for domain, seed in wanted]
    rows = [json.loads(path.read_text()) for path in found if path.is_file()]
    if not rows:
        return 1
    tables = {
        domain: table_of([row for row in rows if row["domain"] == domain])
        for domain in dict.fromkeys(row["domain"] for row in rows)
    }
    out = options.out or RESULTS / "text_domains.json"
    settings = {"seeds": options.seeds, "domains": list(tables)}
    missed = report("text_domains", figures_of(rows, tables), settings, out)
    kept = {**json.loads(out.read_text()), "overrides": options.overrides, "table": tables, "rows": rows}
    write_json(out, kept)
    draw(rows, out.with_suffix(".png"))
    return 1 if missed or len(rows) < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
