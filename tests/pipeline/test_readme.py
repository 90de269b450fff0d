"""README and first pages keep their word: every command in them is executed, at smoke size, or validated.

A command that no rule below knows fails, so that a new one cannot go untested.
"""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipelinerl.base.ports import is_free
from pipelinerl.config import load
from pipelinerl.config.compose import compose
from pipelinerl.engines.wire import shared_directory
from pipelinerl.pretrained import MODELS
from pipelinerl.run_state.accounting import Outcome, reconcile
from tests.pipeline.conftest import DEADLINE_S, NO_PAGE, ROOT, SMALL
from tests.support.forked import Forked
from tests.support.metric_tables import check_run

DOMAINS = "docs/adding_a_domain.md"
PAGES = ("README.md", "docs/running.md", DOMAINS, "docs/small_models.md", "docs/gpu.md")
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
RUN, GUESSED = "results/first", "results/guessing"
SMOKE = (
    *(one for one in SMALL if one != NO_PAGE),
    "finetune.max_train_steps=1",
    "dataset_loader_params.count=6",
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", "\n".join(TEXTS.values()), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """All but launches and recipes, which `test_launch_commands.py` tries, on both kinds of hardware."""
    return [one for one in shown() if rule_of(split(one)[1]) not in (_launch, _bootstrap)]


def shown() -> list[str]:
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return list(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip()))


def example_files() -> dict[str, str]:
    """What a reader puts into a folder to follow "Adding a domain": name and content."""
    page = TEXTS[DOMAINS]
    names = re.findall(r"in `([\w/]+\.(?:py|yaml))`:\n\n```", page)
    contents = re.findall(r"^```(?:python|yaml)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(names) == len(contents) == 2
    return dict(zip(names, contents))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with the example's files and a place where bootstrap has left its model."""
    for name, content in example_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    model = tmp_path / "results/small_model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(
        json.dumps({"model_type": "olmo2", "vocab_size": 100, "max_position_embeddings": 1024})
    )
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # whole, and empty
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """Environment variables set before a command, and its words."""
    words = shlex.split(command)
    count = next(i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def rule_of(words: list[str]) -> "Rule | None":
    return next((rule for start, rule in RULES.items() if words[: len(start)] == list(start)), None)


def looks_at_a_run(command: str) -> bool:
    return rule_of(split(command)[1]) is _look


def check(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute the command as far as that is cheap; AssertionError if it is wrong in any way."""
    variables, words = split(command)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rule = rule_of(words)
    assert rule is not None, f"no rule tests {command!r}"
    rule(words)


def _launch(words: list[str]) -> None:
    stops_early = "--cfg" in words or os.environ.get("DRY_RUN")
    assert _main("pipelinerl.launch", [*words[3:], *([] if stops_early else ["validate=true"])]) == 0


def _bootstrap(words: list[str]) -> None:
    assert _main("pipelinerl.extras.bootstrap.__main__", [*words[3:], "validate=true"]) == 0


def _pip(words: list[str]) -> None:
    assert " ".join(words) in [model.remedy for model in MODELS.values()]


def _pretrained(words: list[str]) -> None:
    """Makes the model or, where the wheel is not installed, refuses."""
    out = Path(words[4])
    assert _main("pipelinerl.pretrained", words[3:]) == (0 if (out / "source.json").exists() else 2)
    assert words[3] in MODELS and len(words) == 5


def _new_domain(words: list[str]) -> None:
    """Writes what the section below it shows, and tests that pass inside a clone, without these files."""
    fresh = Path("fresh")
    fresh.mkdir()
    shutil.copy(ROOT / "pyproject.toml", fresh)
    made = shell(shlex.join(words), fresh)
    assert made.returncode == 0, made.stderr
    for name, content in example_files().items():
        assert (fresh / words[3] / name).read_text() == content
    # What `python -m pytest -q` does, without what a second pytest imports.
    with Forked(
        [sys.executable, "-m", "pytest", "-q"], cwd=fresh / words[3], stdout=subprocess.PIPE
    ) as tests:
        said, _ = tests.communicate(timeout=DEADLINE_S)
    assert tests.returncode == 0 and b" passed" in said, said.decode()


def _experiment(words: list[str]) -> None:
    """Refused in time, because nobody has made its model here."""
    assert _main(f"{words[2]}.__main__", words[3:]) == 2


def _look(words: list[str]) -> None:
    """Looks at a run, which the test of the example does for those that suit any domain."""
    assert any(run in " ".join(words) for run in (RUN, GUESSED))


def _leakage(words: list[str]) -> None:
    assert words[3:] == [RUN]
    with pytest.raises(SystemExit, match=r"^0$"):
        _main("domains.privacy_hopqa.leakage.__main__", [*words[3:], "--help"])


def _wandb(words: list[str]) -> None:
    """Runs lie in the folders of the roles that write metrics."""
    assert metadata.entry_points(group="console_scripts", name="wandb")
    assert re.fullmatch(rf"{RUN}/wandb/offline-run-\*", words[2])


def _make(words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    dry = subprocess.run(
        ["make", "--dry-run", *words[1:]], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert dry.returncode == 0, dry.stderr
    for line in dry.stdout.splitlines():
        if "pipelinerl.launch" in line:
            _launch(shlex.split(line))


def _activate(words: list[str]) -> None:
    """The environment that `make setup` makes."""
    made = re.search(r"^VENV \?= (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert made and words == ["source", f"{made[1]}/bin/activate"]


def _main(module: str, arguments: list[str]) -> int:
    return int(importlib.import_module(module).main(arguments))


Rule = Callable[[list[str]], None]
RULES: dict[tuple[str, ...], Rule] = {
    ("make",): _make,
    ("source",): _activate,
    ("python", "-m", "pipelinerl.launch"): _launch,
    ("python", "-m", "pipelinerl.bootstrap"): _bootstrap,
    ("pip", "install"): _pip,
    ("python", "-m", "pipelinerl.pretrained"): _pretrained,
    ("python", "-m", "pipelinerl.new_domain"): _new_domain,
    ("python", "-m", "benchmarks"): _experiment,
    ("python", "-m", "domains.privacy_hopqa.leakage"): _leakage,
    ("python", "-m", "pipelinerl.report"): _look,
    ("python", "-m", "pipelinerl.view"): _look,
    ("python", "-m", "pipelinerl.streams"): _look,
    ("tail",): _look,
    ("wandb", "sync"): _wandb,
}


def marked(command: str) -> Any:
    """Unpacking the wheel's model takes as long as all others; `test_pretrained.py` unpacks a small one."""
    return pytest.param(command, marks=pytest.mark.slow) if _makes_a_model(command) else command


def _makes_a_model(command: str) -> bool:
    return rule_of(split(command)[1]) is _pretrained


@pytest.mark.parametrize("command", [marked(command) for command in commands()])
def test_a_command_of_the_readme_is_right(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(command, monkeypatch)


@pytest.mark.parametrize("command", [*filter(_makes_a_model, commands())])
def test_a_command_that_makes_a_model_finds_the_file_to_unpack(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelinerl.modeling import gguf

    monkeypatch.setattr(gguf, "save_unpacked", lambda path, _: path.stat().st_size)
    check(command, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        "make quikstart",
        "python -m pipelinerl.lunch +domain=guessing",
        "python -m pipelinerl.launch +domain=gessing",
        "python -m pipelinerl.launch +domain=privacy_hopqa hardware=cpu finetune.max_train_step=3",
        "DRY_RUN=1 python -m pipelinerl.launch +domain=guessing hardware=gpu model_pth=a/b",
        "python -m pipelinerl.bootstrap +domain=privacy_hopqa bootstrap.budgt=0.1",
        "python -m pipelinerl.report results/frist",
    ],
)
def test_a_misspelt_command_would_be_noticed(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError):
        check(command, monkeypatch)


def test_the_example_domain_trains_and_its_run_can_be_looked_at(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A real run of the README's own domain, from a folder outside the repository, then every look at it.

    Its counts add up, its metrics have the documented names, it leaves nothing behind and is not repeated.
    The command is taken by a process of its own; those of the run are forks, which find the domain where new
    interpreters would: in the folder that they were started from.
    """
    (launch,) = [command for command in shown() if "--config-dir" in command]
    valid = shell(f"{launch} validate=true", folder)
    assert valid.returncode == 0, valid.stderr
    with monkeypatch.context() as reader:
        reader.setattr(sys, "path", [one for one in sys.path if one != str(folder)])
        reader.delitem(sys.modules, "higher_lower", raising=False)
        words = [sys.executable, *split(launch)[1][1:], *SMOKE]
        with Forked(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
            out, err = training.communicate(timeout=DEADLINE_S)
    assert training.returncode == 0, err
    assert re.search(r"rollouts: [1-9]\d* started = [1-9]\d* trained", out), out
    target = Path(dict(word.split("=", 1) for word in split(launch)[1] if "=" in word)["output_dir"])
    for run in (RUN, GUESSED):
        (folder / run).symlink_to(folder / target)
    assert (folder / target / "report/rollouts/index.html").is_file()
    figures = [*(folder / target / "report").glob("*.png")]
    assert figures and all(figure.stat().st_size > 1000 for figure in figures)
    counts = reconcile(target)
    assert counts.adds_up and counts.eval_started == counts.eval_ends[Outcome.EVAL_DONE] > 0
    check_run(target)
    assert all(is_free(job.port) for job in load(target).jobs if job.port)
    assert not shared_directory(target).exists()
    request.getfixturevalue("undrawn")  # by the looks in this process
    assert _main("pipelinerl.launch", [*split(launch)[1][3:], *SMOKE]) == 0
    assert "this run completed its 1 steps" in capsys.readouterr().out
    assert reconcile(target) == counts

    seen = {}
    for words in (split(command)[1] for command in filter(looks_at_a_run, commands())):
        if words[0] == "python":
            module = {"pipelinerl.streams": "pipelinerl.streams.__main__"}.get(words[2], words[2])
            assert _main(module, words[3:]) == 0
            seen[words[2]] = capsys.readouterr().out
        else:
            seen[words[0]] = shell(shlex.join(words), folder).stdout
    assert "Evaluation on held-out problems" in seen["pipelinerl.report"]
    assert Path(seen["pipelinerl.view"].strip()).is_file()
    for lines in (seen["pipelinerl.streams"], seen["tail"]):
        assert [json.loads(line) for line in lines.splitlines()]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a reader's shell does with the command, in the environment that runs the tests."""
    binaries = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


@pytest.mark.parametrize("page", PAGES)
def test_files_and_keys_that_a_page_names_exist(page: str) -> None:
    text = TEXTS[page]
    tree = compose(["+domain=privacy_hopqa", "hardware=cpu"]).tree
    quoted = set(re.findall(r"`([^`\s]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))
    files = {name for name in quoted if re.match(r"(pipelinerl|domains|conf|docs|benchmarks)/", name)}
    files -= example_files().keys()
    assert files or page == "docs/small_models.md"  # which names folders of models only
    assert not [name for name in files if not (ROOT / name).exists()]
    keys = {name.split("=")[0] for name in quoted if re.match(r"[a-z]+_?[a-z]*\.[\w.]+(=|$)", name)}
    keys -= {name for name in keys if re.search(r"\.(py|md|json|jsonl|yaml|sh)$", name)}
    assert keys and not [key for key in keys if OmegaConf.select(tree, key, default=tree) is tree]
    for target in re.findall(r"\]\((?!https?:)([^)#]*(?:#[^)]+)?)\)", text):
        path, _, heading = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), target
        headings = (
            re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
        )
        assert not heading or heading in [anchor(one) for one in headings], target


def anchor(heading: str) -> str:
    """What a heading is called in an address."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_quickstart_s_output_can_be_replaced() -> None:
    start, end = "<!-- quickstart-output:start -->\n```\n", "```\n<!-- quickstart-output:end -->"
    page = TEXTS["docs/running.md"]
    assert page.count(start) == page.count(end) == 1 and page.index(start) < page.index(end)
