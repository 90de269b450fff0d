"""Values of Python as JSON and back, with nothing but built-in types on either side.

Arguments and results of functions under test travel so. What arrives has no methods of the program's own:
a class that calls itself equal to everything arrives as an error, its subclass of int as an int.
"""

from typing import Any

PLAIN: tuple[Any, ...] = (bool, int, float, str)
SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any) -> Any:
    """What `json.dumps` takes. Raises TypeError for a value that is made of other types."""
    if value is None:
        return None
    for kind in PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [encode(item) for item in list(value)]
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [encode(item) for item in tuple(value)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in dict(value).items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    # numpy's scalars and others that say which number they are
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a {type(value).__name__} is no value that can be compared")


def decode(value: Any) -> Any:
    """What was encoded. Raises ValueError for anything that `encode` does not make."""
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, list):
        return [decode(item) for item in value]
    try:
        ((name, inside),) = value.items()
        if name in SEQUENCES:
            return SEQUENCES[name](decode(item) for item in inside)
        if name == "dict":
            return {decode(key): decode(item) for key, item in inside}
        if name == "complex":
            return complex(*inside)
        if name == "bytes":
            return bytes.fromhex(inside)
    except (AttributeError, TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{str(value)[:60]}: not an encoded value")
