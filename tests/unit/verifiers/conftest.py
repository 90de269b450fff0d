"""verifiers is an extra (`pip install 'pipelinerl[verifiers]'`); `tasksets` skips without it."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipelinerl.config.compose import compose
from pipelinerl.extras import recorder
from pipelinerl.rollouts import RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.text_model import build_text_model, byte_tokenizer
from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches

FIXTURES = Path(__file__).resolve().parent / "tasksets"
TOKENIZER = byte_tokenizer()
QWEN = ["im_start", "im_end", "endoftext"]
TOKENIZER.add_tokens([f"<|{name}|>" for name in QWEN], special_tokens=True)
TOKENIZER.add_tokens(
    [f"<{end}{name}>" for name in ("tool_call", "tool_response", "think") for end in ("", "/")]
)
Say = Callable[[str], str]
Play = Callable[..., Any]


@pytest.fixture
def tasksets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasksets of tests can be named, here and in the processes of their tools."""
    pytest.importorskip("verifiers", reason="pip install 'pipelinerl[verifiers]'")
    monkeypatch.syspath_prepend(str(FIXTURES))
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(FIXTURES), inherited))))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes and of the marks that Qwen3 writes, with a chat template that knows tools."""
    folder = build_text_model(tmp_path_factory.mktemp("text"))
    TOKENIZER.save_pretrained(str(folder))
    return folder


@pytest.fixture
async def play(tasksets: None, folder: Path) -> AsyncIterator[Play]:
    """One episode of a problem in which every seat says what `say` makes of the prompt."""
    from domains.verifiers import generate_verifiers_rollout

    tree = compose(["+domain=verifiers", "hardware=cpu"]).tree

    async def rollout(
        problem: dict[str, Any], say: Say, delay_s: float = 0, **settings: Any
    ) -> RolloutResult:
        def answer(ids: list[int]) -> list[int]:
            return [
                *TOKENIZER.encode(say(TOKENIZER.decode(ids)), add_special_tokens=False),
                TOKENIZER.eos_token_id,
            ]

        cfg = OmegaConf.merge(tree, {"verifiers": settings})
        with FakeEngine(answer, max_model_len=4096, delay_s=delay_s) as engine:
            fields = {"parameters": {"max_tokens": 64}, "context_size": 4096, "max_retries": 0}
            return await rolled_out(generate_verifiers_rollout, cfg, problem, engine, folder, **fields)

    yield rollout
    await recorder.close()
