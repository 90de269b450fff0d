"""The report of a run: printed, and in `<output_dir>/report/` as a page, report.md, report.json and PNGs."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table

from pipelinerl.base.errors import printable
from pipelinerl.base.files import write_whole
from pipelinerl.domain import ReportFocus, ReportSection
from pipelinerl.observe.balance import Balance
from pipelinerl.observe.comparisons import EXPLANATION, label_rows
from pipelinerl.observe.history import read_metrics
from pipelinerl.observe.intervals import Interval
from pipelinerl.observe.progress import Output
from pipelinerl.observe.rates import RATES
from pipelinerl.observe.report_page import CURVE, Drawn, write_report_page
from pipelinerl.observe.summary import Comparison, Section, Summary, summarise
from pipelinerl.run_state.accounting import Outcome

_PIPE_WIDTH = 140
"""Columns where there is no terminal: a pipe has no width of its own."""


def _interval(value: Interval | None, form: str) -> str:
    return "" if value is None else f"{value.mean:{form}} [{value.low:{form}}, {value.high:{form}}]"


def comparison_rows(summary: Summary, names: Sequence[str], digits: int = 3) -> list[tuple[str, ...]]:
    """The table of evaluations, header first; empty if there was none, one column if there was one."""
    if not summary.evaluations:
        return []
    first, last, form = summary.versions[0], summary.versions[-1], f".{digits}f"
    known = {name: summary.comparisons[name] for name in names if name in summary.comparisons}
    if first == last:
        alone = [(name, _interval(found.after, form), str(found.after.n)) for name, found in known.items()]
        return [("metric", f"at {last:,} samples of this run", "n"), *alone]
    header = ("metric", f"before ({first:,} samples)", f"after ({last:,} samples)", "paired difference", "n")
    rows: list[tuple[str, ...]] = [header]
    for name, found in known.items():
        before, after = _interval(found.before, form), _interval(found.after, form)
        rows.append((name, before, after, _interval(found.difference, f"+{form}"), _counts(found)))
    return rows


def _counts(found: Comparison) -> str:
    """The number of problems; of each column where others failed before than after."""
    intervals = (found.before, found.after, found.difference)
    counts = [str(one.n) for one in intervals if one is not None]
    return counts[0] if len(set(counts)) == 1 else ", ".join(counts)


def rate_rows(summary: Summary) -> list[tuple[str, ...]]:
    known = [(rate.text, summary.rates[rate.name]) for rate in RATES if rate.name in summary.rates]
    shown = [(t, f"{v:,.0f}" if v >= 100 or v == int(v) else f"{v:.3f}") for t, v in known]
    return [("figure", "value"), *shown]


def balance_line(balance: Balance) -> str:
    """Which side limited the run."""
    return f"Over {balance.steps} steps {balance}."


def _print_table(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    """A table without cut cells: where the console is too narrow, intervals go below their values."""
    if len(rows) < 2:
        return
    shown = [[printable(cell) for cell in row] for row in rows]
    narrow = _table_width(shown) > console.width
    if narrow:
        shown = [[row[0], *map(_stacked, row[1:])] for row in shown]
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False)
    for index, column in enumerate(zip(*shown, strict=True)):
        # rich makes the widest columns narrower, and would break words of a column without spaces.
        whole = not narrow or (index == 0 and not any(" " in cell for cell in column[1:]))
        side: JustifyMethod = "left" if index == 0 else "right"
        table.add_column(column[0], justify=side, no_wrap=whole, overflow="fold")
    for row in shown[1:]:
        table.add_row(*row)
    console.print(table)
    console.print()


def _stacked(cell: str) -> str:
    """A value above its interval and its count, which are not padded any more."""
    return re.sub(r" ([\[(])", r"\n\1", re.sub(r"([\[ ]) +", r"\1", cell))


def _table_width(rows: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that a table without edges takes."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + 3 * len(widths) - 1


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    if len(rows) < 2:
        return []
    # A bar in a cell would begin another one, and a header of more cells than its rule makes no table.
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(rows[0])} |", "|" + " --- |" * len(rows[0])]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows[1:]), ""]


def report_sections(summary: Summary, sections: Sequence[ReportSection]) -> list[Section]:
    """The parts of the report in order, those of the domain behind the evaluation; all three show these."""
    lost, counts = "No evaluation was recorded.", summary.counts
    if counts.eval_started:
        lost = f"{counts.eval_started} evaluation rollouts started, and the values of none are there: an "
        lost += "evaluation did not end, or streams/ was removed."
    evaluated = Section(title="Evaluation", text=lost)
    if summary.evaluations:
        rows = comparison_rows(summary, summary.headline)
        title = f"Evaluation on {summary.evaluated_on}, mean [95 % interval]"
        short = comparison_rows(summary, summary.headline, digits=2)
        evaluated = Section(title=title, rows=rows, short=short, text=_without_values(summary))
    limits = "" if summary.balance is None else balance_line(summary.balance)
    if summary.limit is not None:
        limits = f"{limits}\n{summary.limit}".strip()
    if not summary.actor_records and summary.rates.get("trained_texts"):
        alone = "actor/metrics.jsonl has no record: times and rates are from the trainer's records alone."
        limits = f"{limits}\n{alone}".strip()
    shown = [
        evaluated,
        *(Section(title=one.title, rows=one.rows, text=one.text) for one in sections),
        Section(title="Rollouts by outcome", text=_outcomes(summary)),
        Section(title="Throughput and staleness", rows=rate_rows(summary), text=limits),
    ]
    if summary.mismatch.groups:
        title, rows = "Engine and trainer apart, r = trainer / engine", summary.mismatch.rows()
        shown.append(Section(title=title, rows=rows, text=summary.mismatch.text))
    for kind, totals in summary.compared.items():
        rows = label_rows(kind, totals)
        shown.append(Section(title=f"Advantages by {kind}", rows=rows, text=EXPLANATION, printed=False))
    if rest := [name for name in sorted(summary.comparisons) if name not in summary.headline]:
        rows = comparison_rows(summary, rest)
        shown.append(Section(title="All evaluation metrics", rows=rows, printed=False, folded=True))
    return shown


def _outcomes(summary: Summary) -> str:
    trained = summary.rates.get("trained_texts", 0)
    if trained and not summary.counts.started:
        return (
            f"How rollouts ended is not known: accounting/ has no rollout, although {trained:,.0f} samples "
            "were trained on; it was removed, or the trainer ran alone."
        )
    lines = summary.counts.lines()
    if trained and not summary.counts[Outcome.TRAINED] and not summary.counts.removed:
        lines.append(
            f"accounting/finetune.jsonl has no rollout, although {trained:,.0f} samples were trained on; it "
            "was emptied or removed."
        )
    return "\n".join(lines)


def _without_values(summary: Summary) -> str:
    """What to say where rollouts of an evaluation ended and their values are not there."""
    ended = summary.counts[Outcome.EVAL_DONE] + summary.counts[Outcome.EVAL_FAILED]
    if summary.evaluated is None or summary.evaluated >= ended:
        return ""
    return (
        f"{ended} evaluation rollouts ended, and the values of {summary.evaluated} are there: an evaluation "
        "did not end, or a file of streams/ was cut or removed."
    )


def print_report(sentence: str, sections: Sequence[Section], report_dir: Path, console: Console) -> None:
    """The short report for the terminal."""
    free = not console.is_terminal  # lines that a program reads stay whole
    console.print(f"\n{printable(sentence)}\n", markup=False, soft_wrap=free)
    for section in sections:
        if section.printed:
            _print_table(console, section.title, section.rows if section.short is None else section.short)
            if section.text:
                console.print(f"{printable(section.text)}\n", markup=False, soft_wrap=free)
    console.print(printable(f"Report and figures: {report_dir}"), markup=False, soft_wrap=True)


def markdown(sentence: str, sections: Sequence[Section], figures: Mapping[str, Drawn]) -> str:
    """report.md: everything, with the figures; that of learning stands behind the first sentence."""
    shown = ["# Report of the run", "", sentence, ""]
    shown += [_markdown_figure(title, drawn) for title, drawn in figures.items() if title == CURVE]
    for section in sections:
        if not section.folded:
            shown += _markdown_section(section)
    if others := [_markdown_figure(title, drawn) for title, drawn in figures.items() if title != CURVE]:
        shown += ["## Figures", "", *others]
    for section in sections:
        if section.folded:
            shown += _markdown_section(section)
    return printable("\n".join(shown))


def _markdown_figure(title: str, drawn: Drawn) -> str:
    """Light, or dark where the reader's viewer is."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{drawn.dark.name}">'
    return f'<picture>{dark}<img alt="{title}" src="{drawn.light.name}"></picture>\n'


