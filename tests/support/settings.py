"""Numbers of a page that are settings: a sentence with a group for each of them, and what the code has."""

import re
from collections.abc import Callable, Sequence

Setting = tuple[str, Sequence[float] | Callable[[], Sequence[float]]]
"""A pattern, and its values, or what makes them, where a configuration has to be composed."""


def words(pattern: str) -> str:
    """The pattern with any white space for each blank, because pages are wrapped."""
    return re.sub(r"(?<!\\) ", r"\\s+", pattern)
