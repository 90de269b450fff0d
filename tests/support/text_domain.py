"""What tests of text domains share: a rollout, rewards by verdict, rows that are refused, upstream's file."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from pipelinerl.config.compose import compose
from pipelinerl.domain import resolve_dotted
from pipelinerl.rollouts import RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.tiny_model import build_tokenizer, save_model

MORE = '*<>[]{}/,;_"'
"""What is said beside the characters of every tiny tokenizer."""
REWARDS = {
    f"{status}_{end}": 0.0
    for status in ("wrong_answer", "no_answer", "unparsable", "correct_answer")
    for end in ("finished", "not_finished")
} | {"correct_answer_finished": 1.0, "wrong_answer_finished": -0.5, "no_answer_finished": -1.0}


async def played(
    policy: Callable[..., Any], cfg: Any, problem: dict[str, Any], folder: Path, speak: Callable[[str], str]
) -> RolloutResult:
    """One rollout; to each prompt the model says what `speak` makes of it."""
    tokenizer = build_tokenizer(MORE)

    def answer(ids: list[int]) -> list[int]:
        return [*tokenizer.convert_tokens_to_ids(list(speak(tokenizer.decode(ids)))), tokenizer.eos_token_id]

    with FakeEngine(answer, max_model_len=4096) as engine:
        few = {"max_tokens": 200}
        return await rolled_out(policy, cfg, problem, engine, save_model(folder, MORE), parameters=few)


def check_bad_row(load: Callable[[list[str]], Any], folder: Path, row: Any, message: str) -> None:
    """A file of this one row is refused in one line, which says where it stands and `message`."""
    path = folder / "bad.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"bad\.jsonl:1: " + f".*{re.escape(message)}") as refused:
        load([str(path)])
    assert "\n" not in str(refused.value)


def upstreams_file(
    folder: Path, name: str, text: str, policy: Callable[..., Any]
) -> tuple[DictConfig, Callable[..., Any]]:
    """The tree that upstream's configuration composes to, with this rollout policy, and its loader."""
    (folder / f"{name}.yaml").write_text(text)
    tree = compose(["hardware=cpu"], name, folder).tree
    assert resolve_dotted(tree.actor.rollout_policy, "actor.rollout_policy") is policy
    return tree, resolve_dotted(tree.dataset_loader, "dataset_loader")


def check_one_server(dry_run: Callable[..., Any], folder: Path, name: str) -> None:
    """A dry run of upstream's configuration starts one server of verdicts."""
    status, out, err = dry_run(f"--config-dir={folder}", f"--config-name={name}", "hardware=cpu")
    assert (status, err) == (0, "") and f"{name}: 1 server" in out
