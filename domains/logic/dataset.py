"""The loader of `logic`: families of reasoning-gym under upstream's task names, or published rows.

The published data set is PrimeIntellect/INTELLECT-3-RL, part `logic`: rows `{question, info}` whose `info` is
JSON with `task` and `game_data_str`. Nothing is downloaded.
"""

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from domains.logic.published import check, parsed
from domains.reasoning_gym.data import load_problems as generated_problems
from domains.rows import ENDINGS, find_file, rows
from domains.split import GENERATED, split_rows
from pipelinerl.base.errors import suggestion

logger = logging.getLogger(__name__)

Problem = dict[str, Any]
DOMAIN = "logic"
FAMILIES = {
    "boolean_expressions": "circuit_logic",
    "cipher": "caesar_cipher",
    "cryptarithm": "cryptarithm",
    "date_understanding": "calendar_arithmetic",
    "formal_fallacies": "syllogism",
    "futoshiki": "futoshiki",
    "game_of_24": "puzzle24",
    "kukurasu": "kakurasu",
    "object_counting": "leg_counting",
    "sudoku": "mini_sudoku",
    "survo": "survo",
    "time_sequence": "time_intervals",
    "web_of_lies": "knights_knaves",
    "word_sorting": "word_sorting",
    "zebra_puzzle": "zebra_puzzles",
}
"""Upstream's tasks, and the family of reasoning-gym that is most like each; its questions are others."""
TRAIN, TEST = ("train", "logic", "logic_train"), ("test", "logic_test")
PUBLISHED = "INTELLECT-3-RL"
_NO_FILE = (
    "put the published rows there, or leave dataset_loader_params.data_dir out for families of reasoning-gym"
)
Tasks = Mapping[str, Mapping[str, Any] | None]
DEFAULT: Tasks = {"web_of_lies": {}, "word_sorting": {}, "formal_fallacies": {}, "date_understanding": {}}


def load_problems(
    dataset_names: Sequence[str] | str | None,
    tasks: Tasks | None = None,
    count: int = 500,
    test_count: int = 50,
    held_out: float = 0.2,
    data_dir: str | None = None,
    skip_unknown: bool = False,
    tasks_to_skip: Sequence[str] | None = None,
    max_examples: int | None = None,
    test_size: int | None = None,
    train_ratio: float = 0.9,
    subset: str | None = None,
    min_difficulty: float | None = 0.0,
    max_difficulty: float | None = 1.0,
    difficulty_column: str = "avg@16_qwen3_4b_instruct_2507",
    seed: int | None = None,
    dataset_id: str | None = None,
    dataset_config: str | None = None,
    split: str | None = None,
    huggingface_token: str | None = None,
) -> list[Problem]:
    """Problems `{id, task, reward_context, dataset, domain, logic_task}` of all names in their order.

    Without `data_dir`, `tasks` (task: options of its family) are generated as in `reasoning_gym`. With it, a
    name's file there is read: `test_size` rows, or the share that `train_ratio` leaves, are the evaluation's
    by a fixed order; of both parts, those outside of the difficulties or of `tasks_to_skip` are left out.
    `seed` shuffles, `max_examples` cuts. `split=test`, by which a loader of several domains asks for it, is
    the evaluation's part; of a file that is named with its ending, `split=train` is the other. The other last
    arguments name the published data set on its hub, which has no split but `train`; `dataset_id` without
    `data_dir` is refused. Raises ValueError in one line.
    """
    names = [dataset_names] if isinstance(dataset_names, str) else list(dataset_names or ["logic"])
    skipped = set(tasks_to_skip or ())
    if subset not in (None, "train", "test"):
        raise ValueError(f"subset={subset}: choose train or test")
    if data_dir is None and dataset_id is not None:
        raise ValueError(
            f"dataset_id={dataset_id}: nothing is downloaded; set dataset_loader_params.data_dir to a folder "
            "with its rows as INTELLECT-3-RL.jsonl, or dataset_id=null for families of reasoning-gym"
        )
    problems: list[Problem] = []
    for name in map(str, names):
        if data_dir is None and Path(name).suffix not in ENDINGS:
            chosen = {task: options for task, options in (tasks or DEFAULT).items() if task not in skipped}
            found = _generated(name, _part(name, split), chosen, count, test_count, held_out)
            logger.info(GENERATED, name, len(found), "test_size, train_ratio, subset and difficulties")
        else:
            limits = (min_difficulty, max_difficulty)
            read = _from_file(
                find_file(name, data_dir, _NO_FILE, PUBLISHED),
                name,
                skipped,
                skip_unknown,
                limits,
                difficulty_column,
            )
            found = split_rows(list(read), _part(name, split, subset), train_ratio, test_size)
        if seed is not None:
            random.Random(seed).shuffle(found)
        problems += found[:max_examples]
    return problems


