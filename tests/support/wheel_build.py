"""The project's wheel, for the tests of an installation."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipelinerl", "domains", "retrieval_server", "conf")


def data_files() -> list[Path]:
    """What git does not ignore below the packages; in a copy without history, what lies there."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT) for path in found if "__pycache__" not in path.parts]


def build_wheel(source: Path, out: Path) -> Path:
    """As pip builds it, in `out`, from a copy in `source`: a build leaves files in its folder."""
    for path in [*data_files(), *map(Path, ("setup.py", "pyproject.toml", "README.md", "LICENSE"))]:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)
    script = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    built = subprocess.run(
        [sys.executable, "-c", script, str(out)], cwd=source, capture_output=True, text=True, timeout=100
    )
    assert built.returncode == 0, built.stderr[-2000:]
    (found,) = out.glob("pipelinerl-*.whl")
    return found
