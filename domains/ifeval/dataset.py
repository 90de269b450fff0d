"""The loader of `ifeval`: prompts of local files in two published forms, or generated ones.

`google/IFEval`: rows `{key, prompt, instruction_id_list, kwargs}`. `allenai/IF_multi_constraints_upto5`: rows
`{key, messages, ground_truth, constraint_type}`, whose `ground_truth` is Python text. Nothing is downloaded.
"""

import ast
import itertools
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from domains.ifeval.instructions import arguments_of, contradiction
from domains.ifeval.writing import WRITINGS, write
from domains.rows import ENDINGS, asked, find_file, rows
from domains.split import GENERATED, check_counts, is_held_out, split_rows
from pipelinerl.base.errors import suggestion

logger = logging.getLogger(__name__)

Problem = dict[str, Any]
DOMAIN = "ifeval"
TRAIN, TEST = ("train", "ifeval", "ifeval_train"), ("test", "ifeval_test")
EVALUATION = "google_ifeval"
PUBLISHED = {
    **dict.fromkeys((*TRAIN, *TEST), "IF_multi_constraints_upto5"),
    EVALUATION: "input_data",
}
"""File, without its ending, in which a name's rows are published."""
PATIENCE = 10_000
_NO_FILE = (
    "put the published file there, or leave dataset_loader_params.data_dir out and prompts are generated"
)
_PIECE = re.compile(r"\w+|[^\w\s]")


def load_problems(
    dataset_names: Sequence[str] | str | None,
    data_dir: str | None = None,
    instructions: Sequence[str] | None = None,
    count: int = 2000,
    test_count: int = 200,
    held_out: float = 0.2,
    max_constraints: int | None = None,
    max_examples: int | None = None,
    test_size: int | None = 550,
    train_ratio: float = 0.994,
    subset: str | None = None,
    split: str | None = None,
    seed: int | None = None,
    max_prompt_tokens: int | None = None,
    skip_unknown: bool = False,
    huggingface_token: str | None = None,
) -> list[Problem]:
    """Problems `{id, task, reward_context, dataset, domain, num_constraints}` of all names in their order.

    `reward_context` is `{instruction_id_list, kwargs}`. Without `data_dir` the names `train`, `ifeval` and
    `ifeval_train` mean `count` generated prompts, `test` and `ifeval_test` `test_count` others, with at most
    `max_constraints` (3) of `instructions` (all); a name with an ending is a file. From files: of the
    training set, `test_size` prompts (or the share that `train_ratio` leaves) are the evaluation's, by a
    fixed order; `subset` is the part that names of the training set mean, and `split`, by which a loader of
    several domains asks for one, the part of any name; `seed` shuffles, `max_examples` cuts,
    `max_prompt_tokens` drops prompts of more words and marks, `skip_unknown` those with other instructions.
    `huggingface_token` is taken because upstream's files give it; nothing is downloaded. Raises ValueError
    in one line, with file and row.
    """
    names = [dataset_names] if isinstance(dataset_names, str) else list(dataset_names or ["ifeval"])
    chosen = list(WRITINGS) if instructions is None else list(instructions)
    for unknown in [name for name in chosen if name not in WRITINGS]:
        raise ValueError(f"instructions: {unknown!r} cannot be generated; {suggestion(unknown, WRITINGS)}")
    check_counts(count, test_count, held_out)
    if not chosen:
        raise ValueError("instructions=[]: name one that can be generated")
    for given in (subset, split):
        if given not in (None, "train", "test", "all"):
            raise ValueError(f"subset={given}: choose train, test or all")
    problems: list[Problem] = []
    for name in map(str, names):
        if data_dir is None and Path(name).suffix not in ENDINGS:
            if name == EVALUATION:  # generated prompts would be another evaluation
                raise _no_data(name)
            most, of = max_constraints or 3, (split or _part(name, subset))
            found = list(_generated(name, of, chosen, count if of != "test" else test_count, held_out, most))
            logger.info(GENERATED, name, len(found), "test_size, train_ratio and seed")
        else:
            path = find_file(name, data_dir, _NO_FILE, *filter(None, [PUBLISHED.get(name)]))
            divided = name != EVALUATION and Path(name).suffix not in ENDINGS
            part = split or (_part(name, subset) if divided else "all")
            read = list(_from_file(path, name, max_constraints or None, skip_unknown))
            found = split_rows(read, part, train_ratio, test_size)
            if seed is not None:
                random.Random(seed).shuffle(found)
        if max_prompt_tokens is not None:
            found = [row for row in found if len(_PIECE.findall(row["task"])) <= max_prompt_tokens]
        problems += found[:max_examples]
    return problems


