"""A learning experiment from its specification: arms, seeds, keys, figures and goals; `benchmarks.__main__`.

Each file of `benchmarks/specs` is one experiment (`_spec.py` says what stands in it), and this is the only
code that runs them. What a run reached becomes a row; rows of an arm become a table with 95 % intervals over
held-out problems, and arms are compared (`_compare.py`). Two kinds of rows exist: `metrics` keeps several
metrics (`_by_metric.py`), `tasks` success by group of problems (`_by_task.py`). An experiment with one arm
keeps `table` and `rows` flat, with several by arm, so that documents and goals find them in the JSON.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import _by_metric, _by_task, _compare, _learning_figure, _likeliest
from benchmarks._figures import RESULTS, ROOT, Figure, report, write_json
from benchmarks._learning_figure import Panel
from benchmarks._spec import Spec, SpecError, read
from benchmarks.gpu import runs
from benchmarks.gpu.side_by_side import Task, run_all, slots

KINDS: Mapping[str, ModuleType] = {"metrics": _by_metric, "tasks": _by_task}
MODEL = Path("results/smollm2")
"""Where a pretrained model is looked for if none is given; `make experiments` puts it there."""
Row = dict[str, Any]


class Experiment:
    """A specification with what was asked on the command line."""

    def __init__(self, spec: Spec, options: argparse.Namespace) -> None:
        self.spec, self.hardware = spec, options.hardware or next(iter(spec.hardware))
        self.overrides: list[str] = options.overrides
        self.seeds: list[int] = options.seeds or spec.seeds
        if self.hardware not in spec.hardware:
            raise SpecError(f"--hardware {self.hardware}: this experiment is for {', '.join(spec.hardware)}")
        self.place = spec.hardware[self.hardware]
        usual = [name for name, arm in spec.arms.items() if not arm.only_asked]
        self.arms: list[str] = options.arms or self.place.arms or usual
        if unknown := [arm for arm in self.arms if arm not in spec.arms]:
            raise SpecError(f"--arms {unknown[0]}: this experiment has {', '.join(spec.arms)}")
        model: Path | None = options.model or (MODEL if self.place.needs_model else None)
        if self.place.needs_model and (said := runs.no_model(model)) is not None:
            raise SpecError(said)
        self.kind = KINDS[spec.rows]
        self.at_once: int = options.at_once or self.place.at_once
        self.work: Path = (options.work or Path("results") / self.place.result).absolute()
        self.out: Path = options.out or (
            (self.work if self.place.rehearsal else RESULTS) / f"{self.place.result}.json"
        )
        self.given: Path | None = model and model.absolute()
        # A start that begins with the given model is made all the same; otherwise the given one replaces it.
        made = self.place.start is not None and (self.place.needs_model or model is None)
        self.model: Path | None = self.work / "start" if made else self.given

    @property
    def single(self) -> bool:
        """One arm alone, as the specification has it: its table is not told apart by arm."""
        return len(self.spec.arms) == 1

    def keys(self, arm: str, seed: int | None = None) -> list[str]:
        """What a run is told beyond its domain's profile."""
        given = [f"+domain={self.spec.domain_of(arm)}", f"hardware={self.hardware}"]
        given += [f"model_path={self.model}"] if self.model is not None else []
        given += [f"seed={seed}"] if seed is not None else []
        tiny = self.spec.arms[arm].tiny if self.hardware == "cpu" else []
        told = [*self.place.keys, *self.spec.keys, *self.spec.keys_of(arm), *tiny, *self.overrides]
        after = str(self.work / f"{self.spec.arms[arm].after}_{seed}")
        return [*given, *(key.replace("{seed}", str(seed)).replace("{after}", after) for key in told)]

    def row_file(self, arm: str, seed: int | str) -> Path:
        return self.work / f"{arm}_{seed}.json"

    def wanted(self) -> Iterator[tuple[str, int | str, list[str]]]:
        """Arm, seed and keys of the runs without a row; the first seed of every arm before the second."""
        for arm in self.arms if self.spec.likeliest else ():
            if not self.row_file(arm, _likeliest.NAME).is_file():
                yield arm, _likeliest.NAME, [*self.keys(arm), *_likeliest.KEYS]
        for seed in self.seeds:
            for arm in self.arms:
                if not self.row_file(arm, seed).is_file():
                    yield arm, seed, self.keys(arm, seed)

    def is_later(self, arm: str) -> bool:
        """Whether its runs come after another arm's."""
        return self.spec.arms[arm].after is not None

    def may_begin(self, arm: str, seed: int | str, _: object) -> bool:
        """Whether the run that this one comes after has ended as it should."""
        after = self.spec.arms[arm].after
        return after is None or self.row_file(after, seed).is_file()

    def task(self, arm: str, seed: int | str, keys: list[str]) -> Task:
        """One run; its row is kept, and the table written behind it."""
        name, path = f"{arm}_{seed}", self.row_file(arm, seed)
        out = self.work / name
        if self.spec.anew:
            runs.fresh(out)

        def keep(status: int) -> bool:
            if self.hardware == "gpu":
                runs.keep(out, path)  # the machine may be given back
            if status == 0:
                with runs.survived(name):
                    write_json(path, self.row(arm, seed, out) | {"overrides": keys})
                    self.write()
            return path.is_file()

        return Task(name, runs.launcher(out, keys), self.work / f"{name}.log", keep)

    def row(self, arm: str, seed: int | str, out: Path) -> Row:
        """What a run reached."""
        if seed == _likeliest.NAME:
            return _likeliest.row_of(out)
        found: Row = self.kind.row_of(seed, out, self.spec, self.spec.arms[arm])
        return found

    def rows(self, names: Sequence[int | str]) -> dict[str, list[Row]]:
        """By arm what is finished of these seeds."""
        paths = {arm: [self.row_file(arm, name) for name in names] for arm in self.arms}
        found = {
            arm: [json.loads(path.read_text()) for path in of_arm if path.is_file()]
            for arm, of_arm in paths.items()
        }
        return {arm: rows for arm, rows in found.items() if rows}

    def figures(self, rows: Mapping[str, list[Row]], tables: Mapping[str, Any]) -> list[Figure]:
        """Of every arm, with the goals of the place."""
        found: list[Figure] = []
        for arm, of_arm in rows.items():
            found += self.kind.figures_of(of_arm, tables[arm], "" if self.single else f"{arm}: ")
        return [with_goal(figure, self.place.goals) for figure in found]

    def write(self) -> int:
        """Table and figure of what there is, and how many goals are missed; nothing before the first row."""
        rows = self.rows(self.seeds)
        if not rows:
            return 0
        own = self.spec.own_problems
        tables = {arm: self.kind.table_of(of_arm, own) for arm, of_arm in rows.items()}
        figures, beside = self.figures(rows, tables), dict[str, Any]()
        if self.spec.compare:
            beside = {"compared": _compare.compared(rows, self.spec.compare, own)}
            goals = self.place.goals
            figures += [with_goal(one, goals) for one in _compare.figures_of(beside["compared"])]
        if self.spec.likeliest:
            likely = {arm: found[0] for arm, found in self.rows([_likeliest.NAME]).items() if arm in rows}
            greedy = {arm: _likeliest.beside(rows[arm], one) for arm, one in likely.items()}
            figures += [figure for arm, one in greedy.items() for figure in _likeliest.figures_of(arm, one)]
            beside |= {"greedy": greedy, "greedy_rows": likely}
        settings = {
            "hardware": self.hardware,
            "seeds": {arm: [row["seed"] for row in of_arm] for arm, of_arm in rows.items()},
            "runs at a time": self.at_once,
        }
        missed = report(self.place.result, figures, settings, self.out)
        kept = json.loads(self.out.read_text()) | {"overrides": self.overrides} | beside
        flat = (tables.popitem()[1], rows[self.arms[0]]) if self.single else (tables, rows)
        write_json(self.out, kept | dict(zip(("table", "rows"), flat, strict=True)))
        _learning_figure.draw(panels(self.spec, rows), self.out.with_suffix(".png"))
        return missed


