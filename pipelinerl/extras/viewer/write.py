"""The page: `index.html` with its code, `index.js` with a row for each rollout, `chunk_N.js` with texts.

A browser does not let a page read files beside it, but it loads scripts from there: data lie in scripts that
call `page.index(...)` and `page.chunk(N, ...)`, loaded when they are needed. So the page opens from a disk,
over ssh, from an archive, without a server. Nothing comes from elsewhere, and the page's policy forbids it.
"""

import base64
import hashlib
import html
import math
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipelinerl.base.files import write_whole
from pipelinerl.domain import BaseDomain, Domain, load_domain
from pipelinerl.extras.viewer.export_eval import write_eval
from pipelinerl.extras.viewer.join import HEAD_CHARACTERS, GroupJoin, by_rollout, reward_parts, sampled_of
from pipelinerl.extras.viewer.select import GroupFacts, select
from pipelinerl.extras.viewer.source import (
    Evaluated,
    Measured,
    Record,
    RunSource,
    TextId,
    Trained,
    evaluation_of,
)
from pipelinerl.extras.viewer.tokens import TokenTexts
from pipelinerl.run_state.accounting import rollout_id

FOLDER = Path("report", "rollouts")
LIMIT = 2000
"""Rollouts of a page, unless more are asked for."""
_NOTHING = "there is no run, or none of its rollouts has ended"
MAX_BYTES = 48_000_000
"""Estimated size of a page; what it is made of is an estimate, so below the 60 MB that it must not exceed."""
CHUNK_BYTES = 800_000
COLUMNS = (
    *("run", "group", "attempt", "evaluated", "dataset", "version", "last", "reward", "success", "turns"),
    *("prompt_tokens", "output_tokens", "fate", "reason", "badge", "level", "chunk", "step", "advantage"),
    *("problem", "seconds", "retries", "question"),
)
"""Of a row of `index.js`."""
QUESTION_CHARACTERS = 160
"""Of a question in the list."""
LEVELS = ("info", "good", "warn", "bad")
PARTS = ("page.css", "page.js", "list.js", "tokens.js", "turns.js", "views.js", "keys.js")


@dataclass
class _Run:
    """One run on the page."""

    number: int
    source: RunSource
    domain: Domain
    chosen: set[str] = field(default_factory=set)
    trained: dict[TextId, Trained] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    total: int = 0


