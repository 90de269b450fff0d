"""The loader of `fn_calling`: BFCL's problems from its package's data, rows of its form, or generated ones.

Names are SOURCE or SOURCE@PART, a part being train, validation or test: `fn_calling@train` is generated,
`bfcl@test` all of BFCL's single-turn categories, `bfcl_parallel@test` one of them, anything with an ending a
file. Nothing is downloaded: the wheel `bfcl-eval` is read as data, installed or as a file.
"""

import itertools
import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from domains.fn_calling.compare import example, is_call
from domains.fn_calling.problems import CATEGORIES, Category, make
from domains.rows import ENDINGS, parsed_lines, rows
from domains.split import check_counts, is_held_out

logger = logging.getLogger(__name__)

Problem = dict[str, Any]
DOMAIN = "fn_calling"
BFCL = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
    "simple_java",
    "simple_javascript",
)
"""Its categories of one turn."""
REMEDY = (
    "pip install --no-deps bfcl-eval==2026.3.23, or set dataset_loader_params.data_dir to its wheel or data"
)
PARTS = ("train", "validation", "test", "all")
PATIENCE = 10_000


def load_problems(
    dataset_names: Sequence[str] | str | None,
    data_dir: str | None = None,
    categories: Sequence[Category] = CATEGORIES,
    count: int = 1000,
    test_count: int = 100,
    held_out: float = 0.2,
    max_examples_per_split: int | None = None,
    seed: int | None = None,
    split: str | None = None,
    dataset_id: str | None = None,
    dataset_config: str | None = None,
    split_ratios: Mapping[str, float] | None = None,
    allowed_call_types: Sequence[str] | None = None,
    trust_remote_code: bool = False,
    huggingface_token: str | None = None,
) -> list[Problem]:
    """Problems `{id, task, extra_info, reward_context, dataset, domain}` of all names in their order.

    `extra_info.oai_tools` are the functions, `reward_context` is `{category, function, ground_truth}`. Of
    each of `categories`, `count` problems are generated for `train` and `test_count` others for `validation`
    and `test`; of BFCL and of files, `held_out` is the share of the problems that only these two ask. `seed`
    shuffles, `max_examples_per_split` cuts. `split`, by which a loader of several domains asks for a part, is
    that of names without one. The other arguments are those of upstream's files, whose data set
    is not public: naming one by `dataset_id` is refused. Raises ValueError in one line.
    """
    if dataset_id is not None:
        raise ValueError(
            f"dataset_id={dataset_id}: nothing is downloaded; set dataset_loader_params.dataset_id=null and "
            "name bfcl@train, a file of rows in BFCL's form, or fn_calling@train, which is generated"
        )
    unknown = [category for category in categories if category not in CATEGORIES]
    if unknown or not categories:
        raise ValueError(f"categories={list(categories)}: choose from {', '.join(CATEGORIES)}")
    check_counts(count, test_count, held_out)
    if split_ratios is not None:
        logger.info("split_ratios is not read; held_out=%s is the share of validation and test", held_out)
    if allowed_call_types:
        logger.info("allowed_call_types is not read; categories and the names of datasets choose")
    names = [dataset_names] if isinstance(dataset_names, str) else list(dataset_names or [DOMAIN])
    if split is not None and split not in PARTS:
        raise ValueError(f"split={split}: a part is {', '.join(PARTS)}")
    problems: list[Problem] = []
    for name in map(str, names):
        source, named = _source(name)
        part = named or split or "all"
        if source == DOMAIN:
            many = count if part in ("train", "all") else test_count
            found = [row for one in categories for row in _generated(one, part, many, held_out)]
        else:
            read = _bfcl(source, data_dir) if source.startswith("bfcl") else _from_file(source, data_dir)
            found = [row for row in read if _belongs(row, part, held_out)]
        if seed is not None:
            random.Random(seed).shuffle(found)
        problems += [_problem(name, at, row) for at, row in enumerate(found[:max_examples_per_split])]
    return problems


load_datasets = load_problems
"""The name by which upstream's loaders of several domains know it."""