def panels(spec: Spec, rows: Mapping[str, list[Row]]) -> dict[str, Panel]:
    """The figure's panels by title, from the rows of each arm."""
    kind, found = KINDS[spec.rows], dict[str, Panel]()
    for metric, title in spec.together.items():
        lines = {arm: kind.panel(of_arm, metric).values() for arm, of_arm in rows.items()}
        found[title] = {arm: [run for one in of_arm for run in one] for arm, of_arm in lines.items()}
    for arm, of_arm in rows.items():
        shown = spec.arms[arm].shown or ({} if spec.together else {"success": "held-out problems"})
        for metric, title in shown.items():
            name = title if len(spec.arms) == 1 else arm if len(shown) == 1 else f"{arm}: {title}"
            found[name] = kind.panel(of_arm, metric)
    return found


def with_goal(figure: Figure, goals: Mapping[str, Mapping[Any, float]]) -> Figure:
    """The figure with the goal whose pattern its name fits, if there is one."""
    for pattern, goal in goals.items():
        if fnmatchcase(figure.name, pattern):
            ((way, limit),) = goal.items()
            return replace(figure, goal=limit, at_least=way == "at_least")
    return figure


def changed(one: Experiment) -> str | None:
    """What to say of a finished run that was asked for with other keys; rows of two kinds are no table."""
    for arm in one.arms:
        for seed in one.seeds:
            if (path := one.row_file(arm, seed)).is_file():
                before = json.loads(path.read_text())["overrides"]
                if other := sorted(set(before) ^ set(one.keys(arm, seed))):
                    return f"{path}: finished with other keys ({', '.join(other)}); use another --work"
    return None


def start_task(one: Experiment) -> list[Task]:
    """The bootstrap of the model that the runs begin with, unless it is there."""
    start, folder = one.place.start, one.work / "start"
    made = folder / "recipe.json"
    if start is None or one.model != folder or made.is_file():
        return []
    told = [key.replace("{model}", str(one.given)) for key in start.keys]
    keys = [f"+domain={start.domain}", f"hardware={one.hardware}", f"bootstrap.out={folder}", *told]
    command = [sys.executable, "-m", "pipelinerl.bootstrap", *keys]
    return [Task("start", command, one.work / "start.log", lambda _: made.is_file())]


def run(options: argparse.Namespace) -> int:
    """The experiment that `benchmarks.__main__` was asked for."""
    spec = read(options.spec)
    one, end = Experiment(spec, options), time.monotonic() + options.limit
    if (said := changed(one)) is not None:
        raise SpecError(said)
    runs.leave_in_order()
    one.work.mkdir(parents=True, exist_ok=True)
    if options.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.gpu
    os.environ["HF_HUB_OFFLINE"] = "1"
    if spec.pythonpath is not None:
        folders = [str(ROOT / spec.pythonpath), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    place = one.place
    if run_all(start_task(one), slots(one.hardware, 1), end, 0.0):
        places = slots(one.hardware, one.at_once, every_card=place.every_card, cores=place.cores)
        for later in (False, True):
            ready = [task for task in one.wanted() if one.is_later(task[0]) == later and one.may_begin(*task)]
            run_all([one.task(*wanted) for wanted in ready], places, end, place.least_s)
    missed = one.write()
    left = [f"{arm} {seed}" for arm, seed, _ in one.wanted()]
    print(f"left: {', '.join(left) or 'none'}", flush=True)
    return 1 if left or missed else 0
