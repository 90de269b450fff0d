"""Values of Python as JSON and back, with nothing but built-in types on either side.

Arguments and results of functions under test travel so. What arrives has no methods of the program's own:
a class that calls itself equal to everything arrives as an error, its subclass of int as an int.
"""

from collections.abc import Callable
from typing import Any

PLAIN: tuple[Any, ...] = (bool, int, float, str)
_HUGE = 10**4000
"""Python neither writes nor reads integers of more than 4,300 digits in tens; in hexadecimal ones it does."""
SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, str, list, tuple, set, frozenset, dict, complex, bytes, type(None), object)
}
"""Built-in types, which are values too: a function may be told which of them to look for."""


class Kept:
    """Objects of a program's own classes, which stay in its process; the other side knows them by a number.

    `classes` are those whose objects are kept. Raises ValueError for a number that stands for none.
    """

    def __init__(self, *classes: type) -> None:
        self.classes, self._objects = classes, list[Any]()

    def number(self, value: Any) -> int:
        """Under which the object is known from now on."""
        for number, known in enumerate(self._objects):
            if known is value:
                return number
        self._objects.append(value)
        return len(self._objects) - 1

    def object(self, number: Any) -> Any:
        """The object with this number."""
        if not isinstance(number, int) or not 0 <= number < len(self._objects):
            raise ValueError(f"{str(number)[:20]}: no object has this number")
        return self._objects[number]


class Remote:
    """An object of the other side, known by its number; equal to what has the same one."""

    __slots__ = ("_remote_number",)
    _remote_number: int

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_remote_number", int(number))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._remote_number == self._remote_number

    def __hash__(self) -> int:
        return hash(self._remote_number)


def encode(value: Any, kept: Kept | None = None) -> Any:
    """What `json.dumps` takes. Raises TypeError for a value that is made of other types.

    With `kept` its classes' objects are sent as numbers; without, a `Remote` goes back to where it came from.
    """
    if value is None:
        return None
    if isinstance(value, int) and abs(int(value)) >= _HUGE:
        return {"int": hex(int(value))}
    for kind in PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [encode(item, kept) for item in list(value)]
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [encode(item, kept) for item in tuple(value)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, kept), encode(item, kept)] for key, item in dict(value).items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    if kept is not None and isinstance(value, kept.classes):
        return {"object": kept.number(value)}
    if isinstance(value, Remote):
        return {"object": value._remote_number}
    # numpy's scalars and others that say which number they are
    if hasattr(value, "tolist"):
        return encode(value.tolist(), kept)
    raise TypeError(f"a {type(value).__name__} is no value that can be compared")


def decode(value: Any, known: Callable[[Any], Any] | None = None) -> Any:
    """What was encoded; `known` makes of an object's number what stands for it on this side.

    Raises ValueError for anything that `encode` does not make.
    """
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, list):
        return [decode(item, known) for item in value]
    try:
        ((name, inside),) = value.items()
        if name in SEQUENCES:
            return SEQUENCES[name](decode(item, known) for item in inside)
        if name == "dict":
            return {decode(key, known): decode(item, known) for key, item in inside}
        if name == "int":
            return int(inside, 16)
        if name == "complex":
            return complex(*inside)
        if name == "bytes":
            return bytes.fromhex(inside)
        if name == "type":
            return TYPES[inside]
        if name == "object" and known is not None:
            return known(inside)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{str(value)[:60]}: not an encoded value")
