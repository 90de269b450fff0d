"""What every refusal must look like."""


def check_one_line(said: str, value: str, case: str = "") -> None:
    """One line, no traceback, and what was wrong is in it."""
    lines = said.strip().splitlines()
    assert len(lines) == 1, f"{case}: {len(lines)} lines: {said[:600]}"
    assert "Traceback" not in said and 'File "' not in said, case
    assert value in said, f"{case}: {value!r} is not in {said!r}"
    assert len(lines[0]) < 1000, f"{case}: a line of {len(lines[0])} characters"
