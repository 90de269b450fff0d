"""Where configurations and models lie: in this package, and in others that bring a domain by an entry point.

    [project.entry-points."pipelinerl.domains"]
    chess = "chess_rl"

makes `+domain=chess` find `chess_rl/conf/domain/chess.yaml`, and `pipelinerl.domains.chess` the package.
"""

import importlib.util
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "pipelinerl.domains"
PACKAGE = Path(__file__).resolve().parent.parent


@cache
def installed_domains() -> dict[str, EntryPoint]:
    """Entry points by name of the domain; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@cache
def installed_conf_dirs() -> tuple[Path, ...]:
    """Folders `conf/` beside the modules of installed domains, each once."""
    found: dict[Path, None] = {}
    for entry in installed_domains().values():
        spec = importlib.util.find_spec(entry.module.partition(".")[0])
        for location in (spec and spec.submodule_search_locations) or ():
            if (Path(location) / "conf").is_dir():
                found[Path(location) / "conf"] = None
    return tuple(found)


def conf_dir() -> Path:
    """The bundled configurations: inside an installed package, or beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def resolve_bundled(path: str) -> str:
    """A folder as an absolute path; `domains/...` is looked up in the installed package otherwise."""
    if path and Path(path).is_dir():  # Path("") is the folder of the launch
        return str(Path(path).absolute())
    spec = importlib.util.find_spec("domains") if Path(path).parts[:1] == ("domains",) else None
    if spec is None or not spec.submodule_search_locations:
        return path
    return str(Path(next(iter(spec.submodule_search_locations))).parent / path)
