"""A domain written for upstream's interface trains unchanged; only its two functions are named."""

from pathlib import Path

import pytest

from pipelinerl.config import load
from tests.pipeline.conftest import Start

DOMAIN = '''
"""Guess a number with a dialogue that is written anew for every guess."""
import random
import re
import time

import aiohttp
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult


class Metrics(BaseMetrics):
    tries: int


async def generate_guess_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict, session: aiohttp.ClientSession
) -> RolloutResult:
    began, calls, found = time.time(), [], False
    history = ""
    for _ in range(2):
        messages = [
            {"role": "system", "content": "guess the number"},
            {"role": "user", "content": history or "begin"},
        ]
        call = await llm_async_generate(llm, Prompt(messages=messages), session)
        calls.append(call)
        number = re.search("[0-9]+", call.output.content or "")
        found = number is not None and number[0] == str(problem["answer"])
        if found:
            break
        history += " higher" if random.random() < 0.5 else " lower"
    texts = [make_training_text(llm, call) for call in calls]
    reward = 1.0 - 0.1 * len(texts) if found else float(len(calls[0].output.content or "") % 2)
    for text in texts:
        text.reward = reward
    metrics = Metrics(reward=reward, success=found, no_error=True, no_answer=number is None, tries=len(texts))
    return RolloutResult(
        training_texts=texts,
        metrics=metrics,
        latency=time.time() - began,
        dataset_name=problem["dataset"],
    )


def load_problems(dataset_names: list[str]) -> list[dict]:
    known = {"train": 8, "test": 3}
    return [
        {"id": index, "dataset": name, "answer": random.randint(1, 9)}
        for name in dataset_names
        for index in range(known[name])
    ]
'''
SIZES = [
    "llm.parameters.max_tokens=6",
    "test_llm.parameters.max_tokens=6",
    "finetune.max_train_steps=2",
]


@pytest.mark.slow
def test_a_domain_file_trains_with_only_its_policy_and_loader_named(
    start: Start, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "written_elsewhere.py").write_text(DOMAIN)
    named = [
        "actor.rollout_policy=written_elsewhere.generate_guess_rollout",
        "dataset_loader=written_elsewhere.load_problems",
    ]
    run = start(*named, f"model_path={model}", *SIZES, env={"PYTHONPATH": str(tmp_path)})
    assert run.wait() == 0, run.err
    summary = run.summary()
    assert summary["completed_steps"] == 2 and summary["samples"] == 32
    assert run.counts().eval_started == 6
    cfg = load(run.output_dir)
    assert (cfg.train_dataset_names, cfg.test_dataset_names) == (["train"], ["test"])
    assert "train; evaluation: test" in run.out
    recorded = (run.output_dir / "actor/metrics.jsonl").read_text()
    assert "actor/tries_mean" in recorded and "actor/train/reward_mean" in recorded
