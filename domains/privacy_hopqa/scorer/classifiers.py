"""What `/score` may be backed by: the deterministic rules, or any classifier named by a dotted path.

A plug-in is a class or function that makes a `Classifier` from one string (`--classifier-argument`, such as a
folder), or a function of examples that returns probabilities:

    class Mine:
        name, version = "mine", "1"
        def __init__(self, argument: str | None = None): ...
        def score(self, examples: Sequence[Example]) -> Sequence[float]: ...
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from domains.privacy_hopqa.scorer.protocol import Example
from domains.privacy_hopqa.scorer.rules import score

RULES_VERSION = "1"


@runtime_checkable
class Classifier(Protocol):
    """Probabilities that query logs reveal a fact, one per example in [0, 1]; may be called from a thread."""

    name: str
    version: str

    def score(self, examples: Sequence[Example]) -> Sequence[float]: ...


class RulesClassifier:
    """The deterministic scorer."""

    name = "rules"
    version = RULES_VERSION

    def score(self, examples: Sequence[Example]) -> list[float]:
        """One probability per example."""
        return [score(example.company, example.queries, example.facts) for example in examples]


class FunctionClassifier:
    """A plain function of examples as a classifier."""

    def __init__(self, function: Callable[[Sequence[Example]], Sequence[float]], name: str) -> None:
        self.name = name
        self.version = str(getattr(function, "version", "unversioned"))
        self._function = function

    def score(self, examples: Sequence[Example]) -> Sequence[float]:
        """What the function returns."""
        return self._function(examples)


def load_classifier(path: str, argument: str | None = None) -> Classifier:
    """The classifier at a dotted path `package.module.name`.

    A class is made with `argument`; an object with `score` is taken as it is; any other callable is taken as
    a function of examples. Raises ValueError that names the path and what is missing.
    """
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise ValueError(f"classifier {path!r} is not a dotted path; write package.module.name")
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"classifier {path!r} cannot be imported ({error})") from None
    if inspect.isclass(found):
        arguments = () if argument is None else (argument,)
        found = found(*arguments)
    elif argument is not None:
        raise ValueError(f"classifier {path!r} is not a class, so it takes no argument {argument!r}")
    if isinstance(found, Classifier):
        return found
    if callable(found):
        return FunctionClassifier(found, path)
    raise ValueError(f"classifier {path!r} has no score(examples) and cannot be called")
