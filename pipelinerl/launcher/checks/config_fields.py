"""Fields of a model's `config.json` whose values no model can have, told without torch.

What a field may hold stands in the text of transformers' configuration classes, for every type of model.
Engines and trainer would say the same, in many lines and only once they load the model.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

from pipelinerl.modeling.decoder_defaults import TEXT_PART, decoder_config

_ROPE = ("rope_parameters", "rope_scaling")
_WORDS = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "tuple": "a list",
    "Sequence": "a list",
    "dict": "an object",
    "RopeParameters": "an object",
    "None": "null",
}
_NEXT = re.compile(r"^[^\s#)]", re.MULTILINE)
"""What stands behind a class in its file."""
_ABOVE_0 = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("max_position_embeddings", "rope_theta", "decoder_sparse_step", "factor"),
)
_NOT_BELOW_0 = re.compile(
    r"(?:^|_)(?:intermediate_size|dim|heads|layers|rank|experts|window|pattern|interval|group|tok|replace|eps|epsilon|range)$"
)


def _annotations(**types: str) -> dict[str, ast.expr]:
    return {key: ast.parse(text, mode="eval").body for key, text in types.items()}


_ANYWHERE = _annotations(
    model_type="str | None",
    quantization_config="dict | None",
    text_config="dict | None",
    vision_config="dict | None",
    layer_types="list[str] | None",
    mlp_layer_types="list[str] | None",
    rope_parameters="dict | None",
    rope_scaling="dict | None",
    rope_theta="float | None",
    max_position_embeddings="float | None",
    sliding_window_pattern="int | None",
)
"""What a class may read from the file without declaring it."""


@dataclass(frozen=True)
class Declared:
    """The fields of a configuration class, those of its bases included."""

    types: dict[str, ast.expr] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    """Those that are plain values."""
    names: dict[str, str] = field(default_factory=dict)
    """How the class calls what others call so, such as `n_layer` for `num_hidden_layers`."""

    def type_of(self, key: str) -> ast.expr | None:
        """The annotation of a field, by either name of it; None where nothing is known."""
        same = {key, self.names.get(key), *(one for one, other in self.names.items() if other == key)}
        found = (self.types.get(name or "") for name in same)
        return next((one for one in found if one is not None), _ANYWHERE.get(key))


def problems(path: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """One line for each field of the wrong type or length, or below 0 where it counts or measures."""
    yield from (wrong(path, key, value, f"has to be {why}") for key, value, why in _misfits(config))
    text = decoder_config(config)
    heads, key_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if _is_count(heads) and _is_count(key_heads) and heads % key_heads:
        yield wrong(path, "num_key_value_heads", key_heads, f"does not divide num_attention_heads={heads}")
    count = text.get("num_hidden_layers")
    for key in ("layer_types", "mlp_layer_types"):
        kinds = text.get(key)
        if isinstance(kinds, list) and _is_count(count) and len(kinds) != count:
            yield (
                f"model_path={path}: config.json has {len(kinds)} {key} for num_hidden_layers={count}; "
                "correct one"
            )


def wrong(path: Path, key: str, value: object, why: str, file: str = "config.json") -> str:
    """The line about one value."""
    said = json.dumps(value)[:80]
    return f"model_path={path}: {file} says {key}={said}, which {why}; correct it, or save the model again"


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _misfits(
    section: Mapping[str, Any], of: Declared | None = None, where: str = ""
) -> Iterator[tuple[str, object, str]]:
    """Key, value and what it has to be, of a section and of those within it."""
    kind = section.get("model_type")
    if isinstance(kind, str):
        of = declared(kind) if "auto_map" not in section else Declared()
    of = of or Declared()
    for key, value in section.items():
        expected = of.type_of(key)
        if key == "eos_token_id" or expected is None:
            continue
        if not _fits(value, expected):
            yield where + key, value, " or ".join(dict.fromkeys(_words(expected)))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from ((where + key, value, why) for why in _sign(key, value))
        elif isinstance(value, dict) and key in _ROPE:
            yield from _of_rope(value, f"{where}{key}.")
        elif isinstance(value, dict):
            inner = TEXT_PART.get(str(kind)) if key == "text_config" else None
            yield from _misfits(
                value, declared(inner) if inner else _of_annotation(expected), f"{where}{key}."
            )


def _of_rope(section: Mapping[str, Any], where: str) -> Iterator[tuple[str, object, str]]:
    """Parameters of positions, which some models have for each kind of layer."""
    plain = {key: value for key, value in section.items() if not isinstance(value, dict)}
    yield from _misfits(plain, _of_class("RopeParameters"), where)
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _of_rope(value, f"{where}{key}.")


def _sign(key: str, value: float) -> Iterator[str]:
    if key in _ABOVE_0 and value <= 0:
        yield "above 0"
    elif value < 0 and _NOT_BELOW_0.search(key):
        yield "0 or more"


def _fits(value: object, expected: ast.expr) -> bool:
    """Whether a value of JSON may be of an annotated type; of types that are not known here every one may."""
    match expected:
        case ast.BinOp(left=left, right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=slice):
            known = slice.elts if isinstance(slice, ast.Tuple) else [slice]
            return value in [one.value for one in known if isinstance(one, ast.Constant)]
        case ast.Subscript(value=ast.Name(id="list"), slice=inner) if not isinstance(inner, ast.Tuple):
            return isinstance(value, list) and all(_fits(one, inner) for one in value)
        case ast.Subscript(value=outer):
            return _fits(value, outer)
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id="bool"):
            return isinstance(value, bool)
        case ast.Name(id="int"):
            return isinstance(value, int) and not isinstance(value, bool)
        case ast.Name(id="float"):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and math.isfinite(value)  # type: ignore[arg-type]
        case ast.Name(id="str"):
            return isinstance(value, str)
        case ast.Name(id="list" | "tuple" | "Sequence"):
            return isinstance(value, list)
        case ast.Name(id=name) if name in ("dict", "RopeParameters") or name.endswith("Config"):
            return isinstance(value, dict)
    return True


def _words(expected: ast.expr) -> Iterator[str]:
    match expected:
        case ast.BinOp(left=left, right=right):
            yield from _words(left)
            yield from _words(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=slice):
            yield ast.unparse(slice)
        case ast.Subscript(value=ast.Name(id="list"), slice=ast.Name(id=name)):
            yield f"a list, each of it {_WORDS.get(name, name)}"
        case ast.Subscript(value=outer):
            yield from _words(outer)
        case ast.Name(id=name) if name.endswith("Config"):
            yield _WORDS["dict"]
        case _:
            name = ast.unparse(expected)
            yield _WORDS.get(name, name)


def _of_annotation(expected: ast.expr) -> Declared:
    names = [node.id for node in ast.walk(expected) if isinstance(node, ast.Name)]
    named = [name for name in names if name.endswith("Config") and name != "PreTrainedConfig"]
    return _of_class(named[0]) if len(named) == 1 else Declared()


@cache
def declared(model_type: str) -> Declared:
    """What the class of a type of models declares; nothing for an unknown type."""
    begin = f'\n    model_type = "{model_type}"\n'
    for file in in_transformers("models", "*/configuration_*.py"):
        before, found, _ = text_of(file).partition(begin)
        if found:
            return _of_class(re.findall(r"^class (\w+)\(", before, re.MULTILINE)[-1])
    return Declared()


@cache
def _of_class(name: str) -> Declared:
    own = _class(name)
    if own is None:
        return Declared()
    bases = [
        _of_class(one.id) for one in own.bases if isinstance(one, ast.Name) and one.id.endswith("Config")
    ]
    types, defaults, names = dict[str, ast.expr](), dict[str, Any](), dict[str, str]()
    for base in reversed(bases):
        types, defaults, names = types | base.types, defaults | base.defaults, names | base.names
    for line in own.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=key), annotation=expected, value=value):
                if not ast.unparse(expected).startswith("ClassVar"):
                    types[key] = expected
                    defaults.pop(key, None)
                    if isinstance(value, ast.Constant):
                        defaults[key] = value.value
            case ast.Assign(targets=[ast.Name(id="attribute_map")], value=ast.Dict() as value):
                names = names | ast.literal_eval(value)
    return Declared(types, defaults, names)


def _class(name: str) -> ast.ClassDef | None:
    """A class of transformers; of all its text, only that of the class is parsed."""
    files = in_transformers("", "configuration_utils.py") + in_transformers("", "modeling_rope_utils.py")
    for file in files + in_transformers("models", "*/configuration_*.py"):
        _, found, rest = text_of(file).partition(f"\nclass {name}(")
        if found:
            end = _NEXT.search(rest, rest.index("\n"))
            parsed = ast.parse(found + rest[: end.start() if end else None]).body[0]
            return parsed if isinstance(parsed, ast.ClassDef) else None
    return None


@cache
def in_transformers(folder: str, pattern: str) -> list[Path]:
    """Files of the installed package, listed once; an early one of `auto` names most types."""
    found = find_spec("transformers")
    places = (found and found.submodule_search_locations) or ()
    return sorted(file for place in places for file in Path(place, folder).glob(pattern))


@cache
def text_of(file: Path) -> str:
    """What such a file says."""
    return file.read_text(encoding="utf-8")