def _source(name: str) -> tuple[str, str]:
    """Where problems come from, and the part, "" for a name without one."""
    source, _, part = name.partition("@")
    if not part and source in ("train", "test"):  # what every domain of this repository calls them
        source, part = DOMAIN, source
    source = DOMAIN if source in (DOMAIN, "fn-calling", "fncalling") else source
    if (part or "all") not in PARTS:
        raise ValueError(f"dataset {name!r}: a part is {', '.join(PARTS)}")
    bfcl = source == "bfcl" or source.removeprefix("bfcl_") in BFCL
    if source != DOMAIN and not bfcl and Path(source).suffix not in ENDINGS:
        raise ValueError(
            f"dataset {name!r}: name fn_calling, bfcl, bfcl_ and one of {', '.join(BFCL)}, or a file"
        )
    return source, part


def _belongs(row: Mapping[str, Any], part: str, share: float) -> bool:
    if part == "all":
        return True
    key = json.dumps([row["question"], row["function"]], sort_keys=True)
    if not is_held_out(key, share):
        return part == "train"
    return part == ("test" if is_held_out(f"part {key}", 0.5) else "validation")


def _generated(category: Category, part: str, count: int, share: float) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"fn_calling {category} {part}")
    seen, since, found = set[str](), 0, 0
    for row in (make(rng, category) for _ in itertools.count()):
        since += 1
        if _belongs(row, part, share) and (part in ("train", "all") or row["question"] not in seen):
            seen.add(row["question"])
            found, since = found + 1, 0
            yield row
        if found == count or since == PATIENCE:
            return


def _problem(name: str, number: int, row: Mapping[str, Any]) -> Problem:
    """The prompt is the user's last message; what stands before it stays in `extra_info`."""
    messages = row["question"]
    task = messages if isinstance(messages, str) else messages[-1]["content"]
    before = [] if isinstance(messages, str) else list(messages[:-1])
    context = {key: row[key] for key in ("category", "function", "ground_truth")}
    return {
        "id": f"{name}-{row.get('id', number)}",
        "task": task,
        "extra_info": {"oai_tools": row["function"], "before": before},
        "reward_context": context,
        "dataset": f"{name}/{row['category']}",
        "domain": DOMAIN,
    }


def _bfcl(source: str, data_dir: str | None) -> Iterator[dict[str, Any]]:
    chosen = BFCL if source == "bfcl" else (source.removeprefix("bfcl_"),)
    for category in chosen:
        name = f"BFCL_v4_{category}.json"
        questions = list(_bfcl_rows(name, data_dir, ("id", "question", "function")))
        answers: dict[str, Any] = {}
        if "relevance" not in category:
            given = _bfcl_rows(f"possible_answer/{name}", data_dir, ("id", "ground_truth"))
            answers = {one["id"]: one["ground_truth"] for _, one in given}
        for where, row in questions:
            made = {**row, "category": category, "ground_truth": answers.get(row["id"], [])}
            try:
                made["question"] = _first(row["question"])
                _refuse_unanswered(made)
            except ValueError as error:
                raise ValueError(f"{where}, {row['id']}: {error}") from None
            yield made


def _bfcl_rows(name: str, data_dir: str | None, keys: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows with their places, of objects that have these keys. Raises ValueError with the place of others."""
    for where, row in parsed_lines(_read(name, data_dir).split(b"\n"), name):
        lacking = [key for key in keys if key not in row] if isinstance(row, dict) else keys
        if lacking:
            raise ValueError(
                f"{where}: a row of BFCL has {', '.join(keys)}; {lacking[0]} is missing; {REMEDY}"
            )
        yield where, row


def _first(question: Any) -> Any:
    """The messages of the first turn, which is the only one of a row of these categories."""
    if not isinstance(question, list) or len(question) != 1:
        raise ValueError("question is no list of one turn; problems of several turns are not supported")
    return question[0]


def _read(name: str, data_dir: str | None) -> bytes:
    """A file of BFCL's data: of a folder, of a wheel, or of the installed package."""
    if data_dir is None:
        spec = find_spec("bfcl_eval")
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"bfcl-eval is not installed; {REMEDY}")
        place = Path(spec.submodule_search_locations[0]) / "data"
    else:
        place = Path(data_dir)
    try:
        if place.suffix == ".whl":
            with ZipFile(place) as wheel, wheel.open(f"bfcl_eval/data/{name}") as file:
                return file.read()
        return (place / name).read_bytes()
    except (OSError, KeyError, BadZipFile) as error:
        raise ValueError(f"{place}: no {name} ({type(error).__name__}); {REMEDY}") from None


