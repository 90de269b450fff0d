"""A learning experiment from its specification: arms, seeds, keys, figures and goals; `benchmarks.__main__`.

Each file of `benchmarks/specs` is one experiment, and this is the only code that runs them. What a run
reached becomes a row; rows of an arm become a table with 95 % intervals over held-out problems, which all
seeds share. Two kinds of rows exist: `metrics` keeps several metrics (`_by_metric.py`), `tasks` success by
group of problems (`_by_task.py`). An experiment with one arm keeps `table` and `rows` flat, with several by
arm, so that documents and goals find them in the JSON.
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
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks import _by_metric, _by_task, _learning_figure, _likeliest
from benchmarks._figures import RESULTS, ROOT, Figure, report, write_json
from benchmarks.gpu import runs
from benchmarks.gpu.side_by_side import Task, run_all, slots

SPECS = Path(__file__).with_name("specs")
KINDS: Mapping[str, ModuleType] = {"metrics": _by_metric, "tasks": _by_task}
Row = dict[str, Any]


class SpecError(ValueError):
    """What cannot be run, in one line."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Part):
    """One way to train; its name is the domain's."""

    keys: list[str] = []
    tiny: list[str] = []
    """Beside them on a CPU, where the experiment is one of cards."""
    shown: dict[str, str] = {"success": "held-out problems"}
    """Panels of the figure: metric and title."""


class Place(_Part):
    """What holds on one kind of hardware."""

    result: str
    """Name of the results' files."""
    keys: list[str] = []
    at_once: int = 1
    """Runs at a time: on each card, or with `every_card` on all cards together."""
    every_card: bool = False
    """Each run uses all visible cards."""
    cores: int | None = None
    """Of a CPU for each of several runs at a time."""
    least_s: float = 0.0
    """With less time left no run is begun."""
    rehearsal: bool = False
    """At a tiny size, for other hardware: the results go beside the runs."""
    goals: dict[str, dict[Literal["at_least", "at_most"], float]] = {}
    """By name of a figure, in which `*` stands for anything."""


class Start(_Part):
    """A model that is made before the first run, by the bootstrap."""

    domain: str
    keys: list[str]


class Spec(_Part):
    """One experiment."""

    about: str
    """What is asked, in a sentence."""
    rows: Literal["metrics", "tasks"]
    seeds: list[int]
    arms: dict[str, Arm]
    hardware: dict[Literal["cpu", "gpu"], Place]
    """The first is the default."""
    keys: list[str] = []
    """Of every run."""
    needs_model: bool = False
    """Whether `--model` has to be given, the folder of a pretrained model; else the domain's own is used."""
    start: Start | None = None
    anew: bool = False
    """A run that was ended begins anew, because its minutes count."""
    likeliest: bool = False
    """Asks the start for its most likely answers too."""
    pythonpath: str | None = None
    """A folder of the repository where a domain looks for what it is asked for."""


