"""Every other command of every page: the script is there and takes its options. Nothing is run.

Launches and bootstraps are `test_launch_commands.py`, the commands of the root README are executed by
`tests/pipeline/test_readme.py`.
"""

import argparse
import ast
import json
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from retrieval_server.app import LOCAL_ROUTE, WEB_ROUTE
from retrieval_server.limits import parse_local_search, parse_web_search

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    page
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "domains/**/README.md", "*/README.md")
    for page in ROOT.glob(pattern)
)
OF_OTHER_TESTS = ("pipelinerl.launch", "pipelinerl.bootstrap", "pytest")
WITHOUT_OPTIONS = ("domains.reputation_hacking.env", "pipelinerl.config.reference")
PLACES = {"PORT": "8080", "HOST:PORT": "127.0.0.1:8080"}
"""What a reader puts in for words in capitals where a number is asked for."""


class Read(Exception):
    """The script has read its command line."""


def texts(page: Path) -> list[str]:
    """What a reader may copy: the code blocks, and what stands between backticks in a sentence."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fenced if language not in ("python", "py")]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [*"\n".join(blocks).replace("\\\n", " ").splitlines(), *inline]


def words_of(line: str) -> list[str]:
    """The words behind `python -m`; optional ones, which stand in brackets, as if they were given."""
    _, _, rest = line.partition("python -m ")
    return [
        PLACES.get(word, word) for word in shlex.split(re.sub(r"\[(--[^]]*)\]", r"\1", rest), comments=True)
    ]


def commands() -> dict[str, list[str]]:
    found = {}
    for page in dict.fromkeys(PAGES):
        for line in texts(page):
            words = words_of(line) if "python -m " in line else []
            if words and words[0] not in OF_OTHER_TESTS:
                found[f"{page.relative_to(ROOT)}: {' '.join(words)}"] = words
    return found


SHOWN = commands()
SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if "command_line(__doc__" in path.read_text(encoding="utf-8")
)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, Sequence[str]], None]:
    """Runs a script until its command line is read; a wrong option ends it with status 2."""

    def until_read(name: str) -> None:
        own = getattr(argparse.ArgumentParser, name)

        def then_stop(*args: object, **kwargs: object) -> None:
            own(*args, **kwargs)
            raise Read

        monkeypatch.setattr(argparse.ArgumentParser, name, then_stop)

    until_read("parse_args")
    until_read("parse_intermixed_args")
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)

    def run(module: str, options: Sequence[str]) -> None:
        monkeypatch.setattr(sys, "argv", [module, *options])
        for imported in (module, f"{module}.__main__"):  # which a second execution would warn about
            # A package stays: imported anew it would have lost its modules, for every test behind this one.
            if not hasattr(sys.modules.get(imported), "__path__"):
                monkeypatch.delitem(sys.modules, imported, raising=False)
        with pytest.raises(Read):
            runpy.run_module(module, run_name="__main__", alter_sys=True)

    return run


@pytest.mark.parametrize("words", list(SHOWN.values()), ids=list(SHOWN))
def test_a_script_takes_the_options_that_a_page_shows(
    words: list[str], reads: Callable[[str, Sequence[str]], None]
) -> None:
    module, *options = words
    if module in WITHOUT_OPTIONS:
        assert options == [] and find_spec(module) is not None
    else:
        reads(module, options)


def test_scripts_of_every_kind_are_shown() -> None:
    """Else the patterns above find nothing any more."""
    shown = {words[0] for words in SHOWN.values()}
    assert len(shown) >= 30
    assert {"benchmarks.gpu.trl", "benchmarks.gpu.shared", "retrieval_server.index", "tests.chaos"} <= shown


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_takes_every_option_of_its_usage(
    script: str, reads: Callable[[str, Sequence[str]], None]
) -> None:
    """Each with the value that the usage shows; words in capitals are the reader's."""
    text = (ROOT / f"{script.replace('.', '/')}.py").read_text(encoding="utf-8")
    usage = (
        (ast.get_docstring(ast.parse(text)) or "").partition(f"python -m {script}")[2].partition("\n\n")[0]
    )
    given = usage.partition("[")[0].split("|")[0].split()
    for name, *values in map(str.split, re.findall(r"\[(--[^]]+)\]", usage)):
        if not any((value.isupper() and value.isalpha()) or ":" in value for value in values):
            given += [name, *(value.split("|")[0] for value in values)]
    reads(script, given)


def test_the_requests_of_the_retrieval_page_are_valid() -> None:
    page = (ROOT / "retrieval_server/README.md").read_text(encoding="utf-8")
    asked = re.findall(r"^curl -s localhost:8700(/\S+) -d '(.+)'$", page, re.MULTILINE)
    parsers = {LOCAL_ROUTE: parse_local_search, WEB_ROUTE: parse_web_search}
    assert {route for route, _ in asked} == set(parsers)
    for route, body in asked:
        fields = json.loads(body)
        found = parsers[route](fields)
        assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_target_of_make_is_there(page: Path) -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {line.split()[1] for line in texts(page) if re.match(r"make [a-z-]+( [A-Z]+=|$| +#)", line)}
    assert shown <= rules