def _from_file(source: str, data_dir: str | None) -> Iterator[dict[str, Any]]:
    path = Path(source) if data_dir is None else Path(data_dir) / source
    if not path.is_file():
        raise ValueError(f"dataset {source!r}: no file {path}")
    for where, row in rows(path):
        try:
            yield checked(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def checked(row: Any) -> dict[str, Any]:
    """A row of a file as a problem is made of it. Raises ValueError saying what is wrong with it."""
    if not isinstance(row, Mapping):
        raise ValueError(f"a {type(row).__name__}, expected an object")
    question, functions, truth = row.get("question"), row.get("function"), row.get("ground_truth", [])
    if isinstance(question, list) and question and isinstance(question[0], list):
        question = _first(question)
    asked = isinstance(question, str) and question != ""
    if isinstance(question, list) and question:
        asked = all(map(_is_message, question)) and question[-1].get("role") == "user"
    if not asked:
        raise ValueError("question: expected a text or messages in texts, of which the last is the user's")
    if isinstance(functions, Mapping):
        functions = [functions]
    if not isinstance(functions, list) or not all(
        isinstance(one, Mapping) and "name" in one and isinstance(one.get("parameters"), Mapping)
        for one in functions
    ):
        raise ValueError("function: expected a list of {name, parameters}")
    _refuse_unanswered(row)
    known = {str(one["name"]) for one in functions}
    if not isinstance(truth, list) or not all(
        isinstance(one, Mapping) and len(one) == 1 and next(iter(one)) in known for one in truth
    ):
        raise ValueError("ground_truth: expected a list of {name: {argument: [values]}} of these functions")
    for wanted in truth:
        _refuse_impossible(wanted, functions)
    several = "parallel" if len(truth) > 1 else "multiple" if len(functions) > 1 else "simple"
    category = row.get("category") or (several if truth else "irrelevance")
    if truth and "relevance" in str(category):
        raise ValueError(f"category {category}: no call is wanted, and ground_truth holds one; remove either")
    kept = {"question": question, "function": functions, "ground_truth": truth, "category": str(category)}
    return kept | ({"id": row["id"]} if "id" in row else {})


def _is_message(turn: Any) -> bool:
    return isinstance(turn, Mapping) and isinstance(turn.get("content"), str)


def _refuse_impossible(wanted: Mapping[str, Any], functions: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError for a wanted call that no call equals."""
    ((name, allowed),) = wanted.items()
    if not isinstance(allowed, Mapping) or not all(isinstance(some, list) for some in allowed.values()):
        raise ValueError(f"ground_truth: {name}: expected {{argument: [allowed values]}}")
    schema = next(one for one in functions if one["name"] == name)["parameters"]
    known, required = schema.get("properties") or {}, schema.get("required", ())
    if is_call(example(wanted, required), wanted, functions):
        return
    odd = sorted(set(allowed) - set(known)) or sorted(set(required) - set(allowed)) or sorted(allowed)
    raise ValueError(
        f"ground_truth: no call equals {name} with these values, by its schema; look at {', '.join(odd)[:80]}"
    )


def _refuse_unanswered(row: Mapping[str, Any]) -> None:
    """Raises ValueError for a problem without wanted calls that does not say that it wants none."""
    named = row.get("category")
    unanswered = not row.get("ground_truth") if named else row.get("ground_truth") is None
    if unanswered and "relevance" not in str(named):
        raise ValueError(
            "ground_truth: missing; BFCL keeps it in possible_answer/: name bfcl_CATEGORY with "
            "dataset_loader_params.data_dir, or write ground_truth=[] and no category where no call is right"
        )
