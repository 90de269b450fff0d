"""Do the small models of the text domains learn? Several seeds each, on a CPU.

    python -m benchmarks.text_domains [--domains counting ifeval fn_calling tir logic reasoning_gym]
                                      [--seeds 0 1 2] [--limit 1800.0] [--work results/text_domains]
                                      [--out FILE] [key=value ...]

Of each domain and seed one run of `+domain=NAME hardware=cpu` from the bundled model (`reasoning_gym` has a
preset for it), evaluated before, while and after it trains on problems that training never gives. Success
before and after is paired by problem, with 95 % bootstrap intervals over problems, each with its mean over
the seeds. Beside it stands how the bundled model does with its most likely answers: a model that only became
surer of what it said most often would end there.

Each run's row is written to `--work` at its end; those with a row there are not run again. One that `--limit`
seconds ended is in no table and begins anew with the same command. The table goes to `--out`
(`results/text_domains.json` beside this file), the figure beside it.
"""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import _learning_figure
from benchmarks._figures import RESULTS, Figure, at_least, command_line, report, write_json
from benchmarks._runs import paired_by_problem
from benchmarks.gpu import runs
from benchmarks.gpu.runs import LimitedRun
from benchmarks.pretrained import reached, table_of, test_problems
from domains.reasoning_gym.families import entry
from pipelinerl.observe.history import Evaluation, read_evaluations
from pipelinerl.observe.intervals import known, wilson

Row = dict[str, Any]
GAIN_GOAL = 0.05
"""Lower end of the pooled difference."""
PRESETS: Mapping[str, Sequence[str]] = {"reasoning_gym": ("+preset=reasoning_gym_small",)}
"""Of domains whose CPU profile is for a pretrained model."""


def group_of(problem: Mapping[str, Any]) -> str:
    """What a domain's problems are told apart by: how many instructions, or what their data set names."""
    if "num_constraints" in problem:
        return f"{problem['num_constraints']} instructions"
    return str(problem["dataset"]).rpartition("/")[2]


def run(options: Any, domain: str, seed: int) -> None:
    """One run; its row goes to `--work`."""
    name = f"{domain}_{seed}"
    with _ended(options, name, domain, [f"seed={seed}"]) as (out, one, status):
        found = reached(f"{domain}, seed {seed}", out, one.seconds, status, group_of)
        passes = read_evaluations(out)
        row = {"domain": domain, "seed": seed, **found, "means": [means_of(passes[end]) for end in (0, -1)]}
        runs.keep_row(options.work / f"{name}.json", row, status)


def means_of(one: Evaluation) -> dict[str, float]:
    """Of each metric over the problems that have it."""
    return {name: float(known(values).mean()) for name, values in one.values.items() if len(known(values))}


def run_greedy(options: Any, domain: str) -> None:
    """The evaluation of the bundled model that takes the most likely answers; it goes to `--work`."""
    name = greedy_name(domain)
    given = ["test_llm.parameters.temperature=0", "finetune.max_train_steps=1"]
    with _ended(options, name, domain, given) as (out, _, status):
        success = [value or 0.0 for value in read_evaluations(out)[0].values["success"]]
        row = {"domain": domain, "success": success, "constant": best_constant(test_problems(out))}
        runs.keep_row(options.work / f"{name}.json", row, status)


def greedy_name(domain: str) -> str:
    return f"{domain}_greedy"


@contextmanager
def _ended(
    options: Any, name: str, domain: str, overrides: Sequence[str]
) -> Iterator[tuple[Path, LimitedRun, int]]:
    """A run's folder, process and exit status; what fails inside is said, and costs nothing beside it."""
    out = runs.fresh(options.work / name)
    profile = [f"+domain={domain}", "hardware=cpu", *PRESETS.get(domain, ())]
    given = [*profile, "observe.rollout_page=false", *overrides]
    command = runs.launcher(out, [*given, *options.overrides])
    one = LimitedRun(command, options.work / f"{name}.log", {**os.environ, "HF_HUB_OFFLINE": "1"})
    status = one.end(options.limit)
    with runs.survived(name):
        yield out, one, status
    if one.terminated:
        raise runs.Terminated


