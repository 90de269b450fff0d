"""The launcher's status line: step, success, reward and time left; samples, rollouts by outcome, long waits.

Everything comes from the files that the roles write (metrics.jsonl, status.json, the accounting), so it works
for any run on this disk and costs the roles nothing.
"""

import errno
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipelinerl.base.closing import Closing
from pipelinerl.base.errors import printable
from pipelinerl.base.line_file import LineTail
from pipelinerl.base.waits import current_waits
from pipelinerl.observe.history import metrics_record, read_status
from pipelinerl.run_state.accounting import Outcome, RolloutAccounting, RolloutCounts
from pipelinerl.run_state.resume_point import ResumePoint, Standing

# Shorter waits are ordinary; longer ones are worth a word. While nothing has begun, any is what is going on.
_NOTABLE_WAIT_S = 30.0
_STARTING_WAIT_S = 3.0
_NOTABLE_ROLLOUT_S = 30.0
_LONGEST_WAITS = 3
PLAIN_EVERY_S = 60.0
# Of the time that has passed, between two lines of a log: some 130 of them in the first hour.
_LOG_SHARE = 0.05
_SHOWN = {
    "actor/test_success_mean": "test success {:.2f}",
    "actor/output_tokens_per_second": "{:.0f} tok/s",
    "stats/lag": "lag {:.0f}",
}


