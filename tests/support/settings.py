"""Numbers of a page that are settings: a sentence with a group for each of them, and what the code has."""

from collections.abc import Callable, Sequence

Setting = tuple[str, Sequence[float] | Callable[[], Sequence[float]]]
"""A pattern, and its values, or what makes them, where a configuration has to be composed."""
