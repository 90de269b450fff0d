"""What a start or a validation does in a process of its own, a second each, done in the test's.

Only for bundled domains, whose code is known to come back; what a user's may do is tried in real processes by
`tests/unit/launcher/test_refused_early.py` and `test_validated_imports.py`.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.privacy_hopqa.world.config import WorldConfig
from pipelinerl.base.digests import digests
from pipelinerl.base.hub import model_folder
from pipelinerl.config.files import as_yaml, typed
from pipelinerl.config.tree import Config
from pipelinerl.launcher.checks import imports
from pipelinerl.launcher.checks.rehearsal import Looked, looked_at

ABOUT_THE_TEST = ("PYTEST_CURRENT_TEST", "DRY_RUN")
Look = Callable[[DictConfig, float], Looked]


def looked_here(tree: DictConfig, _: float) -> Looked:
    """`look` without its process and deadline."""
    if "actor" not in typed(tree).debug.roles:
        return Looked()
    plain = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    assert isinstance(plain, DictConfig)
    with contextlib.redirect_stdout(sys.stderr):
        found = looked_at(plain)
    problems = [" ".join(line.split()) for line in found.problems]
    return replace(found, problems=problems, said=" ".join(found.said.split()))


def looks_at_bundled_domains(elsewhere: Look) -> Look:
    """`look`, here and once for each environment and tree that only the run's folder tells apart.

    Problems are found anew each time, and so is whatever reads a file of a test beside the model's.
    """
    known: dict[tuple[object, ...], Looked] = {}

    def made(tree: DictConfig, deadline_s: float) -> Looked:
        if not str(tree.dataset_loader).startswith("domains."):
            return elsewhere(tree, deadline_s)
        output_dir, model = str(tree.get("output_dir") or ""), str(tree.get("model_path") or "")
        text = as_yaml(OmegaConf.to_container(tree, resolve=True))
        for path, name in ((model, "MODEL"), (output_dir, "RUN")):
            text = text.replace(path, name) if path else text
        if tempfile.gettempdir() in text:
            return looked_here(tree, deadline_s)
        variables = sorted((key, value) for key, value in os.environ.items() if key not in ABOUT_THE_TEST)
        files = sorted(digests(folder).items()) if (folder := model_folder(model)) is not None else []
        key = (text, *variables, *files)
        if key in known:
            return known[key]
        found = looked_here(tree, deadline_s)
        if not found.problems and not found.said.startswith("not looked at"):
            known[key] = found
        return found

    return made


def generated_once(generate: Callable[..., Path], kept: Path) -> Callable[..., Path]:
    """`generate` for a run: a world takes 1.4 s to make, so each is a copy of the first one like it."""
    known: dict[str, Path] = {}

    def made(config: WorldConfig, directory: Path) -> Path:
        if directory.exists():
            return generate(config, directory)
        if (key := repr(config)) not in known:
            known[key] = generate(config, kept / str(len(known)))
        shutil.copytree(known[key], directory)
        return directory

    return made


def defined_once(definition: Callable[..., Any]) -> Callable[..., Any]:
    """`dotted._definition` of bundled domains, whose files are parsed once for all launches."""
    known = cache(definition)
    return lambda path, *hops: (known if path.startswith("domains.") else definition)(path, *hops)


def imported_here(cfg: Config) -> list[str]:
    """`imports.check` without its process."""
    found = [imports.problem(*call) for call in imports.calls(cfg)]
    return [" ".join(line.split()) for line in found if line is not None]


def imports_of_bundled_domains(elsewhere: Callable[[Config], list[str]]) -> Callable[[Config], list[str]]:
    """`imports.check`, here where only code of bundled domains is imported."""

    def checked(cfg: Config) -> list[str]:
        bundled = all(path.startswith("domains.") for _, path, *_ in imports.calls(cfg))
        return imported_here(cfg) if bundled else elsewhere(cfg)

    return checked
