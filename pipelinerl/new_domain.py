"""Begin a domain: `python -m pipelinerl.new_domain NAME [--into DIR]`.

Writes a folder with two functions, a configuration, tests and a README that run as they are; the functions
are those of `docs/adding_a_domain.md`. The folder may lie anywhere, it need not be in this
package.
"""

import keyword
import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from pipelinerl.base.errors import CommandParser, ConfigError, leave, printable
from pipelinerl.config.installed import conf_dir, installed_conf_dirs

NAME = "DOMAIN_NAME"
"""Stands for the domain's name in templates, and in where they go."""
FILES = {
    "domain.py.txt": f"{NAME}.py",
    "domain.yaml.txt": f"conf/domain/{NAME}.yaml",
    "test_domain.py.txt": f"test_{NAME}.py",
    "pytest.ini.txt": "pytest.ini",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}


def check_name(name: str) -> None:
    """ConfigError for a name that could not be imported, or that something else already has."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(f"{name!r} is no module name; use lower-case letters, digits and _")
    if any((root / "domain" / f"{name}.yaml").is_file() for root in (*installed_conf_dirs(), conf_dir())):
        raise ConfigError(f"{name} is a domain that is installed; choose another name")
    if find_spec(name) is not None:
        raise ConfigError(f"{name} is a module that Python finds already; choose another name")


def write_domain(name: str, folder: Path) -> list[Path]:
    """Write the files into `folder`, which must be new or empty; ConfigError otherwise."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; give another --into or remove it")
    check_name(name)
    templates = resources.files("pipelinerl") / "templates"
    written = []
    for template, target in FILES.items():
        path = folder / target.replace(NAME, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (templates / template).read_text(encoding="utf-8")
        path.write_text(text.replace(NAME, name), encoding="utf-8")
        written.append(path)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when the folder is written, 2 with one line when it cannot be."""
    parser = CommandParser(
        prog="python -m pipelinerl.new_domain", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("name", help="of the domain and its module")
    parser.add_argument("--into", type=Path, help="the folder to make (default: ./NAME)")
    args = parser.parse_args(argv)
    folder = args.into or Path(args.name)
    try:
        written = write_domain(args.name, folder)
    except (ConfigError, OSError) as error:
        print(printable(f"new_domain: {error}"), file=sys.stderr)
        return 2
    for path in written:
        print(printable(str(path)))
    goes = f"cd {shlex.quote(str(folder))} && python -m pytest"
    print(printable(f"next: {goes}; README.md there has the command that trains"))
    return 0


if __name__ == "__main__":
    leave("new_domain", main)
