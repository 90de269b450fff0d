"""Prompt files that users may replace; the scorer and the leakage evaluation check them as they read them."""

from collections.abc import Collection
from pathlib import Path
from string import Template


def read_template(path: Path, placeholders: Collection[str]) -> Template:
    """The template of a file. Raises ValueError for one with other placeholders than these."""
    try:
        template = Template(path.read_text(encoding="utf-8"))
        found = set(template.get_identifiers())
    except (OSError, ValueError) as error:
        raise ValueError(f"the prompt {path} cannot be read ({error})") from None
    if found != set(placeholders):
        expected = ", ".join(f"${name}" for name in placeholders)
        raise ValueError(f"the prompt {path} must hold exactly the placeholders {expected}")
    return template