def answer_of(problem: Mapping[str, Any]) -> Any:
    """What always the same answer would have to be: a number, or of a puzzle an order or who tells the truth.

    None for problems that have many right answers.
    """
    context = problem.get("reward_context", problem)
    if "options" not in context:
        return problem.get("count", problem.get("answer"))
    found = entry(*(context[key] for key in ("task", "options", "seed", "index")))
    if context is problem:
        return found["answer"]
    metadata = found["metadata"]
    if "solution" in metadata:
        return tuple(metadata["solution"])
    return tuple(metadata["transformed_words"].index(word) for word in metadata["sorted_words"])


def best_constant(problems: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each group the share of its most frequent answer; empty where nothing is always answered so."""
    answers = defaultdict[str, Counter[Any]](Counter)
    for problem in problems:
        if (answer := answer_of(problem)) is not None:
            answers[group_of(problem)][answer] += 1
    return {group: max(one.values()) / one.total() for group, one in answers.items()}


def over_greedy(rows: Sequence[Row], greedy: Row) -> dict[str, Any]:
    """Of a domain: what the most likely answers and always the same one reach; the runs above the former."""
    likely = greedy["success"]
    *_, above = paired_by_problem([likely] * len(rows), [row["after"] for row in rows])
    return {
        "success": wilson(sum(likely), len(likely))._asdict(),
        "difference": above._asdict(),
        "constant": greedy["constant"],
    }


def figures_of(rows: Sequence[Row], tables: Mapping[str, Any], greedy: Mapping[str, Any]) -> list[Figure]:
    """Of each domain the pooled numbers, those above its most likely answers, and what each seed reached."""
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
    for domain, one in greedy.items():
        figures += [
            Figure(f"{domain}: success before, most likely answers", one["success"]["mean"], ""),
            Figure(f"{domain}: after, above those", one["difference"]["mean"], ""),
            Figure(f"{domain}: after, above those, lower end", one["difference"]["low"], ""),
            Figure(f"{domain}: after, above those, upper end", one["difference"]["high"], ""),
        ]
        figures += [
            Figure(f"{domain} {group}: always the same answer", share, "")
            for group, share in one["constant"].items()
        ]
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
    """Write the figure: a panel per domain."""
    panels: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in rows:
        points = [(one["texts"], one["success"]) for one in row["curve"]]
        panels.setdefault(row["domain"], {})[row["seed"]] = points
    _learning_figure.draw(panels, path)


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    runs.leave_in_order()
    options.work = options.work.absolute()
    wanted = [(domain, seed) for domain in options.domains for seed in options.seeds]
    for domain in options.domains:
        if not (options.work / f"{greedy_name(domain)}.json").is_file():
            run_greedy(options, domain)
    for domain, seed in wanted:
        if not (options.work / f"{domain}_{seed}.json").is_file():
            run(options, domain, seed)
    rows = _kept(options.work, [f"{domain}_{seed}" for domain, seed in wanted])
    if not rows:
        return 1
    of_domain = {
        domain: [row for row in rows if row["domain"] == domain]
        for domain in dict.fromkeys(row["domain"] for row in rows)
    }
    tables = {domain: table_of(found) for domain, found in of_domain.items()}
    likely = _kept(options.work, list(map(greedy_name, of_domain)))
    greedy = {one["domain"]: over_greedy(of_domain[one["domain"]], one) for one in likely}
    out = options.out or RESULTS / "text_domains.json"
    settings = {"seeds": options.seeds, "domains": list(tables)}
    missed = report("text_domains", figures_of(rows, tables, greedy), settings, out)
    kept = {**json.loads(out.read_text()), "overrides": options.overrides, "table": tables, "greedy": greedy}
    write_json(out, {**kept, "rows": rows, "greedy_rows": likely})
    draw(rows, out.with_suffix(".png"))
    return 1 if missed or len(rows) < len(wanted) or len(greedy) < len(of_domain) else 0


def _kept(work: Path, names: Sequence[str]) -> list[Row]:
    paths = [work / f"{name}.json" for name in names]
    return [json.loads(path.read_text()) for path in paths if path.is_file()]


if __name__ == "__main__":
    sys.exit(main())
