"""The launcher's status line: versions, samples, rollouts by outcome, success, tokens per second, waits.

Everything comes from the files that the roles write (metrics.jsonl, status.json, the accounting), so it works
for any run on this disk and costs the roles nothing.
"""

import errno
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipelinerl.base.closing import Closing
from pipelinerl.base.errors import printable
from pipelinerl.base.line_file import LineTail
from pipelinerl.base.waits import current_waits
from pipelinerl.observe.history import metrics_record, read_status
from pipelinerl.run_state.accounting import Outcome, RolloutAccounting, RolloutCounts

# Shorter waits are ordinary; longer ones are worth a word.
_NOTABLE_WAIT_S = 5.0
_LONGEST_WAITS = 3
PLAIN_EVERY_S = 60.0
# Of the time that has passed, between two lines of a log: some 130 of them in the first hour.
_LOG_SHARE = 0.05
_SHOWN = {
    "actor/test_success_mean": "test success {:.2f}",
    "actor/output_tokens_per_second": "{:.0f} tok/s",
    "stats/lag": "lag {:.0f}",
}


def status_line(
    metrics: dict[str, Any],
    counts: RolloutCounts,
    status: dict[str, dict[str, Any]],
    target: int | None,
    elapsed_s: float,
) -> str:
    """One line from the latest metrics, counts and status of the roles; unknown parts are left out."""
    parts = [f"{int(elapsed_s) // 60:d}:{int(elapsed_s) % 60:02d}"]
    texts = metrics.get("stats/samples")
    if texts is not None:
        share = f" of {target} ({texts / target:.0%})" if target else ""
        parts.append(f"trained {texts:.0f} samples{share}")
    if (step := metrics.get("stats/completed_steps")) is not None:
        parts.append(f"step {step:.0f}")
    actor = status.get("actor", {})
    parts.append(_rollouts(counts, actor))
    if out := actor.get("engines_out"):
        parts.append(f"engines out of rotation: {out.count(',') + 1}")
    parts += _recent(actor)
    if (since := actor.get("oldest_since")) and (age_s := time.time() - since) >= _NOTABLE_WAIT_S:
        parts.append(f"oldest rollout {actor['oldest_rollout']} for {age_s:.0f} s")
    # A value that was no number stands as null in the file.
    parts += [form.format(metrics[name]) for name, form in _SHOWN.items() if metrics.get(name) is not None]
    line = " | ".join(parts)
    if starts := _starting(status):
        line += f" | starting: {starts}"
    waits = notable_waits(status)
    return f"{line} | waiting: {'; '.join(waits)}" if waits else line


def _rollouts(counts: RolloutCounts, actor: dict[str, Any]) -> str:
    ends = [f"{n} {outcome.value}" for outcome, n in counts.ends.items() if n]
    ends.append(f"{counts.unfinished} open")
    line = f"rollouts {counts.started}: {', '.join(ends)}"
    if problems := actor.get("test_problems"):
        # A pass starts rollouts as there is room: what has started does not say how many there will be.
        line += f"; evaluating, {actor.get('test_problems_played', 0)} of {problems}"
    elif counts.eval_started:
        line += f"; evaluated {counts[Outcome.EVAL_DONE]} of {counts.eval_started}"
    return line


def _recent(actor: dict[str, Any]) -> list[str]:
    """Means and standard deviations over the last groups.

    The actor renews them with each group, its metrics only with a version.
    """
    shown = []
    for name in ("success", "reward"):
        if (key := f"recent_{name}") in actor:
            spread = f" ± {actor[f'{key}_spread']:.2f}" if f"{key}_spread" in actor else ""
            shown.append(f"{name} {actor[key]:.2f}{spread}")
    groups = actor.get("recent_groups", 0)
    over = "1 group" if groups == 1 else f"last {groups:.0f} groups"
    return [f"{', '.join(shown)} ({over})"] if shown else []