load_datasets = load_problems
"""The name by which upstream's loaders of several domains know it."""


def _part(name: str, split: str | None, subset: str | None = None) -> str:
    if Path(name).suffix in ENDINGS:
        return split or "all"
    if name in TRAIN or name in TEST:
        return "test" if name in TEST or split == "test" else subset or "train"
    raise ValueError(f"dataset {name!r}: name {', '.join((*TRAIN, *TEST))}, or a file")


def _generated(
    name: str, part: str, tasks: Tasks, count: int, test_count: int, held_out: float
) -> list[Problem]:
    for task in tasks:
        if task not in FAMILIES:
            raise ValueError(f"tasks.{task}: no such task; {suggestion(task, FAMILIES)}")
    upstream = {FAMILIES[task]: task for task in tasks}
    wanted = {FAMILIES[task]: options for task, options in tasks.items()}
    found = generated_problems([part], wanted, count, test_count, held_out)
    return [
        {
            "id": f"{name}/{upstream[one['task']]}-{number}",
            "task": one["question"],
            "reward_context": {key: one[key] for key in ("task", "options", "seed", "index", "question")},
            "dataset": f"{name}/{upstream[one['task']]}",
            "domain": DOMAIN,
            "logic_task": upstream[one["task"]],
        }
        for number, one in enumerate(found)
    ]


def _from_file(
    path: Path,
    name: str,
    skipped: set[str],
    skip_unknown: bool,
    limits: tuple[float | None, float | None],
    column: str,
) -> Iterator[Problem | None]:
    """A problem for each row, None for one that is left out."""
    number = 0
    for where, row in rows(path):
        try:
            question, task, data = read_row(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if task in skipped or not _within(row.get(column), limits):
            yield None
            continue
        try:
            check(task, parsed(data))
        except ValueError as error:
            if skip_unknown:
                yield None
                continue
            raise ValueError(f"{where}: {error}") from None
        yield {
            "id": f"{name}-{number}",
            "task": question,
            "reward_context": {"task": task, "game_data": data},
            "dataset": f"{name}@{task}",
            "domain": DOMAIN,
            "logic_task": task,
        }
        number += 1
    if not number:
        raise ValueError(f"{path}: holds no row of a task that is judged here")


def read_row(row: Any) -> tuple[str, str, Any]:
    """Question, task and game data of a row. Raises ValueError saying what is missing."""
    if not isinstance(row, Mapping):
        raise ValueError(f"a {type(row).__name__}, expected an object")
    info = row.get("info")
    try:
        info = json.loads(info) if isinstance(info, str) else info
    except ValueError:
        info = None
    question = row.get("question")
    if not isinstance(question, str) or not question or not isinstance(info, Mapping):
        raise ValueError("expected {question, info}, with info as JSON (INTELLECT-3-RL, logic)")
    data = info.get("game_data_str") or info.get("game_data")
    if not info.get("task") or data is None:
        raise ValueError("info: expected task and game_data_str or game_data")
    return question, str(info["task"]), data


def _within(value: Any, limits: tuple[float | None, float | None]) -> bool:
    """Rows without a difficulty are kept."""
    low, high = limits
    return value is None or ((low is None or value >= low) and (high is None or value <= high))
