"""The report of a synthetic run: intervals, tables, figures, progress."""

import io
import json
import os
import re
import shutil
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from rich.console import Console

from pipelinerl.base.errors import leave
from pipelinerl.base.line_file import DamagedLine, LineFile, LineTail
from pipelinerl.base.waits import Wait
from pipelinerl.config.compose import compose
from pipelinerl.config.files import config_path
from pipelinerl.domain import ReportFocus, ReportSection, load_domain
from pipelinerl.observe.figure_style import plt, style
from pipelinerl.observe.history import Evaluation, metrics_record, read_evaluations, read_metrics, series
from pipelinerl.observe.intervals import bootstrap, mean_interval, paired_difference, wilson
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.plots import lag_histogram, optimisation, pace, smallest, smooth, throughput
from pipelinerl.observe.progress import (
    ProgressDisplay,
    StatusParts,
    Trained,
    notable_waits,
    status_line,
    time_left_s,
)
from pipelinerl.observe.rates import run_rates
from pipelinerl.observe.report import comparison_rows, rate_rows, write_report
from pipelinerl.observe.status import StatusFile
from pipelinerl.observe.summary import compare, summarise
from pipelinerl.report import main
from pipelinerl.run_state.accounting import Outcome, RolloutCounts, RolloutLog
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.shared_problems import note_shared
from pipelinerl.streams import SingleStreamSpec, StoredStreamSpec, write_to_streams
from tests.support.light_figures import draw_light_ones_only
from tests.unit.observe.conftest import STAGES
from tests.unit.streams.conftest import fill

CONF = Path(__file__).parents[3] / "conf"


def test_wilson_agrees_with_published_values() -> None:
    # Newcombe (1998), table I, method 3.
    for successes, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        found = wilson(successes, n)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
@settings(max_examples=30)
def test_an_interval_holds_its_mean(values: list[float]) -> None:
    found = mean_interval(list(values))
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert found.n == len(values)


def test_the_bootstrap_covers_and_repeats() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        found = bootstrap(rng.normal(0.0, 1.0, 60))
        hits += found.low <= 0.0 <= found.high
    assert 86 <= hits <= 100
    values = rng.normal(size=50)
    assert bootstrap(values) == bootstrap(values)