def _starting(status: dict[str, dict[str, Any]]) -> str:
    """What the engines that are not ready yet are at; those at the same stage share a place."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for fields in status.values():
        for wait in fields.get("waits", ()):
            if doing := wait.get("doing"):
                stages.setdefault(doing["stage"], []).append(wait)
    return "; ".join(
        f"{', '.join(sorted(w['doing']['who'] for w in waits))} {stage} for "
        f"{max(w['doing']['for_s'] for w in waits):.0f} s "
        f"({max(w['waited_s'] for w in waits):.0f} of {waits[0]['deadline_s']:.0f} s)"
        for stage, waits in stages.items()
    )


def notable_waits(status: dict[str, dict[str, Any]]) -> list[str]:
    """The longest waits of all roles that have lasted for some seconds."""
    found = [(w["waited_s"], role, w) for role, fields in status.items() for w in fields.get("waits", ())]
    found = [row for row in found if "doing" not in row[2]]
    longest = sorted(found, key=lambda row: row[:2], reverse=True)[:_LONGEST_WAITS]
    return [
        f"{role} for {wait['name']} ({waited_s:.0f} of {wait['deadline_s']:.0f} s)"
        for waited_s, role, wait in longest
        if waited_s >= _NOTABLE_WAIT_S
    ]


class Output(Console):
    """What commands print on stdout, as it is. Raises BrokenPipeError where nobody reads it any more.

    rich would take `[red]` in a path or a name for a colour, end with a traceback at `[/x]`, and end the
    process with status 1 and no word where nobody reads.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class ProgressDisplay(Closing):
    """Shows the status line: in place on a terminal, else as plain lines when something changed.

    Those come ever less often, until they are a minute apart. `plain`: a line a minute from the start, also
    on a terminal. `target_texts` is what the run will train on, if known. Raises DamagedLine for the
    accounting.
    """

    def __init__(
        self,
        output_dir: Path,
        target_texts: int | None = None,
        console: Console | None = None,
        plain: bool = False,
    ) -> None:
        self._output_dir, self._target, self._start = output_dir, target_texts, time.monotonic()
        self._began = round(time.time(), 3)  # as status files have it
        self._accounting = RolloutAccounting(output_dir)
        self._accounting.update()  # of an earlier start; a damaged file is refused before anything starts
        self._tails = [LineTail(output_dir / role / "metrics.jsonl") for role in ("actor", "finetune")]
        self._latest: dict[str, Any] = {}
        self._console = console or Output(soft_wrap=True)
        self._shown = ""
        self._plain, self._next = plain, self._start
        self._live: Live | None = None
        if self._console.is_terminal and not plain:
            self._live = Live(Text(""), console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def line(self) -> str:
        """Read what is new and return the status line."""
        for tail in self._tails:
            # A damaged line costs its figures; the report at the end refuses the file.
            for record in tail.records(metrics_record, on_damage=self.say):
                self._latest.update(record)
        return status_line(
            self._latest,
            self._accounting.update(),
            # What roles of an earlier start were at says nothing of those that are about to begin.
            read_status(self._output_dir, since=self._began) | {"launcher": {"waits": current_waits()}},
            self._target,
            time.monotonic() - self._start,
        )

    def tick(self) -> None:
        """Show the current line."""
        if self._live is not None:
            self._live.update(Text(self.line()), refresh=True)
        elif (now := time.monotonic()) >= self._next:
            self._next = now + (PLAIN_EVERY_S if self._plain else _pause_s(now - self._start))
            self._print_changed()

    def _print_changed(self) -> None:
        line = self.line()
        if line.partition(" | ")[2] != self._shown:
            self._shown = line.partition(" | ")[2]
            self._console.print(printable(line), markup=False)

    def say(self, line: str) -> None:
        """Print a line of its own, above the status line."""
        self._console.print(printable(line), markup=False)

    def close(self) -> None:
        """Leave the last status line behind."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._print_changed()


def _pause_s(elapsed_s: float) -> float:
    """Before the next line of a log."""
    return min(_LOG_SHARE * elapsed_s, PLAIN_EVERY_S)