load_datasets = load_problems
"""The name by which upstream's loaders of several domains know it."""


def _part(name: str, subset: str | None) -> str:
    if name in TEST:
        return "test"
    if subset is not None or name in TRAIN:
        return subset or "train"
    raise _no_data(name)


def _no_data(name: str) -> ValueError:
    others = ", ".join(sorted(PUBLISHED.keys() - {name, EVALUATION}))
    return ValueError(
        f"dataset {name!r}: give a file, set dataset_loader_params.data_dir to the folder of {name}, or use "
        f"one of {others}"
    )


def _problem(name: str, number: int, task: str, ids: Sequence[str], kwargs: Sequence[Any]) -> Problem:
    return {
        "id": f"{name}-{number}",
        "task": task,
        "reward_context": {"instruction_id_list": list(ids), "kwargs": list(kwargs)},
        "dataset": name,
        "domain": DOMAIN,
        "num_constraints": len(ids),
    }


def _generated(
    name: str, part: str, allowed: Sequence[str], count: int, share: float, most: int
) -> Iterator[Problem]:
    rng = random.Random(f"ifeval {name}")
    made = (write(rng, allowed, most) for _ in itertools.count())
    seen, since, number = set[str](), 0, 0
    while number < count and since < PATIENCE:
        one, since = next(made), since + 1
        if part != "all" and is_held_out(one.prompt, share) != (part == "test"):
            continue
        if part == "test" and one.prompt in seen:
            continue
        seen.add(one.prompt)
        yield _problem(name, number, one.prompt, one.names, one.kwargs)
        number, since = number + 1, 0


def _from_file(path: Path, name: str, most: int | None, skip_unknown: bool) -> Iterator[Problem | None]:
    """A problem for each row, None for one that is left out."""
    number = 0
    for where, row in rows(path):
        try:
            task, ids, kwargs = read_row(row)
            ids, kwargs = ids[:most], kwargs[:most]
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        try:
            checked = [arguments_of(id_, given) for id_, given in zip(ids, kwargs, strict=True)]
            if (both := contradiction(ids, checked)) is not None:
                raise ValueError(f"no response follows both: {both}")
        except ValueError as error:
            if skip_unknown:
                yield None
                continue
            raise ValueError(f"{where}: {error}; skip_unknown=true leaves such prompts out") from None
        yield _problem(name, number, task, ids, checked)
        number += 1
    if not number:
        raise ValueError(f"{path}: holds no prompt whose instructions are known")


def read_row(row: Any) -> tuple[str, list[str], list[Mapping[str, Any] | None]]:
    """Prompt, instructions and their arguments, of a row in either form. Raises ValueError otherwise."""
    if not isinstance(row, Mapping):
        raise ValueError(f"a {type(row).__name__}, expected an object")
    if "instruction_id_list" in row:
        task, ids, kwargs = row.get("prompt"), row["instruction_id_list"], row.get("kwargs")
    else:
        try:
            messages = row["messages"]
            (truth,) = ast.literal_eval(row["ground_truth"])
            ids, kwargs = truth["instruction_id"], truth["kwargs"]
        except (KeyError, IndexError, TypeError, ValueError, SyntaxError):
            raise ValueError(
                "neither {prompt, instruction_id_list, kwargs} (IFEval) nor {messages, ground_truth} "
                "(IF_multi_constraints_upto5)"
            ) from None
        task = asked(messages, "messages")
    if not isinstance(task, str) or not task.strip():
        raise ValueError(f"prompt {str(task)[:60]!r}: expected a text")
    if not isinstance(ids, list) or not ids or not isinstance(kwargs, list) or len(ids) != len(kwargs):
        raise ValueError("instruction_id_list and kwargs: expected lists of one length, not empty")
    return task, [str(id_) for id_ in ids], list(kwargs)
