"""What the tests make and copy quickly is what omegaconf makes, so that they try the trees of a run."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipelinerl.config.tree import Config
from tests.support.quick_trees import quick_copy, quick_create

TREES: list[Any] = [
    {},
    [],
    Config.defaults(),
    {"a": {"b": [1, "x", None, {"q": 2.5}], "e": {}, "l": [[]]}, "s": "${a.e}", "missing": "???", "t": True},
    [{"${no_key}": "text"}],
    {1: "a key that is a number", "path": Path("folder"), "tuple": (1, 2)},
    {"a": {2.5: ["below"]}},
]


def inside(node: Any, parent: Any) -> object:
    """All that a node consists of, but a cache that is made again."""
    assert node.__dict__["_parent"] is parent
    state = {key: value for key, value in node.__dict__.items() if key not in ("_parent", "_flags_cache")}
    metadata, content = state.pop("_metadata"), state.pop("_content", None)
    if isinstance(content, dict):
        content = {key: inside(value, node) for key, value in content.items()}
    elif isinstance(content, list):
        content = [inside(value, node) for value in content]
    return type(node), state, type(metadata), metadata.__dict__, content


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, _compositions_are_remembered: dict[str, Any]) -> dict[str, Any]:
    """omegaconf as it is, and what the tests have replaced in it."""
    kept = _compositions_are_remembered
    monkeypatch.setattr(OmegaConf, "create", staticmethod(kept["create"]))
    monkeypatch.setattr(DictConfig, "__deepcopy__", kept["DictConfig"])
    monkeypatch.setattr(ListConfig, "__deepcopy__", kept["ListConfig"])
    return kept


@pytest.mark.parametrize("values", TREES, ids=range(len(TREES)))
def test_a_tree_made_quickly_is_omegaconf_s(values: Any, slow: dict[str, Any]) -> None:
    assert inside(quick_create(slow["create"])(values), None) == inside(OmegaConf.create(values), None)


@pytest.mark.parametrize("values", TREES, ids=range(len(TREES)))
def test_a_quick_copy_is_omegaconf_s(values: Any, slow: dict[str, Any]) -> None:
    tree = OmegaConf.create(values)
    OmegaConf.set_struct(tree, True)
    kind = type(tree)
    copy = quick_copy(slow[kind.__name__])(tree, {})
    assert inside(copy, None) == inside(deepcopy(tree), None)
    OmegaConf.set_struct(copy, False)
    assert OmegaConf.is_struct(tree) and not OmegaConf.is_struct(copy)


def test_a_copy_of_a_section_keeps_its_parent(slow: dict[str, Any]) -> None:
    tree = OmegaConf.create({"a": {"b": "${c}"}, "c": 1})
    for copy in (quick_copy(slow["DictConfig"])(tree.a, {}), deepcopy(tree.a)):
        assert copy is not tree.a and copy._get_parent() is tree and copy.b == 1


@pytest.mark.parametrize("values", [{"a": "${"}, {"a": object()}, ["${"]], ids=["dict", "object", "list"])
def test_what_omegaconf_refuses_is_refused(values: Any, slow: dict[str, Any]) -> None:
    said = []
    for create in (quick_create(slow["create"]), slow["create"]):
        with pytest.raises(OmegaConfBaseException) as caught:
            create(values)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]