def read(name: str) -> Spec:
    """The specification of this name or path; SpecError if there is none or it says something unknown."""
    path = Path(name) if name.endswith(".yaml") else SPECS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in SPECS.glob("*.yaml")))
        raise SpecError(f"{name}: no such specification; there are {known}, or give the path of a .yaml")
    try:
        return Spec(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


class Experiment:
    """A specification with what was asked on the command line."""

    def __init__(self, spec: Spec, options: argparse.Namespace) -> None:
        self.spec, self.hardware = spec, options.hardware or next(iter(spec.hardware))
        self.overrides: list[str] = options.overrides
        self.seeds: list[int] = options.seeds or spec.seeds
        self.arms: list[str] = options.arms or list(spec.arms)
        if self.hardware not in spec.hardware:
            raise SpecError(f"--hardware {self.hardware}: this experiment is for {', '.join(spec.hardware)}")
        if unknown := [arm for arm in self.arms if arm not in spec.arms]:
            raise SpecError(f"--arms {unknown[0]}: this experiment has {', '.join(spec.arms)}")
        if spec.needs_model and (said := runs.no_model(options.model)) is not None:
            raise SpecError(said)
        self.place = spec.hardware[self.hardware]
        self.kind = KINDS[spec.rows]
        self.at_once: int = options.at_once or self.place.at_once
        self.work: Path = (options.work or Path("results") / self.place.result).absolute()
        self.out: Path = options.out or (
            (self.work if self.place.rehearsal else RESULTS) / f"{self.place.result}.json"
        )
        self.model: Path | None = options.model and options.model.absolute()
        if spec.start is not None and self.model is None:
            self.model = self.work / "start"

    @property
    def single(self) -> bool:
        """One arm alone, as the specification has it: its table is not told apart by arm."""
        return len(self.spec.arms) == 1

    def keys(self, arm: str, seed: int | None = None) -> list[str]:
        """What a run is told beyond its domain's profile."""
        one = self.spec.arms[arm]
        given = [f"+domain={arm}", f"hardware={self.hardware}"]
        given += [f"model_path={self.model}"] if self.model is not None else []
        given += [f"seed={seed}"] if seed is not None else []
        tiny = one.tiny if self.hardware == "cpu" else []
        return [*given, *self.place.keys, *self.spec.keys, *one.keys, *tiny, *self.overrides]

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

    def task(self, arm: str, seed: int | str, keys: list[str]) -> Task:
        """One run; its row is kept, and the table written behind it."""
        name, path = f"{arm}_{seed}", self.row_file(arm, seed)
        out = self.work / name
        if self.spec.anew:
            runs.fresh(out)

        def keep(status: int) -> bool:
            if status == 0:
                with runs.survived(name):
                    found = _likeliest.row_of(out) if seed == _likeliest.NAME else self.kind.row_of(seed, out)
                    write_json(path, found | {"overrides": keys})
                    self.write()
            return path.is_file()

        return Task(name, runs.launcher(out, keys), self.work / f"{name}.log", keep)

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
        tables = {arm: self.kind.table_of(of_arm) for arm, of_arm in rows.items()}
        figures, beside = self.figures(rows, tables), {}
        if self.spec.likeliest:
            likely = {arm: found[0] for arm, found in self.rows([_likeliest.NAME]).items() if arm in rows}
            greedy = {arm: _likeliest.beside(rows[arm], one) for arm, one in likely.items()}
            figures += [figure for arm, one in greedy.items() for figure in _likeliest.figures_of(arm, one)]
            beside = {"greedy": greedy, "greedy_rows": likely}
        settings = {
            "hardware": self.hardware,
            "seeds": {arm: [row["seed"] for row in of_arm] for arm, of_arm in rows.items()},
            "runs at a time": self.at_once,
        }
        missed = report(self.place.result, figures, settings, self.out)
        kept = json.loads(self.out.read_text()) | {"overrides": self.overrides} | beside
        flat = (tables.popitem()[1], rows[self.arms[0]]) if self.single else (tables, rows)
        write_json(self.out, kept | dict(zip(("table", "rows"), flat, strict=True)))
        self.draw(rows)
        return missed

    def draw(self, rows: Mapping[str, list[Row]]) -> None:
        panels = {}
        for arm, of_arm in rows.items():
            for metric, title in self.spec.arms[arm].shown.items():
                panels[title if self.single else arm] = self.kind.panel(of_arm, metric)
        _learning_figure.draw(panels, self.out.with_suffix(".png"))


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
    start, folder = one.spec.start, one.work / "start"
    made = folder / "recipe.json"
    if start is None or one.model != folder or made.is_file():
        return []
    keys = [f"+domain={start.domain}", f"hardware={one.hardware}", f"bootstrap.out={folder}", *start.keys]
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
        run_all([one.task(*wanted) for wanted in one.wanted()], places, end, place.least_s)
    missed = one.write()
    left = [f"{arm} {seed}" for arm, seed, _ in one.wanted()]
    print(f"left: {', '.join(left) or 'none'}", flush=True)
    return 1 if left or missed else 0
