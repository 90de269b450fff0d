"""What a person sees at the end of a run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelinerl.accounting import reconcile
from pipelinerl.domain import Domain, ReportSection


def print_report(output_dir: Path, domain: Domain) -> None:
    """Sums by outcome and the sections of the domain."""
    console = Console()
    for line in reconcile(output_dir).lines():
        console.print(line, highlight=False)
    for section in domain.report(output_dir):
        print_section(section, console)


def print_section(section: ReportSection, console: Console) -> None:
    """A table with its heading and the lines under it."""
    if section.rows:
        table = Table(title=section.title, title_justify="left")
        for name in section.rows[0]:
            table.add_column(name)
        for row in section.rows[1:]:
            table.add_row(*row)
        console.print(table)
    else:
        console.print(section.title)
    if section.text:
        console.print(section.text, highlight=False)
