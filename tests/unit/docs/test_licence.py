"""The licence is one: the text in LICENSE, what a wheel says of itself, and what the pages say."""

import hashlib
import subprocess
import sys
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STANDARD = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the text at apache.org/licenses/LICENSE-2.0.txt."""
METADATA = """
import setuptools, sys
from distutils.core import run_setup
run_setup("setup.py", stop_after="config").metadata.write_pkg_file(sys.stdout)
"""


def test_the_licence_is_the_standard_text() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == STANDARD


def test_a_wheel_names_the_licence_and_carries_its_text() -> None:
    """The metadata as setuptools writes them, without a build."""
    command = [sys.executable, "-c", METADATA]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    metadata = Parser().parsestr(answer.stdout)
    assert (metadata["License-Expression"] or metadata["License"]) == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


def test_the_readme_says_the_licence_and_the_page_it_links_where_everything_bundled_comes_from() -> None:
    licence = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Licence\n")[2]
    assert "Apache License 2.0 ([`LICENSE`](LICENSE))" in licence
    assert "(CONTRIBUTING.md#what-is-bundled)" in licence
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("\n## What is bundled\n")[2].partition("\n## ")[0]
    assert "[`LICENSE`](LICENSE)" in section
    for path in (ROOT / "tests" / "fixtures").iterdir():
        assert path.name in section or (path.name.startswith("vllm_") and "vllm_*.jsonl.gz" in section), path
