"""Who may import what, read off the source: also an import inside a function counts.

`test_imports.py` shows the same of running processes.
"""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.unit.launcher.conftest import ROOT

ALLOWED = {
    "torch": (
        "pipelinerl/extras/bootstrap/",
        "pipelinerl/finetune/",
        "pipelinerl/engines/cpu/",
        "pipelinerl/engines/received.py",
        "pipelinerl/engines/serving/module_weights.py",
        "pipelinerl/engines/serving/sampling.py",
        "pipelinerl/engines/version_file.py",
        "pipelinerl/engines/vllm/in_place_load.py",
        "pipelinerl/engines/vllm/prompt_groups.py",
        "pipelinerl/engines/vllm/shared_prompts.py",
        "pipelinerl/engines/vllm/receive_",
        "pipelinerl/modeling/",
        "pipelinerl/preprocess/reference.py",
        "pipelinerl/weights/",
    ),
    "vllm": (
        "pipelinerl/engines/vllm/",  # outside an engine by name, and only when it is used
    ),
    "domains": ("pipelinerl/domains/__init__.py",),
    "pipelinerl.domains": (),
    "peft": ("pipelinerl/modeling/lora.py",),
    "wandb": ("pipelinerl/observe/",),
    "redis": ("pipelinerl/streams/redis_link.py",),
    "pandas": (),
    "deepspeed": (),
    "ray": ("pipelinerl/launcher/ray_backend.py",),
    "litellm": (),
    "hydra._internal": (),
    "pickle": ("pipelinerl/actor/messages.py", "pipelinerl/actor/problems.py", "pipelinerl/actor/runner.py"),
}
"""Package -> files and folders of the core that may import it. Pickles stay within the actor."""

BUNDLED = sorted(
    path.parent.name for path in ROOT.glob("domains/*/__init__.py") if path.parent.name != "multidomain"
)


@cache
def modules() -> dict[str, ast.Module]:
    paths = (ROOT / "pipelinerl").rglob("*.py")
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module or ''}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            yield ast.unparse(node.args[0]).strip("'\"")


@cache
def imports() -> dict[str, set[str]]:
    return {path: set(imported(module)) for path, module in modules().items()}


@pytest.mark.parametrize("package", ALLOWED)
def test_only_these_parts_of_the_core_import_it(package: str) -> None:
    importers = [
        path
        for path, names in imports().items()
        if any(name == package or name.startswith(f"{package}.") for name in names)
    ]
    assert [path for path in importers if not path.startswith(ALLOWED[package])] == []


def test_imports_are_absolute_so_that_none_is_overlooked() -> None:
    assert [path for path, names in imports().items() if any(n.startswith(".") for n in names)] == []


def test_the_core_names_no_bundled_domain() -> None:
    """Neither as an import nor in a string that would be imported."""
    assert len(BUNDLED) >= 5
    named = [
        f"{path}: {node.value}"
        for path, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
        if any(node.value.startswith((f"domains.{name}", f"pipelinerl.domains.{name}")) for name in BUNDLED)
    ]
    assert named == []


def test_an_import_in_a_function_and_one_by_name_are_seen() -> None:
    code = (
        "def f():\n    import torch.nn\n    importlib.import_module('vllm.core')\n    from domains import x\n"
    )
    assert set(imported(ast.parse(code))) == {"torch.nn", "vllm.core", "domains"}
