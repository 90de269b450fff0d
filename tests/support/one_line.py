"""What every refusal must look like, and the starts of a domain that are refused or not."""

from collections.abc import Callable
from typing import Any


def check_one_line(said: str, value: str, case: str = "") -> None:
    """One line, no traceback, and what was wrong is in it."""
    lines = said.strip().splitlines()
    assert len(lines) == 1, f"{case}: {len(lines)} lines: {said[:600]}"
    assert "Traceback" not in said and 'File "' not in said, case
    assert value in said, f"{case}: {value!r} is not in {said!r}"
    assert len(lines[0]) < 1000, f"{case}: a line of {len(lines[0])} characters"


def check_refusals(dry_run: Callable[..., Any], domain: str, *cases: tuple[str, ...]) -> None:
    """Each case is overrides and, last, what the one line has in it with which the launcher refuses them."""
    for *overrides, said in cases:
        status, _, err = dry_run(domain, *overrides)
        assert status == 2, (overrides, err)
        check_one_line(err, said, str(overrides))


def check_starts(dry_run: Callable[..., Any], domain: str, *overrides: str) -> None:
    """A dry run succeeds on both kinds of hardware, with nothing on stderr."""
    for hardware in ("cpu", "gpu"):
        status, _, err = dry_run(domain, *overrides, f"hardware={hardware}", "force_restart=true")
        assert (status, err) == (0, ""), hardware
