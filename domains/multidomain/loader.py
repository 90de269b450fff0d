"""Problems of several domains in one list.

dataset_loader: pipelinerl.domains.multidomain.loader.load_datasets
train_dataset_names: [math::train.jsonl, guessing::train]
test_dataset_names: [math::test.jsonl, guessing::test]
dataset_loader_params:
  per_domain_params: {math: {data_dir: questions}}
"""

import inspect
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from domains.registry import find_loader, resolve_callable
from pipelinerl.config.legacy import EVALUATIONS
from pipelinerl.domain import problem_list

log = logging.getLogger(__name__)

Problem = dict[str, Any]
Split = Literal["train", "test", "all"]
SPLITS: tuple[Split, ...] = ("train", "test", "all")
SUBSET = "subset"
PART = ("split", SUBSET)
"""How loaders call a parameter for the part of a dataset; upstream's call it the second."""
TEST_SHARE = 0.1
"""Part of a dataset that `@test` names where its loader knows no splits."""


@dataclass(frozen=True)
class DatasetSpec:
    """One entry: which dataset of which domain, and which part of it (None: as the loader gives it)."""

    domain: str
    dataset: str
    split: Split | None = None

    @classmethod
    def parse(cls, entry: str) -> "DatasetSpec":
        """Read `<domain>::<dataset>[@train|test|all]`; raises ValueError with the entry in it.

        An `@` that no split follows belongs to the dataset's name.
        """
        domain, colons, rest = str(entry).partition("::")
        if not colons or not domain.strip() or not rest.strip():
            raise ValueError(
                f"dataset {entry!r}: write <domain>::<dataset>, optionally with @train, @test or @all"
            )
        dataset, _, tail = rest.rpartition("@")
        for split in SPLITS:
            if tail == split and dataset:
                return cls(domain.strip(), dataset.strip(), split)
        return cls(domain.strip(), rest.strip())


def load_datasets(
    dataset_names: Sequence[str] | str | None,
    per_domain_params: Mapping[str, Mapping[str, Any]] | None = None,
    domain_loaders: Mapping[str, str | Callable[..., Any]] | None = None,
    **for_all: Any,
) -> list[Problem]:
    """Problems of all entries, each with `id`, `dataset` and `domain`; those that a loader gave are kept.

    As in upstream, a loader is asked once for all datasets of its domain and part, in the order of the first
    entries of these, and problems without an `id` are numbered within their dataset.
    `per_domain_params` are further arguments of a domain's loader, `domain_loaders` the loaders of domains
    that have none by convention. What `for_all` holds, such as a `seed`, goes to each loader that takes it,
    unless its domain has a value of its own. A loader with a parameter of `PART` is asked for the part. Of
    another one's problems a tenth, drawn by the dataset's name alone, is `@test` and the rest `@train`.
    Raises ValueError for an entry that cannot be read or has no problems, and for a parameter that is missing
    or that no loader it is for takes.
    """
    entries = [dataset_names] if isinstance(dataset_names, str) else dataset_names or []
    grouped: dict[tuple[str, Split | None], list[str]] = {}
    for spec in map(DatasetSpec.parse, entries):
        grouped.setdefault((spec.domain, spec.split), []).append(spec.dataset)
    params = {domain: dict(values or {}) for domain, values in (per_domain_params or {}).items()}
    loaders = dict(domain_loaders or {})
    problems: list[Problem] = []
    numbers: Counter[tuple[str, str]] = Counter()
    unused = set(for_all)
    for (domain, split), datasets in grouped.items():
        key = f"dataset_loader_params.domain_loaders.{domain}"
        if (target := loaders.get(domain)) is None:
            loader = find_loader(EVALUATIONS.get(domain, domain), key)
        else:
            loader = resolve_callable(target, key)
        shared = {name: value for name, value in for_all.items() if _takes(loader, name)}
        unused -= shared.keys()
        found = _loaded(domain, split, datasets, loader, shared | params.get(domain, {}))
        _say_others(domain, found)
        for problem in found:
            labelled = {"domain": domain, **problem}
            if "id" not in problem:
                where = str(labelled["domain"]), str(problem["dataset"])
                labelled["id"] = numbers[where]
                numbers[where] += 1
            problems.append(labelled)
    if unused and grouped:
        domains = ", ".join(sorted({domain for domain, _ in grouped}))
        raise ValueError(
            f"dataset_loader_params.{min(unused)}: no loader of {domains} has such a parameter; remove it"
        )
    return problems


def _say_others(domain: str, found: Sequence[Problem]) -> None:
    """Say of which other domain a loader's problems are; upstream's evaluations have that of their policy."""
    others = {str(problem["domain"]) for problem in found if "domain" in problem} - {domain}
    if others - {EVALUATIONS.get(domain)}:
        log.info(
            "datasets %s::...: problems are of the domain %s, as their loader says, whose policy plays them",
            domain,
            ", ".join(sorted(others)),
        )


def _takes(loader: Callable[..., Any], name: str) -> bool:
    accepted = inspect.signature(loader).parameters
    return name in accepted or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())


def _loaded(
    domain: str, split: Split | None, datasets: list[str], loader: Callable[..., Any], params: dict[str, Any]
) -> list[Problem]:
    """Problems of these datasets, each with `dataset`."""
    accepted = inspect.signature(loader).parameters
    part = next((name for name in PART if name in accepted), None)
    if split is not None and part is not None:
        params = {name: value for name, value in params.items() if name != SUBSET} | {part: split}
    if foreign := [name for name in params if not _takes(loader, name)]:
        takes = ", ".join(list(accepted)[1:]) or "none"
        key = f"per_domain_params.{domain}.{foreign[0]}"
        raise ValueError(f"{key}: its loader has no such parameter; it takes {takes}")

    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in list(accepted.values())[1:] if p.default is p.empty and p.kind in named]
    if missing := [name for name in needed if name not in params]:
        raise ValueError(f"per_domain_params.{domain}.{missing[0]}: its loader has no default for it; set it")

    at = f"@{split}" if split is not None and part is not None else ""

    def asked(names: list[str]) -> list[Problem]:
        what = f"dataset {domain}::{', '.join(names)}{at}: its loader"
        if not (found := problem_list(loader(names, **params), what)):
            raise ValueError(f"{what} found no problems; leave it out, or change what its loader is given")
        return found

    here = split if part is None else None  # what is left to divide; "all" is nothing
    if here in (None, "all"):
        found = asked(list(datasets))
        if len(datasets) == 1 or all("dataset" in problem for problem in found):
            return [{"dataset": datasets[0], **problem} for problem in found]
    else:
        log.info(
            "datasets %s::...@%s: their loader declares neither %s, so that a tenth of each is @test and the "
            "rest is @train",
            domain,
            split,
            " nor ".join(PART),
        )
    # Of problems without a label, only a call of its own tells the dataset.
    return [
        {"dataset": name, **problem}
        for name in datasets
        for problem in _part(asked([name]), f"{domain}::{name}", here)
    ]


def _part(problems: list[Problem], name: str, split: Split | None) -> list[Problem]:
    if split in (None, "all"):
        return problems
    order = list(range(len(problems)))
    random.Random(name).shuffle(order)
    test = set(order[: max(1, round(len(problems) * TEST_SHARE))]) if len(problems) > 1 else set()
    return [problem for index, problem in enumerate(problems) if (index in test) == (split == "test")]
