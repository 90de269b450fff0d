"""Problems of several domains in one list.

dataset_loader: pipelinerl.domains.multidomain.loader.load_datasets
train_dataset_names: [math::train.jsonl, guessing::train]
test_dataset_names: [math::test.jsonl, guessing::test]
dataset_loader_params:
  per_domain_params: {math: {data_dir: questions}}
"""

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from domains.registry import find_loader, resolve_callable
from pipelinerl.domain import problem_list

Problem = dict[str, Any]
Split = Literal["train", "test", "all"]
SPLITS: tuple[Split, ...] = ("train", "test", "all")
PART = ("split", "subset")
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
    dataset_names: Sequence[str],
    per_domain_params: Mapping[str, Mapping[str, Any]] | None = None,
    domain_loaders: Mapping[str, str | Callable[..., Any]] | None = None,
    **for_all: Any,
) -> list[Problem]:
    """Problems of all entries in their order, each with `domain` and `dataset`.

    `per_domain_params` are further arguments of a domain's loader, `domain_loaders` the loaders of domains
    that have none by convention. What `for_all` holds, such as a `seed`, goes to each loader that takes it,
    unless its domain has a value of its own. A loader with a parameter of `PART` is asked for the part; where
    it has none, a tenth of the problems, drawn by the dataset's name alone, is `@test` and the rest `@train`.
    Raises ValueError for an entry that cannot be read, or a parameter that no loader it is for takes.
    """
    specs = [DatasetSpec.parse(entry) for entry in dataset_names]
    params = {domain: dict(values or {}) for domain, values in (per_domain_params or {}).items()}
    loaders = dict(domain_loaders or {})
    problems: list[Problem] = []
    unused = set(for_all)
    for spec in specs:
        key = f"dataset_loader_params.domain_loaders.{spec.domain}"
        target = loaders.get(spec.domain)
        loader = find_loader(spec.domain, key) if target is None else resolve_callable(target, key)
        labels = {"dataset": spec.dataset}  # a problem's own dataset is kept
        shared = {name: value for name, value in for_all.items() if _takes(loader, name)}
        unused -= shared.keys()
        found = _loaded(spec, loader, shared | params.get(spec.domain, {}))
        problems += [{**labels, **problem, "domain": spec.domain} for problem in found]
    if unused and specs:
        domains = ", ".join(sorted({spec.domain for spec in specs}))
        raise ValueError(
            f"dataset_loader_params.{min(unused)}: no loader of {domains} has such a parameter; remove it"
        )
    return problems


def _takes(loader: Callable[..., Any], name: str) -> bool:
    accepted = inspect.signature(loader).parameters
    return name in accepted or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())


def _loaded(spec: DatasetSpec, loader: Callable[..., Any], params: dict[str, Any]) -> list[Problem]:
    accepted = inspect.signature(loader).parameters
    part = next((name for name in PART if name in accepted), None)
    if spec.split is not None and part is not None:
        params = {**params, part: spec.split}
    if foreign := [name for name in params if not _takes(loader, name)]:
        takes = ", ".join(list(accepted)[1:]) or "none"
        key = f"per_domain_params.{spec.domain}.{foreign[0]}"
        raise ValueError(f"{key}: its loader has no such parameter; it takes {takes}")
    found = loader([spec.dataset], **params)
    problems = problem_list(found, f"dataset {spec.domain}::{spec.dataset}: its loader")
    return problems if part is not None else _part(problems, spec)


def _part(problems: list[Problem], spec: DatasetSpec) -> list[Problem]:
    if spec.split in (None, "all"):
        return problems
    order = list(range(len(problems)))
    random.Random(f"{spec.domain}::{spec.dataset}").shuffle(order)
    test = set(order[: max(1, round(len(problems) * TEST_SHARE))]) if len(problems) > 1 else set()
    return [problem for index, problem in enumerate(problems) if (index in test) == (spec.split == "test")]
