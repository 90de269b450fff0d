"""One-line configuration errors with the nearest valid spelling."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from pipelinerl.base.masking import without_secrets

_STEERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]"
)
"""Control characters of both sets, those that turn the direction of what follows, and halves of pairs, as in
a file name that is no UTF-8: writing one would end the process that writes it.
"""


class ConfigError(ValueError):
    """A configuration that cannot run. `problems` holds one line each, with the remedy in it."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        lines = [problems] if isinstance(problems, str) else list(problems)
        self.problems = [printable(" ".join(line.split())) for line in lines]
        super().__init__("\n".join(self.problems))


def counted(number: int, thing: str) -> str:
    """A number of things, for people: `1 GPU`, `2 GPUs`."""
    return f"{number} {thing}" + "s" * (number != 1)


def printable(text: str, form: str = "\\x{:02x}") -> str:
    """A text as a terminal and a page may show it: what would steer them is written out, as `\\x1b`.

    Lines stay lines. Texts of programs, models and servers reach people in reasons and last words; secrets
    that they quote are masked.
    """
    return _STEERS.sub(lambda found: form.format(ord(found[0])), without_secrets(text))


class CommandParser(argparse.ArgumentParser):
    """Of a command of this project: what it says of an argument steers no terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The valid spelling closest to `name`, or None if nothing comes near.

    Of equally close ones it is one that begins alike.
    """
    found = difflib.get_close_matches(name, [str(v) for v in valid], n=3, cutoff=cutoff)
    ratios = [difflib.SequenceMatcher(None, one, name).ratio() for one in found]
    equal = [one for one, ratio in zip(found, ratios, strict=True) if ratio == ratios[0]]
    return max(equal, key=lambda one: one[:2] == name[:2], default=None)


def suggestion(name: str, valid: Iterable[str], prefix: str = "") -> str:
    """`did you mean X?`, or the list of what is allowed when nothing comes near."""
    names = sorted(str(v) for v in valid)
    match = nearest(name, names)
    if match is not None:
        return f"did you mean {prefix}{match}?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"allowed here: {shown}" if names else "no key is allowed here"


def first_line(error: Exception) -> str:
    """The first line of an error of several lines, without superfluous blanks."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def show_what_it_can() -> None:
    """Let stdout print a question mark for what the terminal cannot show, instead of failing.

    One that was closed before the start (`>&-`) shows nothing.
    """
    _have_stdout()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def _have_stdout() -> None:
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def drop_output(descriptor: int = 1) -> None:
    """Nobody takes what is left in stdout, or another output; the interpreter, which writes it once more at
    its end, is not to complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def leave(command: str, main: Callable[[], int]) -> NoReturn:
    """End the process with a command's status. Output that cannot be written is one line and status 1.

    A reader that has gone, such as `| head`, has had enough: nothing is said. Ctrl-C is one line and 130.
    """
    _have_stdout()
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
        print(f"{command}: interrupted", file=sys.stderr)
    except OSError as error:
        status = 0 if isinstance(error, BrokenPipeError) else 1
        if status:
            print(printable(f"{command}: {error}; put it right, then try again"), file=sys.stderr)
        drop_output()
    sys.exit(status)


def fields_at(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """Field names of the (nested) model at `path`; empty where the path leaves the typed tree."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or part not in current.model_fields:
            return []
        current = _model_of(current.model_fields[str(part)].annotation)
    return list(current.model_fields) if current is not None else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_of(argument)
        if found is not None:
            return found
    return None


def explain(
    error: ValidationError,
    model: type[BaseModel],
    prefix: str = "",
    remedy: Callable[[str], str | None] | None = None,
) -> list[str]:
    """One line per pydantic problem: dotted key, value, what is allowed.

    `remedy` says what to do instead of an unknown dotted key, or None.
    """
    lines = []
    for item in error.errors(include_url=False):
        # Of a key that takes values of several types each type is a part, such as `list[str]`.
        parts = (str(part) for part in item["loc"] if "[" not in str(part))
        path = [*([prefix] if prefix else []), *parts]
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            if remedy is not None and (instead := remedy(key)) is not None:
                lines.append(f"{key}: {instead}")
                continue
            *parents, name = item["loc"]
            hint = suggestion(str(name), fields_at(model, parents), ".".join([*path[:-1], ""]))
            lines.append(f"{key}: unknown key; {hint}")
        elif item["type"] == "missing" or item["input"] is None:
            lines.append(f"{key}: missing; set {key}=VALUE")
        else:
            message = item["msg"].removeprefix("Value error, ")
            if isinstance(item["input"], dict):  # keys that contradict each other; the message names them
                lines.append(f"{key}: {message}" if key else message)
                continue
            shown = repr(item["input"])
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            lines.append(f"{key}={shown}: {message[:1].lower()}{message[1:]}" if key else message)
    return lines
