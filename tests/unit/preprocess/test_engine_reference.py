"""Reference log-probabilities from engines equal those of the model in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from engine_harness import EOS, build_model, running_engine

from pipelinerl.observe.waits import WaitExpired
from pipelinerl.preprocess.engine_reference import EngineReference
from pipelinerl.preprocess.reference import ReferenceScorer
from tests.unit.finetune.builders import record


async def test_engines_score_what_the_model_scores(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "model", tied=True)
    texts = [record("g", i, 0, 0.0, i) for i in range(8)]
    long = record("g", 9, 0, 0.0, 9)
    long["input_ids"] = np.full(512, EOS - 1, np.int32)
    long["labels"] = np.where(np.arange(512) < 500, -100, EOS - 1).astype(np.int32)
    async with running_engine(folder) as first, running_engine(folder) as second:
        engines = EngineReference([first.url, second.url], 60)
        found = await asyncio.to_thread(engines.score, [*texts, long])
        assert first.server is not second.server
    expected = ReferenceScorer(str(folder), 1.0, 64).score(texts)
    for ours, theirs, text in zip(found, expected, texts):
        assert ours is not None and theirs is not None and ours.shape == text["logprobs"].shape
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert found[-1] is None  # no room in the context for the token that an engine must generate


def test_engines_that_do_not_answer_are_a_named_wait() -> None:
    reference = EngineReference(["http://127.0.0.1:9"], 0.3)
    with pytest.raises(WaitExpired, match=r"reference log-probabilities from the engines: .*connection"):
        reference.score([record("g", 0, 0, 0.0, 0)])


async def test_a_dead_engine_is_made_up_for_by_the_other(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "model", tied=True)
    async with running_engine(folder) as engine:
        reference = EngineReference(["http://127.0.0.1:9", engine.url], 60)
        found = await asyncio.to_thread(reference.score, [record("g", i, 0, 0.0, i) for i in range(4)])
    assert all(scores is not None for scores in found)