def _markdown_section(section: Section) -> list[str]:
    lines = section.text.splitlines()
    listed = lines if len(lines) < 2 else [f"- {line}" for line in lines]
    return [f"## {section.title}", "", *_markdown_table(section.rows), *listed, *([""] if listed else [])]


def draw_figures(
    output_dir: Path, report_dir: Path, summary: Summary, focus: ReportFocus
) -> dict[str, Drawn]:
    """Write the PNGs; returns title -> paths of those that had something to show, the run's curve first."""
    # Matplotlib takes a second to import; printing a report from report.json should not.
    from pipelinerl.observe import figure_style, plots

    actor, finetune = read_metrics(output_dir, "actor"), read_metrics(output_dir, "finetune")
    evaluations, counts = summary.evaluations, summary.counts
    outcomes = {outcome.value: n for outcome, n in counts.ends.items()} | {"unfinished": counts.unfinished}
    headline = summary.headline[0] if summary.headline else "success"
    second = "reward" if headline != "reward" else "success"
    elsewhere = {headline, second, *focus.stages.values()}
    trained = partial(plots.learning, actor=actor, evaluations=evaluations)
    others = {name: name for name in [n for n in summary.headline if n not in elsewhere][:6]}
    evaluated = partial(plots.evaluation_metrics, evaluations=evaluations)
    figures = {
        CURVE: partial(trained, metric=headline),
        second.capitalize(): partial(trained, metric=second),
        "Stages": partial(evaluated, metrics=focus.stages, title="stages of the agent (evaluation)"),
        "Evaluation": partial(evaluated, metrics=others, title="other evaluation metrics"),
        "Optimisation": partial(plots.optimisation, finetune=finetune),
        "Staleness": partial(plots.staleness, finetune=finetune),
        "Mismatch": partial(plots.mismatch, finetune=finetune),
        "Throughput": partial(plots.throughput, actor=actor, finetune=finetune),
        "Outcomes": partial(plots.outcomes, counts=outcomes),
    }
    paths = {title: report_dir / f"{title.lower()}.png" for title in figures}
    drawn = {title: figure_style.save(paths[title], draw) for title, draw in figures.items()}
    return {title: found for title, found in drawn.items() if found is not None}


def write_report(
    output_dir: Path,
    focus: ReportFocus | None = None,
    sections: Sequence[ReportSection] = (),
    console: Console | None = None,
    rollouts: bool = False,
) -> Path:
    """Write and print the report; returns its folder. `rollouts`: their page is there, and is linked.

    Raises FileNotFoundError if there is no such run.
    """
    output_dir = Path(output_dir)
    if not output_dir.is_dir():
        raise FileNotFoundError(f"there is no run in {output_dir}")
    focus = focus or ReportFocus()
    summary = summarise(output_dir, focus)
    report_dir = output_dir / "report"
    report_dir.mkdir(exist_ok=True)
    figures = draw_figures(output_dir, report_dir, summary, focus)
    shown = report_sections(summary, sections)
    write_whole(report_dir / "report.md", markdown(summary.sentence, shown, figures))
    content: dict[str, Any] = summary.to_json() | {"figures": {t: p.light.name for t, p in figures.items()}}
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    write_whole(report_dir / "report.json", text + b"\n")
    write_report_page(output_dir, summary.sentence, shown, figures, rollouts)
    console = console or Output()
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    print_report(summary.sentence, shown, report_dir, console)
    return report_dir