def test_a_paired_difference_is_tighter_than_two_intervals_and_skips_missing_problems() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(0, 5, 100)
    after = before + 0.5 + rng.normal(0, 0.1, 100)
    found = paired_difference([*before, None, 1.0], [*after, 2.0, None])
    assert found.n == 100
    assert 0.4 < found.low < found.mean < found.high < 0.6
    with pytest.raises(ValueError, match="not the same problems"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([None])


def test_the_report_says_how_many_engines_are_missing_at_the_end() -> None:
    updates = [{"weights/excluded_engines": count} for count in (1.0, 0.0, 2.0)]
    assert run_rates([], updates) == {"engines_left_out_at_the_end": 2.0}
    assert run_rates([], updates[:2]) == {}


def test_the_report_compares_before_and_after_and_adds_up(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_light_ones_only(monkeypatch)
    out = io.StringIO()
    console = Console(file=out, width=60)
    folder = write_report(run_dir, ReportFocus(stages=STAGES), console=console)
    text = out.getvalue()
    assert "before (0 samples)" in text and "after (1,920 samples)" in text
    sums = "560 started = 434 trained + 0 stale + 88 filtered + 6 failed + 0 empty + 32 unfinished"
    assert f"rollouts: {sums}" in text
    for metric in ("success", "reward", "leak"):
        assert metric in text
    content = json.loads((folder / "report.json").read_text())
    assert content["versions"] == [0, 640, 1280, 1920]
    difference = content["comparisons"]["success"]["difference"]
    assert difference["low"] > 0 and difference["n"] == 49
    assert content["comparisons"]["leak"]["difference"]["high"] < 0
    assert content["rollouts"]["adds_up"] is True
    assert content["rates"]["lag_max_texts"] == 64
    figures = {path.name for path in folder.glob("*.png")}
    panels = ("stages", "evaluation", "optimisation", "staleness", "throughput", "outcomes")
    shown = ("learning", "reward", *panels)
    drawn = {f"{name}.png" for name in shown}
    assert figures == drawn | {f"{name}_dark.png" for name in shown}
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in map(folder.joinpath, drawn))
    markdown = (folder / "report.md").read_text()
    assert all(f'"{name}"' in markdown for name in figures)
    assert "| turns |" in markdown


@pytest.mark.usefixtures("undrawn")
def test_a_narrow_terminal_shows_every_cell_whole(run_dir: Path) -> None:
    rows = [
        ("level", "version 0 (60 rollouts)", "version 4992 (60 rollouts)", "company's name only"),
        (
            "answer or full information",
            "35.0% [ 23.3%,  46.7%] (21/60)",
            "6.7% [  1.7%,  13.3%] (4/60)",
            "0.0%",
        ),
    ]
    out, width = io.StringIO(), 80
    console = Console(file=out, width=width, force_terminal=True, no_color=True)
    write_report(run_dir, ReportFocus(), [ReportSection(title="Leakage", rows=rows)], console)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    path = str(run_dir / "report")
    assert all(len(line) <= width for line in text.splitlines() if path not in line)
    assert "…" not in text
    for whole in ("[23.3%, 46.7%]", "(21/60)", "[1.7%, 13.3%]", "information", "(60 rollouts)", "success"):
        assert whole in text
    found = summarise(run_dir).comparisons["success"]
    for interval in (found.before, found.after):
        assert f"[{interval.low:.2f}, {interval.high:.2f}]" in text


@pytest.mark.usefixtures("undrawn")  # by the test of before and after
def test_the_report_opens_with_one_sentence_and_the_curve_of_the_domain_s_headline(run_dir: Path) -> None:
    focus, out = ReportFocus(headline=("leak", "success")), io.StringIO()
    folder = write_report(run_dir, focus, console=Console(file=out))
    leaks = summarise(run_dir, focus).evaluations
    before, after = (float(np.mean([v for v in one.values["leak"] if v is not None])) for one in leaks[::3])
    means = f"leak went from {before:.2f} to {after:.2f}"
    said = f"On 49 of 50 held-out problems {means} in 60 steps on 1,920 samples: "
    assert out.getvalue().strip().startswith(said)
    markdown, page = (folder / "report.md").read_text(), (folder / "index.html").read_text()
    for text, table in ((markdown, "## Evaluation"), (page, "<h2>Evaluation")):
        assert 0 < text.index(said) < text.index('alt="Learning"') < text.index(table)
        assert text.count('alt="Learning"') == 1


@pytest.mark.parametrize(
    ("evaluations", "said"),
    [
        ([], "The run trained 0 steps on 0 samples; no evaluation tells what came of it."),
        ([(8, [1.0, 0.0, 0.0, 0.0])], "On 4 held-out problems success is 0.25 (95 % interval 0.05 to 0.70)."),
        (
            [(0, [0.0, 1.0]), (8, [1.0, 0.0])],
            "On 2 held-out problems success went from 0.50 to 0.50 in steps that are not known "
            "(finetune/metrics.jsonl has none of them): +0.00, 95 % interval -1.00 to +1.00, which "
            "may be chance.",
        ),
        (  # one problem failed before, another one after: the two that remain are no better
            [(0, [None, 1.0, 0.0, 0.0]), (8, [1.0, None, 0.0, 0.0])],
            "On 3 of 4 held-out problems success went from 0.33 to 0.33 in steps that are not known "
            "(finetune/metrics.jsonl has none of them); on the 2 measured at both times: +0.00, 95 % "
            "interval +0.00 to +0.00, which may be chance.",
        ),
        (
            [(0, [1.0, 0.0, 1.0, 0.0]), (8, [1.0, 0.0])],
            "On 2 held-out problems success went from 0.50 to 0.50 in steps that are not known "
            "(finetune/metrics.jsonl has none of them); the problems were others before, so that this is no "
            "comparison.",
        ),
    ],
)
def test_the_first_sentence_of_a_report(
    tmp_path: Path, evaluations: list[tuple[int, list[float | None]]], said: str
) -> None:
    with write_to_streams(SingleStreamSpec(tmp_path, "stats_test")) as stream:
        for version, values in evaluations:
            stream.write({"version": version, "values": {"success": values}})
    note_shared(tmp_path, 0, 4)
    assert summarise(tmp_path).sentence == said


def test_every_bundled_domain_says_its_headline() -> None:
    for path in sorted((CONF / "domain").glob("*.yaml")):
        hooks = OmegaConf.load(path).get("domain_hooks")
        hooks = hooks or compose([f"+domain={path.stem}", "hardware=cpu"]).tree.domain_hooks
        assert load_domain(hooks).report_focus.headline, path.stem


def test_minima_are_those_of_the_window_around_each_record() -> None:
    assert smallest(np.array([5.0, 1.0, 4.0, 3.0]), 3).tolist() == [1.0, 1.0, 1.0, 3.0]
    assert smallest(np.array([5.0, 1.0]), 1).tolist() == [5.0, 1.0]


@pytest.mark.usefixtures("undrawn")
def test_a_figure_of_the_effective_sample_size_has_its_minima(run_dir: Path) -> None:
    with plt.rc_context(style()):
        optimisation(figure := plt.figure(), read_metrics(run_dir, "finetune"))
    (axes,) = (axes for axes in figure.axes if axes.get_title(loc="left").startswith("effective"))
    least = next(line for line in axes.lines if line.get_label() == "smallest")
    recorded = series(read_metrics(run_dir, "finetune"), "rl/ess").y
    assert min(least.get_ydata()) == min(recorded)
    plt.close(figure)


def test_a_single_evaluation_has_no_before_and_after(run_dir: Path) -> None:
    summary = summarise(run_dir)
    last = summary.evaluations[-1:]
    header, *rows = comparison_rows(
        replace(summary, evaluations=last, comparisons=compare(last)), ["success"]
    )
    assert header == ("metric", "at 1,920 samples of this run", "n")
    assert [len(row) for row in rows] == [3] and rows[0][0] == "success"


@pytest.mark.usefixtures("undrawn")
def test_the_report_is_also_one_page_that_holds_everything(run_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "<b>run"
    shutil.copytree(run_dir, run)
    (run / "launcher").mkdir()
    choice = {"subject": "engines", "chosen": "1 x embedded", "because": "given", "change": "engine.count=N"}
    (run / "launcher" / "choices.json").write_text(json.dumps([choice]))
    config_path(run).parent.mkdir()
    tree = {"domain_name": "mine", "streams": {"password": "hunter2"}, "greeting": "<script>"}
    OmegaConf.save(OmegaConf.create(tree), config_path(run))
    section = ReportSection(title="Mine", rows=[("a", "b"), ("<i>", "2")], text="One.\nTwo.")
    folder = write_report(
        run, ReportFocus(stages=STAGES), [section], Console(file=io.StringIO()), rollouts=True
    )
    page = (folder / "index.html").read_text()
    for part in ("&lt;b&gt;run", "434 trained", "&lt;i&gt;", "<p>Two.</p>", "1 x embedded", "&lt;script&gt;"):
        assert part in page
    assert page.count("data:image/png;base64,") == 16, "eight figures, light and dark"
    assert 'href="rollouts/index.html"' in page
    assert "hunter2" not in page
    assert "<script" not in page
    assert 'src="http' not in page
    (run / "launcher" / "choices.json").write_text('[{"subject": "engi')
    write_report(run, console=Console(file=io.StringIO()))
    assert "launcher/choices.json is damaged" in (folder / "index.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_the_command_reports_a_run_and_refuses_a_missing_one(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "434 trained" in said
    assert f"In a browser: {run_dir / 'report' / 'index.html'}" in said
    assert "Rollouts:" not in said, "the run wrote none"
    assert main([str(tmp_path / "no")]) == 1
    assert capsys.readouterr().err == f"report: there is no run in {tmp_path / 'no'}\n"
    (tmp_path / "clone" / "conf").mkdir(parents=True)
    (tmp_path / "clone" / "conf" / "base.yaml").touch()
    assert main([str(tmp_path / "clone")]) == 1
    assert not (tmp_path / "clone" / "report").exists()
    (tmp_path / "clone" / "conf" / "exp_config.yaml").write_text("seed: 1\n")  # as a dry run leaves it
    assert main([str(tmp_path / "clone")]) == 1
    assert capsys.readouterr().err.endswith("clone: nothing is recorded yet\n")


@pytest.mark.usefixtures("undrawn")
def test_a_terminal_that_knows_only_ascii_gets_the_report(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    assert main([str(run_dir)]) == 0
    assert b"434 trained" in shown.getvalue()


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_any_name_is_reported_and_one_that_takes_no_report_is_named(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin = tmp_path / os.fsdecode(b"r\xe9sultat")  # no UTF-8
    shutil.copytree(run_dir, latin)
    assert main([str(latin)]) == 0
    assert "r\\xdce9sultat" in (latin / "report" / "index.html").read_text()
    capsys.readouterr()
    shutil.rmtree(latin / "report")
    (latin / "report").touch()
    with pytest.raises(SystemExit, match="1"):
        leave("report", lambda: main([str(latin)]))
    _, said = capsys.readouterr().err.splitlines()  # behind that it has no configuration
    assert said.startswith("report: ") and "File exists" in said


def test_a_record_that_nothing_was_written_to_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "metrics.jsonl").touch()
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"report: there is no run in {tmp_path}\n"
    assert not (tmp_path / "report").exists()


def test_a_counter_that_is_no_number_costs_its_figure_only(tmp_path: Path) -> None:
    (tmp_path / "finetune").mkdir()
    (tmp_path / "finetune" / "metrics.jsonl").write_text(
        '{"time": null, "step": 8, "stats/samples": 8, "stats/tokens": 80}\n'
        '{"time": 2.0, "step": 16, "stats/samples": 16, "stats/tokens": null}\n'
    )
    rates = summarise(tmp_path).rates
    assert (rates["trained_texts"], rates["trained_tokens"]) == (16, 80)


def test_a_run_whose_records_were_removed_does_not_report_zeros(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, "finetune") as trainer:
        trainer.log({"stats/samples": 1920, "stats/completed_steps": 60}, 1920)
    out = io.StringIO()
    write_report(tmp_path, console=Console(file=out, width=200))
    assert "accounting/ has no rollout, although 1,920 samples were trained on" in out.getvalue()
    assert "0 started" not in out.getvalue()
    with RolloutLog(tmp_path, "actor") as actor:
        actor.record(Outcome.EVAL_STARTED, ["t/0", "t/1"])
    out = io.StringIO()
    write_report(tmp_path, console=Console(file=out, width=200))
    assert "2 evaluation rollouts started, and the values of none are there" in out.getvalue()


@pytest.mark.usefixtures("undrawn")
def test_a_report_without_one_of_its_files_names_it(run_dir: Path, tmp_path: Path) -> None:
    """What is left is no whole run: 434 rollouts were trained, and evaluated before and after."""
    whole = io.StringIO()
    write_report(run_dir, console=Console(file=whole, width=200))
    stats = next((run_dir / "streams/stats_test").glob("0/0/*.jsonl")).relative_to(run_dir)
    for name, said in {
        "actor/metrics.jsonl": "actor/metrics.jsonl has no record: times and rates are from the trainer's",
        "accounting/finetune.jsonl": "accounting/finetune.jsonl was removed: how rollouts ended there is not",
        str(stats): "a file of streams/ was cut or removed",
    }.items():
        shutil.copytree(run_dir, run := tmp_path / Path(name).parts[0])
        out, text = io.StringIO(), (run / name).read_bytes()
        if name.startswith("streams"):
            (run / name).write_bytes(text[: text.rindex(b"{")])  # without the last pass
        else:
            (run / name).unlink()
        write_report(run, console=Console(file=out, width=200))
        assert said in out.getvalue() and said not in whole.getvalue(), name
    (emptied := tmp_path / "accounting/accounting/finetune.jsonl").touch()
    out = io.StringIO()
    write_report(emptied.parents[1], console=Console(file=out, width=200))
    assert "accounting/finetune.jsonl has no rollout, although 1,920 samples" in out.getvalue()


def test_a_report_without_a_configuration_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MetricsWriter(tmp_path, "finetune") as trainer:
        trainer.log({"stats/samples": 8}, 8)
    assert main([str(tmp_path)]) == 0
    assert f"{config_path(tmp_path)} is not there: parts of the domain" in capsys.readouterr().err


def test_a_run_that_wrote_nothing_is_reported_as_such(tmp_path: Path) -> None:
    out = io.StringIO()
    folder = write_report(tmp_path, console=Console(file=out))
    assert "No evaluation was recorded." in out.getvalue()
    assert "rollouts: 0 started" in out.getvalue()
    assert not list(folder.glob("*.png"))


def test_a_version_evaluated_twice_counts_once(tmp_path: Path) -> None:
    passes = ((0, 0.0), (8, 0.0), (8, 1.0))
    records = ({"version": version, "values": {"success": [value, None]}} for version, value in passes)
    fill(SingleStreamSpec(tmp_path, "stats_test"), *records)
    found = read_evaluations(tmp_path)
    assert [(e.version, e.values["success"]) for e in found] == [(0, [0.0, None]), (8, [1.0, None])]
    assert summarise(tmp_path).comparisons["success"].after.mean == 1.0


def test_passes_before_a_resume_count_and_the_later_of_a_version_wins(tmp_path: Path) -> None:
    for folder, passes in (("streams_1", [(0, 0.0), (8, 0.0)]), ("streams", [(8, 1.0), (16, 1.0)])):
        records = ({"version": version, "values": {"success": [value]}} for version, value in passes)
        fill(StoredStreamSpec(tmp_path, "stats_test", folder=folder), *records)
    assert [(e.version, e.values["success"]) for e in read_evaluations(tmp_path)] == [
        (0, [0.0]),
        (8, [1.0]),
        (16, [1.0]),
    ]


def test_what_a_resume_undid_is_none_of_the_run(tmp_path: Path) -> None:
    """Three steps of 8 samples were trained and evaluated; two starts resumed at 0, and one made a step.

    Records 10 s apart: those of the actor are of the version that it samples with.
    """
    for folder, passes in (("streams_0", [(0, 0.0), (8, 0.2), (24, 0.9)]), ("streams", [(8, 0.5)])):
        records = ({"version": version, "values": {"success": [value]}} for version, value in passes)
        fill(StoredStreamSpec(tmp_path, "stats_test", folder=folder), *records)
    with (
        LineFile(tmp_path / "finetune/metrics.jsonl") as trainer,
        LineFile(tmp_path / "actor/metrics.jsonl") as actor,
    ):

        def log_step(made: int, at: float, lag: float, rate: float) -> None:
            head = {"time": at, "step": 8 * made}
            step = {"stats/completed_steps": made, "stats/samples": 8 * made, "stats/lag": lag}
            trainer.append(json.dumps(head | step).encode())
            speed = {"actor/output_tokens_per_second": rate, "actor/success_mean": rate / 1000}
            actor.append(json.dumps(head | speed).encode())

        ResumePoint(0, 0, time=100.0).write(tmp_path)
        for made in (1, 2, 3):
            log_step(made, 100.0 + 10 * made, 100.0 * made, 900.0)
        assert [e.version for e in read_evaluations(tmp_path)] == [0, 8, 24], "nothing was resumed yet"
        for attempt, at in ((1, 200.0), (2, 300.0)):
            ResumePoint(0, 0, attempt=attempt, time=at).write(tmp_path)
            assert read_metrics(tmp_path, "finetune") == read_metrics(tmp_path, "actor") == []
        assert len(read_metrics(tmp_path, "finetune", undone=True)) == 3
        log_step(1, 310.0, 7.0, 100.0)
    found = summarise(tmp_path)
    assert found.versions == [0, 8] and found.comparisons["success"].after.mean == 0.5
    assert (found.rates["optimizer_steps"], found.rates["lag_mean_texts"]) == (1, 7.0)
    assert found.rates["generated_tokens_per_second_median"] == 100.0
    assert series(read_metrics(tmp_path, "actor"), "actor/success_mean").y.tolist() == [0.1]


def test_series_take_the_later_record_of_a_step_after_a_resume() -> None:
    records = [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 2, "a": 5.0}, {"a": 9.0}, {"step": 3}]
    found = series(records, "a")
    assert found.x.tolist() == [1, 2] and found.y.tolist() == [1, 5]


def test_lag_histograms_of_steps_are_added_up() -> None:
    records = [
        {"stats/lag_histogram": {"edges": [0, 1, 8, 16], "counts": [10, 0, 5]}},
        {"stats/lag_histogram": {"edges": [0, 1], "counts": [5]}},
    ]
    edges, counts = lag_histogram(records)
    assert counts[0] == 15 and counts.sum() == pytest.approx(20)
    assert edges.tolist() == list(range(17))
    assert counts[1:8].sum() == 0 and counts[8:].tolist() == pytest.approx([5 / 8] * 8)
    assert all(len(part) == 0 for part in lag_histogram([]))


def test_a_wide_bin_of_lags_is_spread_over_its_width() -> None:
    edges, counts = lag_histogram([{"stats/lag_histogram": {"edges": [0, 100, 4100], "counts": [0, 80]}}])
    assert edges[-1] >= 4100 and counts.sum() == pytest.approx(80)
    assert np.flatnonzero(counts)[-1] == len(counts) - 1, "the largest lag is shown"


def test_lags_below_zero_of_a_replay_are_shown() -> None:
    behind = {"stats/lag_histogram": {"edges": [-64, 0, 1, 2], "counts": [8, 0, 0]}}
    edges, counts = lag_histogram([behind])
    assert edges[0] == -64 and counts.sum() == pytest.approx(8)
    edges, counts = lag_histogram(
        [behind, {"stats/lag_histogram": {"edges": [0, 100, 200], "counts": [0, 4]}}]
    )
    assert counts[edges[:-1] < 0].sum() == pytest.approx(8)
    assert counts[edges[:-1] >= 96].sum() == pytest.approx(4, rel=0.1)


def test_the_pace_of_training_is_over_all_time_that_passed() -> None:
    """One slow step in two: the mean of the two rates would be five times too high."""
    records = [
        {"step": n, "time": 100.0 + 10 * (n // 2) + 0.1 * (n % 2), "stats/sampled_tokens": 50.0 * n}
        for n in range(24)
    ]
    found = pace(records)
    assert found.x.tolist() == list(range(24))
    assert found.y[4:20] == pytest.approx([10.0] * 16, rel=0.05)
    assert len(pace(records[:1])) == 0


def test_a_figure_of_throughput_compares_sampled_tokens() -> None:
    """A trainer takes 200 sampled tokens a second beside 800 of prompts, and works half of the time."""
    records = [
        {
            "step": n,
            "time": 10.0 * n,
            "stats/sampled_tokens": 2000 * n,
            "stats/tokens": 10_000 * n,
            "rl/num_output_tokens_sum": 2000,
            "throughput/tokens_per_step": 10_000,
            "throughput/working_tokens_per_sec": 2000,
        }
        for n in range(24)
    ]
    actor = [{"step": n, "time": 10.0 * n, "actor/output_tokens_per_second": 200} for n in range(24)]
    with plt.rc_context(style()):
        throughput(figure := plt.figure(), actor, records)
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    plt.close(figure)
    for name, rate in {"generated": 200, "trained on": 200, "trainer while working": 400}.items():
        assert np.asarray(drawn[name]) == pytest.approx(rate)
    rates: Any = SimpleNamespace(rates=run_rates(actor, records))
    rows = dict(rate_rows(rates))
    assert rows["sampled tokens trained on"] == "46,000"
    assert rows["tokens of these samples, prompts included"] == "230,000"


def test_the_mean_lag_is_that_of_trained_tokens_however_long_their_prompts_are() -> None:
    """10 tokens of the newest weights with long prompts, 30 that are 32 samples old: 24 on the mean."""
    lags = ((0.0, [10.0, 0.0], 5_000.0), (32.0, [0.0, 30.0], 60.0))
    records = [
        {
            "stats/lag": lag,
            "stats/lag_histogram": {"edges": [0, 1, 33], "counts": counts},
            "throughput/tokens_per_step": all_tokens,
        }
        for lag, counts, all_tokens in lags
    ]
    assert run_rates([], records)["lag_mean_texts"] == 24.0
    nothing = {"stats/lag": None, "throughput/tokens_per_step": 4.0}
    assert run_rates([], [nothing, *records])["lag_mean_texts"] == 24.0
    assert "lag_mean_texts" not in run_rates([], [nothing])


def test_shares_and_ratios_of_samples_weigh_a_step_by_its_samples() -> None:
    """30 samples, 3 of several versions and with a ratio of 1; 10 samples, 9 of several and with 2.

    Together 12 of 40, and (30 x 1 + 10 x 2) / 40. Steps alike would give 0.5 and 1.5.
    """
    records = [
        {
            "stats/multi_version_share": share,
            "rl/ratio_new_old": ratio,
            "throughput/samples_per_sec": samples / seconds,
            "throughput/sec_per_step": seconds,
            "stats/samples": total,
        }
        for share, ratio, samples, seconds, total in ((0.1, 1.0, 30, 2.0, 30), (0.9, 2.0, 10, 5.0, 400))
    ]
    rates = run_rates([], records)
    assert rates["multi_version_share_of_texts"] == pytest.approx(0.3)
    assert rates["importance_ratio_mean"] == pytest.approx(1.25)
    assert run_rates([], [records[1] | {"rl/ratio_new_old": None}, records[0]])[
        "importance_ratio_mean"
    ] == pytest.approx(1.0), "a step without a value says nothing"


def test_the_mean_latency_is_that_of_rollouts_however_many_a_record_has() -> None:
    """48 rollouts of 1 s and 2 of 26 s: 2 s each on the mean."""
    records = [
        {"actor/latency_mean": 1.0, "actor/rollouts_done": 48.0},
        {"actor/output_tokens_per_second": 70.0},
        {"actor/latency_mean": 26.0, "actor/rollouts_done": 2.0},
    ]
    assert run_rates(records, [])["rollout_latency_mean_s"] == 2.0
    assert "rollout_latency_mean_s" not in run_rates(records[1:2], [])


def test_the_status_line_shows_progress_and_long_waits(run_dir: Path) -> None:
    line = str(ProgressDisplay(run_dir, target_texts=3840).line())
    assert "trained 1920 of 3840 samples" in line and "(50%)" in line
    assert "434 trained, 88 filtered, 6 failed, 32 open" in line
    assert "evaluated 196 of 200" in line
    room = {"name": "an engine with room", "waited_s": 42.0, "deadline_s": 60.0, "normal": "seconds"}
    short = {"name": "texts", "waited_s": 29.0, "deadline_s": 60.0}
    status: dict[str, dict[str, Any]] = {"actor": {"waits": [room]}, "finetune": {"waits": [short]}}
    assert notable_waits(status) == ["actor for an engine with room (42 of 60 s; normal: seconds)"]
    status["actor"] |= {"test_problems": 300, "test_problems_played": 56}
    assert "; evaluating, 56 of 300 | " in str(status_line({}, RolloutCounts(), status, None, 61.0))
    nothing = {"actor/test_success_mean": None, "stats/lag": 3.0}  # null: it was no number
    assert "test success" not in str(status_line(nothing, RolloutCounts(), status, None, 61.0))
    del status["actor"]["test_problems"]
    out = {"actor": {"engines_out": "http://127.0.0.1:8080, http://127.0.0.1:8081"}}
    assert " | engines out of rotation: 2" in str(status_line({}, RolloutCounts(), out, None, 61.0))
    assert "success" not in line, "the metrics are of the groups since the last version, however few"


def test_while_nothing_has_begun_the_status_line_says_what_is_waited_for() -> None:
    waits = [{"name": "the engines to be ready", "waited_s": 4.0, "deadline_s": 60.0}]
    status = {"finetune": {"waits": waits}}
    empty = status_line({}, RolloutCounts(), status, None, 61.0)
    assert str(empty).endswith(" | waiting: finetune for the engines to be ready (4 of 60 s)")
    begun = RolloutCounts(started=1)
    assert "waiting" not in str(status_line({}, begun, status, None, 61.0))


def test_the_status_line_says_what_engines_that_start_are_at() -> None:
    def starts(engine: int, stage: str, for_s: float, waited_s: float) -> dict[str, object]:
        doing = {"who": f"actor_vllm_{engine}", "stage": stage, "for_s": for_s}
        return {"name": "health", "waited_s": waited_s, "deadline_s": 900.0, "doing": doing}

    compiles, waits = starts(0, "compiling", 23.0, 41.0), starts(2, "waiting for another", 20.0, 41.0)
    rows = [compiles, waits, starts(1, "waiting for another", 19.0, 40.6)]
    status = {"launcher": {"waits": rows}, "preprocess": {"waits": []}}
    assert str(status_line({}, RolloutCounts(), status, None, 61.0)) == (
        "1:01 | rollouts 0: 0 open | starting: actor_vllm_0 compiling for 23 s (41 of 900 s); "
        "actor_vllm_1, actor_vllm_2 waiting for another for 20 s (41 of 900 s)"
    )


@pytest.mark.parametrize(
    ("recent", "means", "over"),
    [
        (
            {"recent_groups": 20, "recent_success": 0.425, "recent_reward": -0.5},
            "success 0.42 | reward -0.50",
            "means of the last 20 groups",
        ),
        (
            {"recent_groups": 20, "recent_success": 0.425, "recent_success_spread": 0.25},
            "success 0.42 ± 0.25",
            "means of the last 20 groups",
        ),
        ({"recent_groups": 1, "recent_reward": 1.0}, "reward 1.00", "means of 1 group"),
    ],
)
def test_the_status_line_shows_means_over_recent_groups_with_their_number(
    tmp_path: Path, recent: dict[str, float], means: str, over: str
) -> None:
    display = ProgressDisplay(tmp_path)
    with MetricsWriter(tmp_path, "actor") as actor, StatusFile(tmp_path, "actor") as status:
        actor.log({"actor/success_mean": 1.0, "actor/reward_mean": 7.0}, step=16)  # of the last group alone
        status.set(**recent)
        status.write()
        line = str(display.line())
    assert line.startswith(f"{means} | 0:00 | ") and f" | {over} | " in line and "7.00" not in line


def test_step_success_reward_and_time_left_are_the_first_row_of_80_columns() -> None:
    recent = {"recent_groups": 16, "recent_success": 0.5, "recent_reward": -10.25}
    spreads = {"recent_success_spread": 0.5, "recent_reward_spread": 10.5}
    metrics = {"stats/samples": 4992.0, "stats/completed_steps": 1040.0, "stats/lag": 480.0}
    counts = RolloutCounts(started=5840)
    parts = status_line(metrics, counts, {"actor": recent | spreads}, 49920, 3725.0, 35999.0)
    rows = parts.rows(80).splitlines()
    assert rows[0] == "step 1040 (10%) | success 0.50 ± 0.50 | reward -10.25 ± 10.50 | 9:59:59 left"
    assert all(len(row) <= 80 for row in rows)
    assert " | ".join(rows) == str(parts)
    wait = {"name": "samples of step 0", "waited_s": 31.0, "deadline_s": 7260.0, "normal": "long " * 12}
    waits = {role: {"waits": [wait]} for role in ("finetune", "preprocess")}
    rows = status_line({}, counts, waits, None, 61.0).rows(80).splitlines()
    assert all(len(row) <= 80 for row in rows) and " ".join(rows).count("long") == 24


def test_the_time_left_follows_from_the_pace_of_this_start() -> None:
    first, last = Trained(100.0, 480.0), Trained(160.0, 720.0)  # four samples a second
    assert time_left_s(first, last, 960, now=160.0) == pytest.approx(60.0)
    assert time_left_s(first, last, 960, now=170.0) == pytest.approx(50.0)
    assert time_left_s(first, last, 960, now=220.0) == 1.0, "it is due, and not over"
    assert time_left_s(first, last, 960, now=250.0) == pytest.approx(30.0), "240 samples take 90 s now"
    # Steps of 10 s: at 175 the next is 5 s late, and 240 samples take 65 s, of which one step's time is over.
    assert time_left_s(first, last, 960, now=175.0, steps=6) == pytest.approx(55.0)
    assert time_left_s(first, last, 960, now=500.0, steps=6) == pytest.approx(380.0)
    assert time_left_s(first, last, 720, now=170.0) is None
    assert time_left_s(first, first, 960, now=170.0) is None


def test_an_earlier_start_says_nothing_of_the_pace(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, "finetune") as finetune:
        finetune.log({"stats/samples": 48.0, "stats/completed_steps": 1.0}, step=48)
        finetune.log({"stats/samples": 96.0, "stats/completed_steps": 2.0}, step=96)
    path = tmp_path / "finetune" / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    now = time.time()
    for record, before_s in zip(records, (20.0, 10.0), strict=True):
        record["time"] = now - before_s
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert " left" not in str(ProgressDisplay(tmp_path, target_texts=480).line())
    display = ProgressDisplay(tmp_path, target_texts=480)
    for record, after_s in zip(records, (20.0, 30.0), strict=True):
        record["time"] = now + after_s
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert " left" in str(display.line())


def test_the_status_line_begins_where_a_resume_does(tmp_path: Path) -> None:
    """Ten steps of 8 samples were made, two of them saved; the resume is to make two more."""
    with MetricsWriter(tmp_path, "finetune") as finetune, MetricsWriter(tmp_path, "actor") as actor:
        for made in (2, 10):
            finetune.log({"stats/samples": 8.0 * made, "stats/completed_steps": made}, step=8 * made)
            actor.log({"actor/test_success_mean": made / 10}, step=8 * made)
        time.sleep(0.01)  # records carry milliseconds
        display = ProgressDisplay(tmp_path, target_texts=32, trained=16)
        line = str(display.line())
        assert line.startswith("step 2 (50%) | ") and "trained 16 of 32 samples" in line, line
        assert "test success 0.20" in line
        finetune.log({"stats/samples": 24.0, "stats/completed_steps": 3}, step=24)
        assert str(display.line()).startswith("step 3 (75%) | ")


def test_rollouts_that_a_resume_left_behind_are_not_open(tmp_path: Path) -> None:
    """Of eight rollouts three were trained when the run stopped; the resume kept one of the others."""
    actor = RolloutLog(tmp_path, "actor")
    actor.record(Outcome.STARTED, [f"0-000000/{index}" for index in range(8)])
    RolloutLog(tmp_path, "finetune").record(Outcome.TRAINED, [f"0-000000/{index}" for index in range(3)])
    actor.record(Outcome.RESUMED)
    RolloutLog(tmp_path, "preprocess").record(Outcome.REPLAYED, ["0-000000/3"])
    actor.record(Outcome.STARTED, ["1-000000/0", "1-000000/1"])
    assert "rollouts 10: 3 trained, 4 discarded, 3 open" in str(ProgressDisplay(tmp_path).line())


def test_the_status_of_an_earlier_start_is_not_shown(tmp_path: Path) -> None:
    with StatusFile(tmp_path, "actor") as status:
        status.set(test_problems=60, test_problems_played=54)
    stopped = json.loads(status.path.read_text())
    status.path.write_text(json.dumps(stopped | {"time": stopped["time"] - 0.1}))
    display = ProgressDisplay(tmp_path)
    assert "evaluating" not in str(display.line())
    with StatusFile(tmp_path, "actor") as status:
        status.set(test_problems=60, test_problems_played=3)
    assert "evaluating, 3 of 60" in str(display.line())


def test_plain_output_repeats_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    with ProgressDisplay(tmp_path, console=Console(file=out, soft_wrap=True)) as display:
        display.tick()
        display.tick()
        display.say("[engine] is healthy")
        with RolloutLog(tmp_path, "actor") as log:
            log.record(Outcome.STARTED, ["g/0"])
        display.tick()
    assert [line.partition(" | ")[2] or line for line in out.getvalue().splitlines()] == [
        "rollouts 0: 0 open",
        "[engine] is healthy",
        "rollouts 1: 1 open",
    ]


def test_plain_progress_is_a_line_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = io.StringIO(), [100.0]
    monkeypatch.setattr("pipelinerl.observe.progress.time.monotonic", lambda: now[0])
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with ProgressDisplay(tmp_path, console=console, plain=True) as display:
        for second in range(0, 130, 2):
            now[0] = 100.0 + second
            with RolloutLog(tmp_path, "actor") as log:
                log.record(Outcome.STARTED, [f"g/{second}"])
            display.tick()
    shown = ["0:00 | rollouts 1: 1 open", "1:00 | rollouts 31: 31 open", "2:00 | rollouts 61: 61 open"]
    assert out.getvalue().splitlines() == [*shown, "2:08 | rollouts 65: 65 open"]  # the last: how it ended


def test_lines_of_a_log_come_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, now, at = io.StringIO(), [100.0], list[int]()
    monkeypatch.setattr("pipelinerl.observe.progress.time.monotonic", lambda: now[0])
    with ProgressDisplay(tmp_path, console=Console(file=out, soft_wrap=True)) as display:
        lines = iter(StatusParts([], ["0:00"], [f"{number}"]) for number in range(10_000))
        monkeypatch.setattr(display, "line", lambda: next(lines))
        for second in range(0, 3600, 2):
            now[0] = 100.0 + second
            before = out.tell()
            display.tick()
            at += [second] if out.tell() > before else []
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps[:10] == [2] * 10 and gaps == sorted(gaps) and max(gaps) == gaps[-1] == 60
    assert 100 < len(at) < 160


def test_a_terminal_gets_one_live_line(tmp_path: Path) -> None:
    out = io.StringIO()
    with ProgressDisplay(tmp_path, console=Console(file=out, force_terminal=True, width=100)) as display:
        display.tick()
    assert "rollouts 0" in out.getvalue()


def test_an_incomplete_line_of_metrics_is_dropped_with_a_count_and_a_damaged_one_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "actor" / "metrics.jsonl"
    tail = LineTail(path)
    assert list(tail.records(metrics_record)) == []
    path.parent.mkdir()
    path.write_text('{"a":1}\n{"a":2')
    assert list(tail.records(metrics_record)) == [{"a": 1}] and tail.dropped == 1
    with LineFile(path) as file:
        file.append(b'{"a":3}')
        file.append(b'{"a":"three"}')
        file.append(b'{"a":4}')
    said: list[str] = []
    assert list(tail.records(metrics_record, said.append)) == [{"a": 3}, {"a": 4}] and tail.dropped == 1
    assert len(said) == 1 and said[0].startswith(f"{path}:4: ")
    with pytest.raises(DamagedLine, match=r"actor/metrics\.jsonl:4: .*delete the line"):
        read_metrics(tmp_path, "actor")


def test_a_status_file_reaches_the_line(tmp_path: Path) -> None:
    display = ProgressDisplay(tmp_path)
    with StatusFile(tmp_path, "actor", interval_s=60) as status, Wait("an engine", 90):
        status.write()
        assert "waiting" not in display.line()


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.0, 3.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
@pytest.mark.parametrize("window", [1, 2, 3, 9])
def test_a_window_longer_than_the_points_still_gives_one_each(values: list[float], window: int) -> None:
    found = smooth(np.array(values), window)
    assert len(found) == len(values)
    assert min(values) <= found.min() and found.max() <= max(values)


def test_smoothing_means_over_its_window() -> None:
    assert smooth(np.array([0.0, 3.0, 6.0, 3.0]), 3).tolist() == [1.5, 3.0, 4.0, 4.5]


def test_evaluations_of_other_problems_are_not_paired() -> None:
    """Equal numbers of problems are no equal problems: the digest of a pass says which they were."""
    values = {"success": [0.0, 1.0, 0.0]}
    for before, after, paired in (("3 a", "3 a", True), ("3 a", "3 b", False), ("", "3 b", True)):
        found = compare([Evaluation(0, values, before), Evaluation(8, values, after)])["success"]
        assert (found.difference is not None) is paired and found.after.n == 3


def test_the_pause_between_two_starts_is_no_time_of_the_run(tmp_path: Path) -> None:
    """A sample a second for 100 s, four hours of nothing, and the same for another 100 s."""
    folders = [tmp_path / "launcher", tmp_path / "finetune"]
    for folder in folders:
        folder.mkdir()
    said = "2026-07-29 10:00:00,000 INFO pipelinerl.launch: launched at {}.000, 4.0 s ago\n"
    (folders[0] / "launcher_0.log").write_text(said.format(1000) + said.format(15_500))
    steps = [(at + n, n + before) for at, before in ((1100, 0), (15_600, 100)) for n in range(0, 101, 10)]
    lines = [json.dumps({"time": at, "step": n, "stats/samples": n}) + "\n" for at, n in steps]
    (folders[1] / "metrics.jsonl").write_text("".join(lines))
    rates = summarise(tmp_path).rates
    assert (rates["elapsed_s"], rates["trained_texts_per_second"]) == (200.0, 1.0)