class StatusParts(NamedTuple):
    """A status line in parts: what is looked at first, what the clock moves, and the rest."""

    head: list[str]
    times: list[str]
    rest: list[str]

    @property
    def unlike_before(self) -> list[str]:
        """What tells that something has happened."""
        return self.head + self.rest

    def __str__(self) -> str:
        return " | ".join(self.head + self.times + self.rest)

    def rows(self, width: int) -> str:
        """The line for a terminal, broken between parts, and a part wider than `width` between its words."""
        rows: list[str] = []
        for part in self.head + self.times + self.rest:
            if rows and len(rows[-1]) + len(part) + 3 <= width:
                rows[-1] += f" | {part}"
            else:
                rows += wrap(part, width, subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join(rows)


def status_line(
    metrics: dict[str, Any],
    counts: RolloutCounts,
    status: dict[str, dict[str, Any]],
    target: int | None,
    elapsed_s: float,
    left_s: float | None = None,
) -> StatusParts:
    """One line from the latest metrics, counts and status of the roles; unknown parts are left out."""
    head, rest = list[str](), list[str]()
    texts, actor = metrics.get("stats/samples"), status.get("actor", {})
    if (step := metrics.get("stats/completed_steps")) is not None:
        head.append(f"step {step:.0f}" + (f" ({texts / target:.0%})" if target and texts is not None else ""))
    means, over = _recent(actor)
    head += means
    times = [f"{_clock(left_s)} left"] if left_s else []
    times.append(_clock(elapsed_s))
    if texts is not None:
        rest.append(f"trained {texts:.0f}{f' of {target}' if target else ''} samples")
    rest += [*over, _rollouts(counts, actor)]
    if out := actor.get("engines_out"):
        rest.append(f"engines out of rotation: {out.count(',') + 1}")
    if (since := actor.get("oldest_since")) and (age_s := time.time() - since) >= _NOTABLE_ROLLOUT_S:
        rest.append(f"oldest rollout {actor['oldest_rollout']} for {age_s:.0f} s")
    # A value that was no number stands as null in the file.
    rest += [form.format(metrics[name]) for name, form in _SHOWN.items() if metrics.get(name) is not None]
    if starts := _starting(status):
        rest.append(f"starting: {starts}")
    begun = bool(counts.started or counts.eval_started)
    if waits := notable_waits(status, _NOTABLE_WAIT_S if begun else _STARTING_WAIT_S):
        rest.append(f"waiting: {'; '.join(waits)}")
    return StatusParts(head, times, rest)


def _clock(seconds: float) -> str:
    """`1:05`, from an hour on `1:00:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:d}:{rest:02d}" if minutes < 60 else f"{minutes // 60:d}:{minutes % 60:02d}:{rest:02d}"


class Trained(NamedTuple):
    """Samples that had been trained on at a time, in seconds since 1970."""

    time: float
    samples: float


def time_left_s(first: Trained, last: Trained, target: int, now: float, steps: int = 1) -> float | None:
    """Seconds until `target` samples at the rate of the `steps` between two records.

    It falls until the next step is due, and rises while that is late, as the rate falls. None without a rate
    or at the end.
    """
    done, taken_s = last.samples - first.samples, last.time - first.time
    if done <= 0 or taken_s <= 0 or last.samples >= target:
        return None
    since_s, due_s = now - last.time, taken_s / steps
    late_s = max(0.0, since_s - due_s)
    needed_s = (target - last.samples) * (taken_s + late_s) / done
    return max(1.0, needed_s - min(since_s, due_s))


def _rollouts(counts: RolloutCounts, actor: dict[str, Any]) -> str:
    ends = [f"{n} {outcome.value}" for outcome, n in counts.ends.items() if n]
    if counts.discarded:  # by a resume: nobody will end them
        ends.append(f"{counts.discarded} discarded")
    ends.append(f"{counts.unfinished - counts.discarded} open")
    line = f"rollouts {counts.started}: {', '.join(ends)}"
    if again := sum(counts.retried.values()):
        line += f"; {again} failed tries made again"
    if problems := actor.get("test_problems"):
        # A pass starts rollouts as there is room: what has started does not say how many there will be.
        line += f"; evaluating, {actor.get('test_problems_played', 0)} of {problems}"
    elif counts.eval_started:
        line += f"; evaluated {counts[Outcome.EVAL_DONE]} of {counts.eval_started}"
    return line


def _recent(actor: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Means and standard deviations over the last groups, and how many groups these are.

    The actor renews them with each group, its metrics only with a version.
    """
    shown = []
    for name in ("success", "reward"):
        if (key := f"recent_{name}") in actor:
            spread = f" ± {actor[f'{key}_spread']:.2f}" if f"{key}_spread" in actor else ""
            shown.append(f"{name} {actor[key]:.2f}{spread}")
    groups = actor.get("recent_groups", 0)
    over = "means of 1 group" if groups == 1 else f"means of the last {groups:.0f} groups"
    return shown, [over] if shown else []


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


def notable_waits(status: dict[str, dict[str, Any]], least_s: float = _NOTABLE_WAIT_S) -> list[str]:
    """The longest waits of all roles that have lasted for `least_s` seconds, with what is normal."""
    found = [(w["waited_s"], role, w) for role, fields in status.items() for w in fields.get("waits", ())]
    found = [row for row in found if "doing" not in row[2]]
    longest = sorted(found, key=lambda row: row[:2], reverse=True)[:_LONGEST_WAITS]
    return [
        f"{role} for {wait['name']} ({waited_s:.0f} of {wait['deadline_s']:.0f} s"
        + (f"; normal: {wait['normal']})" if wait.get("normal") else ")")
        for waited_s, role, wait in longest
        if waited_s >= least_s
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
    on a terminal. `target_texts` is what the run will train on, if known, `trained` the samples from which a
    resume goes on: it has undone what earlier starts recorded behind them. Raises DamagedLine for the
    accounting.
    """

    def __init__(
        self,
        output_dir: Path,
        target_texts: int | None = None,
        console: Console | None = None,
        plain: bool = False,
        trained: int | None = None,
    ) -> None:
        self._output_dir, self._target, self._start = output_dir, target_texts, time.monotonic()
        self._began = round(time.time(), 3)  # as status files have it
        resumed = () if trained is None else (ResumePoint(trained, 0, time=self._began),)
        self._stands = Standing((*Standing.read(output_dir).points, *resumed))
        self._accounting = RolloutAccounting(output_dir)
        self._accounting.update()  # of an earlier start; a damaged file is refused before anything starts
        self._tails = [LineTail(output_dir / role / "metrics.jsonl") for role in ("actor", "finetune")]
        self._latest: dict[str, Any] = {}
        self._first: Trained | None = None
        self._last: Trained | None = None
        self._steps = 0
        """Between them."""
        self._console = console or Output(soft_wrap=True)
        self._shown: Sequence[str] = ()
        self._plain, self._next = plain, self._start
        self._live: Live | None = None
        if self._console.is_terminal and not plain:
            self._live = Live(Text(""), console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def line(self) -> StatusParts:
        """Read what is new and return the status line."""
        for tail in self._tails:
            # A damaged line costs its figures; the report at the end refuses the file.
            for record in tail.records(metrics_record, on_damage=self.say):
                if self._stands.has(record.get("step", 0), time=record.get("time", math.inf)):
                    self._latest.update(record)
                    self._note_pace(record)
        return status_line(
            self._latest,
            self._accounting.update(),
            # What roles of an earlier start were at says nothing of those that are about to begin.
            read_status(self._output_dir, since=self._began) | {"launcher": {"waits": current_waits()}},
            self._target,
            time.monotonic() - self._start,
            self._left_s(),
        )

    def _note_pace(self, record: dict[str, Any]) -> None:
        """Records of this start say how fast it trains."""
        at, samples = record.get("time"), record.get("stats/samples")
        if at is not None and samples is not None and at >= self._began:
            self._last = Trained(at, samples)
            self._steps += self._first is not None
            self._first = self._first or self._last

    def _left_s(self) -> float | None:
        if self._first is None or self._last is None or not self._target:
            return None
        return time_left_s(self._first, self._last, self._target, time.time(), max(1, self._steps))

    def tick(self) -> None:
        """Show the current line."""
        if self._live is not None:
            self._live.update(Text(printable(self.line().rows(self._console.width))), refresh=True)
        elif (now := time.monotonic()) >= self._next:
            self._next = now + (PLAIN_EVERY_S if self._plain else _pause_s(now - self._start))
            self._print_changed()

    def _print_changed(self) -> None:
        line = self.line()
        if line.unlike_before != self._shown:
            self._shown = line.unlike_before
            shown = line.rows(self._console.width) if self._console.is_terminal else str(line)
            self._console.print(printable(shown), markup=False)

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