def write_page(
    output_dir: Path,
    domain: Domain | None = None,
    compare: Path | None = None,
    limit: int = LIMIT,
    folder: Path | None = None,
    report: bool = False,
) -> Path:
    """Write the page of a run, and of another one beside it; returns the path of `index.html`.

    `report`: the report as a page will lie beside its folder, and is linked. Raises
    FileNotFoundError without a run or without a rollout, StreamError or DamagedLine for damaged files.
    """
    folder = folder or output_dir / FOLDER
    paths = [output_dir, *([compare] if compare else [])]
    runs = [
        _Run(number, source := RunSource(path), _domain(source, domain if number == 0 else None))
        for number, path in enumerate(paths)
    ]
    for run in runs:
        _choose(run, limit // len(runs), MAX_BYTES // len(runs))
    for run in runs:
        if not run.chosen:
            raise FileNotFoundError(f"{run.source.output_dir}: {_NOTHING}")
    beside = folder.with_name(f"~{folder.name}")  # a page that cannot be finished leaves the one before
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    beside.chmod(_shown_to(paths))
    rows = _write_chunks(beside, runs)
    index = {
        "columns": COLUMNS,
        "runs": [_about(run) for run in runs],
        "report": report or (folder.parent / "index.html").is_file(),
        "rows": rows,
        "chunks": 1 + max(row[COLUMNS.index("chunk")] for row in rows),
    }
    write_whole(beside / "index.js", b"page.index(" + msgspec.json.encode(index) + b");\n")
    write_whole(beside / "index.html", page_text(output_dir.resolve().name))
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return folder / "index.html"


def export(output_dir: Path, path: Path, limit: int = LIMIT) -> int:
    """Write the rollouts of a page as a log of inspect; returns how many. Raises as `write_page`."""
    run = _Run(0, RunSource(output_dir), BaseDomain())
    _choose(run, limit, MAX_BYTES)
    if not run.chosen:
        raise FileNotFoundError(f"{output_dir}: {_NOTHING}")

    def reward(name: str) -> float | None:
        evaluated = evaluation_of(name.rpartition("/")[0])
        if evaluated is not None:
            return _evaluated_metrics(run.source, evaluated).get("reward")
        return run.measured[name].reward if name in run.measured else None

    return write_eval(path, run.source, run.chosen, run.trained, reward)


def _shown_to(paths: Sequence[Path]) -> int:
    """Permissions that all these folders give: what one of them hides stays hidden."""
    mode = 0o7777
    for path in paths:
        mode &= stat.S_IMODE(path.stat().st_mode)
    return mode


def _domain(source: RunSource, given: Domain | None) -> Domain:
    return given if given is not None else load_domain(source.tree.get("domain_hooks"))


def page_text(title: str) -> str:
    """`index.html`: the page with its style and its code, which a checksum names to the browser."""
    files = resources.files(__package__)
    style, *code = (files.joinpath(name).read_text(encoding="utf-8") for name in PARTS)
    script = "\n".join(code)
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    text = files.joinpath("page.html").read_text(encoding="utf-8")
    for mark, value in (
        ("@title@", html.escape(title)),
        ("@digest@", digest),
        ("@style@", style),
        ("@script@", script),
    ):
        text = text.replace(mark, value)
    return text


def _about(run: _Run) -> dict[str, Any]:
    """What the page's head says of a run."""
    source = run.source
    return {
        "name": source.output_dir.resolve().name,
        "complete": source.complete,
        "total": run.total,
        "all": source.keeps_all,
        "domain": source.tree.get("domain_name") or "",
        "model": str(source.tree.get("model_path") or ""),
        "attempts": source.tree.get("attempts"),
    }


def _choose(run: _Run, limit: int, max_bytes: int) -> None:
    """Read once over everything to select, then what training made of the selected texts."""
    advantages: dict[str, float] = {}
    for (group, _, _), values in run.source.trained():
        advantages[group] = max(advantages.get(group, 0.0), abs(values.advantage))
    run.measured = run.source.measured()
    failed: dict[str, int] = {}
    for name, measured in run.measured.items():
        if measured.ending == "failed":
            group = name.rpartition("/")[0]
            failed[group] = failed.get(group, 0) + 1
    facts = [_facts(records, order, advantages, failed) for order, records in enumerate(run.source.groups())]
    run.total = sum(one.rollouts for one in facts)
    run.chosen = select(facts, limit, max_bytes)
    for text, values in run.source.trained():
        if text[0] in run.chosen:
            run.trained[text] = values


def _facts(
    records: Sequence[Record], order: int, advantages: Mapping[str, float], failed: Mapping[str, int]
) -> GroupFacts:
    group = str(records[0]["group_id"])
    rewards = [record["reward"] for record in records]
    parts = [value for record in records for _, value in reward_parts(record["metadata"])]
    return GroupFacts(
        id=group,
        order=order,
        version=min(record["metadata"].get("model_version", 0) for record in records),
        evaluated=evaluation_of(group),
        rollouts=len({record["metadata"]["rollout_index"] for record in records}),
        size=_estimated_size(records),
        spread=max(rewards) - min(rewards),
        advantage=advantages.get(group, 0.0),
        longest=max(len(record["input_ids"]) for record in records),
        penalty=min(0.0, *parts) if parts else 0.0,
        failed=failed.get(group, 0),
    )


def _estimated_size(records: Sequence[Record]) -> int:
    """Bytes of a group on the page, rather too many: prompts that begin alike are stored once.

    A sampled token has an id, two log-probabilities of six characters and, at worst, a text of its own.
    """
    size = sum(
        len(record["text"]) - record["n_predicted"] + 24 * len(record["logprobs"]) for record in records
    )
    size += sum(len(repr(record["metadata"])) + 400 for record in records)
    return size + 2 * HEAD_CHARACTERS * len({record["metadata"]["rollout_index"] for record in records})


def _write_chunks(folder: Path, runs: Sequence[_Run]) -> list[list[Any]]:
    """Write the texts, some groups to a file, and return a row for each rollout."""
    rows: list[list[Any]] = []
    number = 0
    for run in runs:
        began, trained = run.source.tree.get("model_path"), run.source.output_dir / "finetune/current"
        join = GroupJoin(TokenTexts(str(began or ""), str(trained)))
        notes_of = run.domain.rollout_notes(run.source.output_dir)
        held: list[bytes] = []
        for group_id, records in _chosen_groups(run):
            group = join.group(group_id, records, run.trained, notes_of) | {"run": run.number}
            rows += _rows(run, group, records, number)
            held.append(msgspec.json.encode(group))
            if sum(map(len, held)) > CHUNK_BYTES:
                _write_chunk(folder, number, held, join)
                number += 1
        if held:
            _write_chunk(folder, number, held, join)
            number += 1
        rows += _rows_without_texts(run, {row[1] + "/" + str(row[2]) for row in rows if row[0] == run.number})
    return rows


def _chosen_groups(run: _Run) -> Iterator[tuple[str, list[Record]]]:
    for records in run.source.groups():
        if (group := str(records[0]["group_id"])) in run.chosen:
            yield group, records


def _write_chunk(folder: Path, number: int, held: list[bytes], join: GroupJoin) -> None:
    vocabulary = msgspec.json.encode([[*join.vocabulary], [*join.vocabulary.values()]])
    body = b"".join((b"page.chunk(%d,{" % number, b'"vocabulary":', vocabulary, b',"groups":['))
    write_whole(folder / f"chunk_{number}.js", [body, b",\n".join(held), b"]});\n"])
    held.clear()
    join.vocabulary.clear()


def _rows(run: _Run, group: dict[str, Any], records: Sequence[Record], chunk: int) -> Iterator[list[Any]]:
    """The list's line for each attempt of a group."""
    evaluated = evaluation_of(group["id"])
    for attempt, texts in zip(group["attempts"], by_rollout(records).values(), strict=True):
        name = rollout_id(group["id"], attempt["i"])
        measured = run.measured.get(name)
        metrics = _evaluated_metrics(run.source, evaluated) if evaluated else {}
        rewards = [record["reward"] for record in texts]
        spans = [span[0] for record in texts for span in record["weight_versions"]]
        steps = [turn["step"] for turn in attempt["turns"] if "step" in turn]
        advantages = [turn["adv"] for turn in attempt["turns"] if turn.get("adv") is not None]
        marked = [note for note in attempt["notes"] if note.get("badge")]
        worst = max(marked, key=lambda note: LEVELS.index(note["level"]), default={"badge": "", "level": ""})
        fate, reason = run.source.accounting.outcome(name)
        reward = metrics.get("reward", measured.reward if measured else None)
        success = metrics.get("success", measured.success if measured else None)
        yield [
            *(run.number, group["id"], attempt["i"], None if evaluated is None else evaluated.version),
            (measured.dataset or measured.domain if measured else None),
            *(min(spans, default=0), max(spans, default=0)),
            *(_short(float(np.mean(rewards)) if reward is None else reward), _short(success), len(texts)),
            *(sum(int((~sampled_of(r)).sum()) for r in texts), sum(len(r["logprobs"]) for r in texts)),
            *(fate, reason, worst["badge"], worst["level"], chunk, max(steps, default=None)),
            _short(max(advantages, key=abs, default=None)),
            (evaluated.problem if evaluated else measured.problem if measured else None),
            *((round(measured.seconds, 2), measured.retries) if measured else (None, None)),
            " ".join(attempt["question"].split())[:QUESTION_CHARACTERS],
        ]


def _rows_without_texts(run: _Run, shown: set[str], most: int = 200) -> Iterator[list[Any]]:
    """Rollouts that ended without a text, such as failed ones: the list says why."""
    missing = (name for name, one in run.measured.items() if one.ending != "done" and name not in shown)
    for _, name in zip(range(most), missing, strict=False):
        measured, (group, _, index) = run.measured[name], name.rpartition("/")
        fate, reason = run.source.accounting.outcome(name)
        row: dict[str, Any] = {
            "run": run.number,
            "group": group,
            "attempt": int(index),
            "turns": 0,
            "chunk": -1,
            "dataset": measured.dataset or measured.domain,
            "fate": fate or measured.ending,
            "reason": reason or measured.reason,
            "problem": measured.problem,
            "badge": "",
            "level": "",
            "prompt_tokens": 0,
            "output_tokens": 0,
            "version": 0,
            "last": 0,
            "seconds": round(measured.seconds, 2),
            "retries": measured.retries,
            "success": measured.success,
            "question": "",
        }
        yield [row.get(column) for column in COLUMNS]


def _evaluated_metrics(source: RunSource, evaluated: Evaluated) -> dict[str, float | None]:
    """The rollout's own metrics, where its pass is complete."""
    start, version, problem = evaluated
    values = source.evaluations.get((start, version)) or source.evaluations.get(("", version), {})
    return {name: column[problem] for name, column in values.items() if problem < len(column)}


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
