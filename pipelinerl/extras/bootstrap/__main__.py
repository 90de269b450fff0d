"""Make a small model: `python -m pipelinerl.bootstrap +domain=NAME [bootstrap.out=DIR key=value ...]`.

`validate=true` stops before anything is trained; `--config-dir DIR` is searched before the bundled files.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from pipelinerl.base.errors import leave, printable
from pipelinerl.config import Config, ConfigError
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.config.secrets import shown_tree
from pipelinerl.domain import load_domain
from pipelinerl.extras.bootstrap.demonstrations import Source, demonstrations_of
from pipelinerl.launcher.arguments import parse
from pipelinerl.launcher.placement import no_gpu


def main(argv: list[str]) -> int:
    """Run the recipe; exit status 1 when a gate is missed, 2 for bad input."""
    try:
        arguments = parse(argv)
        if arguments.help:
            print(__doc__)
            return 0
        composition = compose(arguments.overrides, arguments.config_name, arguments.config_dir)
        tree = composition.tree
        if arguments.show:
            print(OmegaConf.to_yaml(shown_tree(tree)), end="")
            return 0
        if tree.domain_hooks is None or not tree.bootstrap.phases:
            raise ConfigError(_no_recipe(str(tree.hardware.kind)))
        if tree.model_path is None:  # a run on GPUs is asked for it; here it is what the recipe makes
            tree = cast(DictConfig, OmegaConf.merge(tree, {"model_path": tree.bootstrap.out or "new"}))
        cfg = typed(tree)
        assert cfg.domain_hooks is not None
        if cfg.bootstrap.start is not None and not Path(cfg.bootstrap.start).is_dir():
            raise ConfigError(f"bootstrap.start={cfg.bootstrap.start}: no such folder; give that of a model")
        out = Path(cfg.bootstrap_out)
        if (out / "config.json").is_file() and not (out / "recipe.json").is_file():
            raise ConfigError(f"bootstrap.out={out}: holds a model that no recipe made; give another folder")
        plain = cast(dict[str, Any], OmegaConf.to_container(tree, resolve=True))
        if problems := load_domain(cfg.domain_hooks).validate_recipe(OmegaConf.create(plain)):
            raise ConfigError(problems)
        if cfg.hardware.kind == "gpu" and not cfg.validate_ and not composition.devices:
            raise ConfigError(no_gpu())  # a recipe that is sized for GPUs would take days
    except ConfigError as error:
        for problem in error.problems:
            print(f"bootstrap: {problem}", file=sys.stderr)
        return 2
    if cfg.validate_:
        print(printable(f"the recipe is valid; bootstrap.out={out}"))
        return 0
    return _run(cfg, partial(demonstrations_of, cfg.domain_hooks, plain), out)


def _no_recipe(kind: str) -> str:
    said = "bootstrap needs a domain with demonstrations: +domain=NAME with bootstrap.phases"
    if kind == "cpu":
        return said
    return f"{said}; the recipes of bundled models belong to hardware=cpu (which trains on a GPU it finds)"


def _run(cfg: Config, source: Source, out: Path) -> int:
    import torch

    from pipelinerl.extras.bootstrap.recipe import run

    torch.set_num_threads(cfg.hardware.threads_per_process)
    spec = cfg.bootstrap
    phases = [p.model_copy(update={"tokens": round(p.tokens * spec.budget)}) for p in spec.phases]
    workers = spec.workers or max(1, len(os.sched_getaffinity(0)) - 1)
    recipe = spec.model_copy(update={"phases": phases, "workers": workers})
    vocabulary = load_domain(cfg.domain_hooks).vocabulary()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        results = run(recipe, vocabulary, source, out, device=device, log=partial(print, flush=True))
    except ValueError as error:  # bootstrap.start, or what another recipe left in `out`
        print(printable(f"bootstrap: {error}"), file=sys.stderr)
        return 2
    print(f"\n{'skill':<16}{'accuracy':>9}{'gate':>7}{'n':>7}")
    for result in results:
        gate = "" if result.minimum is None else f"{result.minimum:.2f}"
        mark = "" if result.passed else "  missed"
        print(f"{result.kind:<16}{result.accuracy:>9.3f}{gate:>7}{result.count:>7}{mark}")
    print(printable(f"saved to {out}"))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    leave("bootstrap", lambda: main(sys.argv[1:]))
