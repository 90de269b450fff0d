"""omegaconf's trees of plain values, made and copied without what it asks of each value: a sixth of the time.

Called by the session's fixture (`tests/conftest.py`). Whatever is no plain value is left to omegaconf itself.
`tests/unit/config/test_quick_trees.py` compares.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.errors import OmegaConfBaseException

PLAIN = {str, int, float, bool, type(None)}
KINDS: dict[type, tuple[type, type]] = {dict: (DictConfig, Any), list: (ListConfig, int)}  # type: ignore[dict-item]
"""Of a container, the node that holds it and what its keys are."""


class NotPlain(Exception):
    """Something that omegaconf has to look at."""


def quick_create(slow: Callable[..., Any]) -> Callable[..., Any]:
    """`OmegaConf.create`."""

    def create(*values: Any, **how: Any) -> Any:
        if len(values) == 1 and not any(how.values()) and type(values[0]) in KINDS:
            try:
                return _made(values[0], None, None)
            except (NotPlain, OmegaConfBaseException):
                pass  # said by omegaconf with the key
        return slow(*values, **how)

    return create


def quick_copy(slow: Callable[..., Any]) -> Callable[..., Any]:
    """`DictConfig.__deepcopy__`."""

    def copy(tree: Any, memo: dict[int, Any]) -> Any:
        try:
            return _copied(tree, tree.__dict__["_parent"])
        except NotPlain:
            return slow(tree, memo)

    return copy


def _made(value: Any, key: Any, parent: Any) -> Any:
    kind = type(value)
    if kind in PLAIN:
        if kind is str and "${" in value:
            return AnyNode(value, key=key, parent=parent)  # which reads it
        return _node(AnyNode, _metadata(Metadata, key, None), parent, "_val", value)
    if kind not in KINDS:
        raise NotPlain
    container, keys = KINDS[kind]
    metadata = _metadata(ContainerMetadata, key, kind, key_type=keys, element_type=Any)
    node = _node(container, metadata, parent, "_content", None)
    if kind is dict:
        if any(type(name) is not str for name in value):
            raise NotPlain
        content: Any = {name: _made(one, name, node) for name, one in value.items()}
    else:
        content = [_made(one, index, node) for index, one in enumerate(value)]
    node.__dict__["_content"] = content
    return node


def _copied(node: Any, parent: Any) -> Any:
    kind, state = type(node), node.__dict__
    known: Any = type(state["_metadata"])
    metadata, seen = known.__new__(known), state["_metadata"].__dict__
    metadata.__dict__.update(seen, flags=dict(seen["flags"]), resolver_cache=defaultdict(dict))
    if kind is AnyNode:
        return _node(kind, metadata, parent, "_val", state["_val"])
    if kind not in (DictConfig, ListConfig) or seen["resolver_cache"]:
        raise NotPlain
    copy = _node(kind, metadata, parent, "_content", None)
    content = state["_content"]
    if isinstance(content, dict):
        content = {key: _copied(one, copy) for key, one in content.items()}
    elif isinstance(content, list):
        content = [_copied(one, copy) for one in content]
    copy.__dict__["_content"] = content
    return copy


def _metadata(kind: Any, key: Any, holds: type | None, **further: Any) -> Any:
    made = kind.__new__(kind)
    made.__dict__.update(
        ref_type=Any,
        object_type=holds,
        optional=True,
        key=key,
        flags={},
        flags_root=False,
        resolver_cache=defaultdict(dict),
        **further,
    )
    return made


def _node(kind: Any, metadata: Any, parent: Any, name: str, value: Any) -> Any:
    made = kind.__new__(kind)
    made.__dict__.update({"_metadata": metadata, "_parent": parent, "_flags_cache": None, name: value})
    return made
