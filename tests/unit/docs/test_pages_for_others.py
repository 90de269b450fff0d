"""The pages for authors of other code name keys, files and options that exist; their commands compose."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig, OmegaConf

from domains.privacy_hopqa.settings import settings_of as privacy_settings
from domains.raro.config import settings_of as raro_settings
from domains.reputation_hacking import train
from domains.reputation_hacking.ppo.recipes import PUBLIC
from pipelinerl.launch import main
from tests.unit.llm.test_tools import answers, model

ROOT = Path(__file__).resolve().parents[3]
PAGES = {"from_pr146": "privacy_hopqa", "from_verl_raro": "raro", "from_reputation": "reputation_hacking"}
LAUNCHED = ("from_pr146", "from_verl_raro")
"""Pages with launches and keys; the other one is about scripts of the domain."""
KEY = re.compile(r"`((?:privacy_hopqa|raro|finetune|vllm_config|world|llm|test_llm)\.[\w.-]+)[`=]")
FILE = re.compile(r"`([\w./]+\.(?:py|md|yaml|json))(?:::(\w+))?`")


def text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def said_of_here(page: str) -> str:
    """The page without what others call it, the first column of its tables."""
    lines = text(page).splitlines()
    return "\n".join(line.split(" | ", 1)[-1] if line.startswith("| ") else line for line in lines)


def commands(page: str) -> list[list[str]]:
    """Words of the commands; lines that only add overrides are added to the page's first command."""
    found: list[list[str]] = []
    for block in re.findall(r"^```sh\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = [word for word in shlex.split(line) if word != "DRY_RUN=1"]
            if words:
                found.append(words if words[0] in ("python", "pip") else [*found[0], *words])
    return found


@pytest.fixture
def composed(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], DictConfig]:
    """The tree that the launcher prints for the words behind its name."""

    def run(words: list[str]) -> DictConfig:
        hardware = [] if any(word.startswith("hardware=") for word in words) else ["hardware=gpu"]
        status = main([*words, *hardware, "--cfg", "job"])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return OmegaConf.create(shown.out)

    return run


@pytest.mark.parametrize("page", LAUNCHED)
def test_every_launch_composes_and_its_domain_accepts_its_block(
    page: str, composed: Callable[[list[str]], DictConfig]
) -> None:
    launches = [words[3:] for words in commands(page) if words[2:3] == ["pipelinerl.launch"]]
    assert launches
    for words in launches:
        tree = composed(words)
        if "privacy_hopqa" in tree:
            privacy_settings(tree)
        if "raro" in tree:
            raro_settings(tree)


@pytest.mark.parametrize("page", [*LAUNCHED, "from_trl"])
def test_every_key_is_there(page: str, composed: Callable[[list[str]], DictConfig]) -> None:
    tree = composed([f"+domain={PAGES.get(page, 'math')}", "model_path=MODEL"])
    keys = sorted(set(KEY.findall(said_of_here(page))))
    assert keys
    for key in keys:
        parent, _, name = key.rpartition(".")
        assert name in OmegaConf.select(tree, parent), key


@pytest.mark.parametrize("page", PAGES)
def test_every_file_is_there_and_holds_what_is_named(page: str) -> None:
    folders = [ROOT, ROOT / "domains" / PAGES[page], ROOT / "domains" / PAGES[page] / "agent"]
    files = FILE.findall(said_of_here(page))
    assert files
    for path, name in files:
        found = [folder / path for folder in folders if (folder / path).exists()]
        assert found, path
        assert not name or any(name in file.read_text(encoding="utf-8") for file in found), f"{path}::{name}"


async def test_the_domain_for_users_of_trl_is_launched_and_rewards_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, composed: Callable[[list[str]], DictConfig]
) -> None:
    (code,), (configuration,) = (
        re.findall(rf"^```{language}\n(.*?)^```", text("from_trl"), re.MULTILINE | re.DOTALL)
        for language in ("python", "yaml")
    )
    (tmp_path / "conf" / "domain").mkdir(parents=True)
    (tmp_path / "conf" / "domain" / "graded.yaml").write_text(configuration)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"question": "how many", "answer": "8"}\n' * 2)
    monkeypatch.chdir(tmp_path)
    ((*_, config_dir, folder, _, _, grpo, _, _),) = commands("from_trl")
    tree = composed([config_dir, folder, "+domain=graded", grpo, "model_path=MODEL"])
    assert tree.finetune.rl.policy_loss == "ppo" and tree.actor.rollout_policy == "graded.play"

    names: dict[str, Any] = {}
    exec(code, names)  # the page's own code
    first, second = names["load_problems"](tree.train_dataset_names, **tree.dataset_loader_params)
    assert first["id"] != second["id"]
    for said_by_model, reward in (("a8", 1.0), ("9", 0.0)):
        with answers(said_by_model) as engine:
            async with aiohttp.ClientSession() as session:
                result = await names["play"](tree, model(engine, tmp_path / said_by_model), first, session)
        (sample,) = result.training_texts
        assert sample.reward == result.metrics.reward == reward and result.metrics.success is bool(reward)


@pytest.mark.usefixtures("forked")
def test_every_option_of_the_reputation_game_is_there() -> None:
    for command in ("train", "eval"):
        module = f"domains.reputation_hacking.{command}"
        used = [words for words in commands("from_reputation") if words[2:3] == [module]]
        told = [sys.executable, "-m", module, "--help"]
        shown = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
        options = {word for words in used for word in words if word.startswith("--")}
        assert options and not {option for option in options if not re.search(rf"{option}\b", shown)}


def test_the_options_of_the_reputation_page_are_the_originals_recipe() -> None:
    module = "domains.reputation_hacking.train"
    trained = [words[3:] for words in commands("from_reputation") if words[2:3] == [module]]
    named, by_hand = (train.recipe_of(train.arguments().parse_args(words)) for words in trained)
    assert named == PUBLIC == replace(by_hand, reward_scale=1.0)
