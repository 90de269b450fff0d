"""Dialogues with a Python tool: what is run, what the model reads; only sampled tokens are trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from domains.math.environment import MathEnvironment
from domains.math.rollouts import _pools
from domains.tir.rollouts import generate_tir_rollout
from domains.tir.settings import settings_of
from domains.tir.tool import program_of, shown
from pipelinerl.config.compose import compose
from pipelinerl.domain import resolve_dotted
from pipelinerl.extras.sandbox.host import Outcome
from pipelinerl.rollouts import MASKED_TOKEN_ID, RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.one_line import check_refusals, check_starts
from tests.support.tiny_model import build_tokenizer

TIR = "+domain=tir"
MORE = "`()=+_\\{}*<>[]'\",/"
TOKENIZER = build_tokenizer(MORE)
ASKS = "Try\n```python\nprint(6 * 7)\n```\n"
FAILS = "```python\nprint(6 / 0)\n```"
A = 10 * "a"
ENDS = "So \\boxed{42}"


def ids_of(text: str) -> list[int]:
    return [*TOKENIZER.convert_tokens_to_ids(list(text)), TOKENIZER.eos_token_id]


async def played(
    tmp_path: Path, *answers: str, gold: str = "42", options: tuple[str, ...] = ()
) -> RolloutResult:
    """A rollout in which the model gives these answers in turn."""
    TOKENIZER.save_pretrained(str(tmp_path))
    left = [ids_of(answer) for answer in answers]
    cfg = compose([TIR, "hardware=cpu", "world.environment_mode=embedded", "tir.timeout_s=50", *options]).tree
    problem = {"task": "What is 6 * 7?", "answer": gold, "dataset": "d", "id": "d-0"}
    fields = {"parameters": {"max_tokens": 200}, "context_size": 2000}
    try:
        with FakeEngine(lambda prompt: left.pop(0), max_model_len=2000) as engine:
            return await rolled_out(generate_tir_rollout, cfg, problem, engine, tmp_path, **fields)
    finally:
        _pools.of(cfg).close()


def sampled(result: RolloutResult) -> str:
    """What is trained, as text."""
    kept = [
        [int(label) for label in text.labels if label != MASKED_TOKEN_ID] for text in result.training_texts
    ]
    return "|".join("".join(TOKENIZER.convert_ids_to_tokens(ids)) for ids in kept)


async def test_a_program_is_run_and_its_output_is_read_and_never_trained(tmp_path: Path) -> None:
    result = await played(tmp_path, ASKS, ENDS)
    (text,) = result.training_texts
    assert "```output\n42\n```" in text.text and sampled(result) == f"{ASKS}<e>{ENDS}<e>"
    assert text.reward == 1.0 and len(text.logprobs) == text.output_tokens == len(ids_of(ASKS) + ids_of(ENDS))
    # What is labelled is what lies there.
    assert all(
        label in (MASKED_TOKEN_ID, token) for label, token in zip(text.labels, text.input_ids, strict=True)
    )
    metrics = result.metrics.model_dump()
    assert (metrics["num_python_calls"], metrics["python_errors"], metrics["num_steps"]) == (1, 0, 2)
    assert metrics["success"] and text.metadata["verdict"] == "correct" and result.domain == "tir"


async def test_an_error_is_read_too_and_texts_may_stay_apart(tmp_path: Path) -> None:
    result = await played(tmp_path, FAILS, ASKS, ENDS, options=("tir.join=false",))
    assert [text.reward for text in result.training_texts] == [1.0] * 3
    assert "ZeroDivisionError: division by zero" in result.training_texts[1].text
    assert sampled(result) == f"{FAILS}<e>|{ASKS}<e>|{ENDS}<e>"
    metrics = result.metrics.model_dump()
    assert (metrics["num_python_calls"], metrics["python_errors"]) == (2, 1)


async def test_the_last_answer_runs_nothing_and_may_be_wrong_or_missing(tmp_path: Path) -> None:
    result = await played(tmp_path, ASKS, ASKS, options=("tir.max_turns=2",))
    metrics = result.metrics.model_dump()
    assert metrics["no_answer"] and (metrics["num_python_calls"], metrics["num_steps"]) == (1, 2)
    result = await played(tmp_path, f"{ASKS}{ENDS}", gold="43")
    assert result.metrics.num_python_calls == 0 and result.metrics.reward == 0.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer, program",
    [
        (ASKS, "print(6 * 7)"),
        (f"{ENDS} or\n{ASKS}", "print(6 * 7)"),
        (ASKS + ENDS, None),
        (f"```python\nprint(1)\n``` {ENDS}", None),  # behind a fence, on its line or below it
        (f"> ```python\n> f()\n> ``` It is\n> {ENDS}", None),
        ("```python\nf(r'\\boxed{1}')\n``` Well", "f(r'\\boxed{1}')"),
        ("```\nprint(1)\n```", None),
        ("```py\na\n```\n```python\nb\n```", "b"),
        ("```python\n\n```", None),
        ("no program", None),
    ],
)
def test_which_block_is_run(answer: str, program: str | None) -> None:
    assert program_of(answer) == program


@pytest.mark.parametrize(
    "outcome, text",
    [
        (Outcome("finished", 0, "1\n2\n", "", 0, 0), "1\n2"),
        (Outcome("finished", 0, "", "warned", 0, 0), "(no output)"),
        (Outcome("finished", 1, "1\n", "E: x\n", 0, 0), "1\nE: x"),
        (Outcome("timeout", -9, "", "", 0, 0), "the program took too long"),
        (Outcome("finished", 0, "```output\n```", "", 0, 0), "'''output\n'''"),
        (Outcome("finished", 0, "a" * 60, "", 0, 0), f"{A}\n... 40 characters left out ...\n{A}"),
    ],
)  # fmt: skip
def test_what_is_shown_of_a_program(outcome: Outcome, text: str) -> None:
    assert shown(outcome, 20 if len(outcome.stdout) > 50 else 2000) == text


def test_it_starts_on_both_kinds_of_hardware(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, TIR)
    check_refusals(
        dry_run,
        TIR,
        ("train_dataset_names=[aime_2024]", "dataset 'aime_2024': no file aime_2024.jsonl"),
        ("tir.max_turn=3", "did you mean tir.max_turns?"),
        ("tir.packages=[no_such]", "sandbox package 'no_such': not installed"),
    )


def test_upstreams_names_and_keys() -> None:
    for name in ("rollouts.generate_tir_rollout", "generate_tir_rollout", "datasets.load_datasets"):
        assert callable(resolve_dotted(f"pipelinerl.domains.tir.{name}", "key"))
    environment = resolve_dotted("pipelinerl.domains.tir.environment.MCPPythonEnvironment", "key")
    assert isinstance(environment(workers=1), MathEnvironment)
    tree = {"actor": {"agent_max_loops": 3}, "sandbox_timeout": 2, "sandbox_endpoint": "http://a"}
    found = settings_of(OmegaConf.create(tree))
    assert (found.max_turns, found.timeout_s) == (3, 2.0)
    assert settings_of(OmegaConf.create({"actor": {"max_reasoning_steps": 6}})).max_turns == 6
    with pytest.raises(ValueError, match="length_shaping: is not given here and would change the reward"):
        settings_of(OmegaConf.create({"length_shaping": {"slope": 1}}))
