"""What a person sees while a run goes on, and at its end."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelinerl.accounting import Books, reconcile
from pipelinerl.config.tree import Config
from pipelinerl.domain import Domain, ReportSection
from pipelinerl.observe.status import status_path

ROLES = ("finetune", "preprocess", "actor")


class Progress:
    """One line per call: time, steps, rollouts, and the longest wait of each role."""

    def __init__(self, cfg: Config, output_dir: Path) -> None:
        self._last_step = cfg.finetune.last_step
        self._output_dir = output_dir
        self._books = Books(output_dir)
        self._start = time.monotonic()

    def tick(self) -> None:
        """Print the line."""
        seconds = int(time.monotonic() - self._start)
        counts = self._books.update()
        done = sum(counts.ends.values())
        parts = [f"[{seconds // 60}:{seconds % 60:02d}]", f"rollouts {done}/{counts.started}"]
        if counts.eval_started:
            parts.append(f"evaluation {sum(counts.eval_ends.values())}/{counts.eval_started}")
        parts += [text for role in ROLES if (text := self._role(role))]
        print(" | ".join(parts), flush=True)

    def _role(self, role: str) -> str:
        try:
            status = json.loads(status_path(self._output_dir, role).read_text())
        except (OSError, ValueError):
            return ""
        fields = [
            f"{key} {value}" for key, value in status.items() if key not in ("role", "pid", "waits", "time")
        ]
        waits = status.get("waits") or []
        if waits:
            fields.append(f"waiting for {waits[0]['name']} ({waits[0]['waited_s']:.0f} s)")
        return f"{role}: {', '.join(fields)}" if fields else ""


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
