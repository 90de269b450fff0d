"""A live vLLM that hands outputs over once says of an aborted request all that the engine has sampled."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from pipelinerl.engines.requests import WHOLE_ANSWER
from tests.contract.conftest import Live
from tests.support.contract.engines import TOKENS, Engine, Facts, file_transport, missing

LENGTH = 1900


async def asked(engine: Engine, tokens: int) -> dict[str, Any]:
    """The choice of a greedy answer of so many tokens."""
    sampling = {**WHOLE_ANSWER, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    body = {"token_ids": [5, 6], "sampling_params": {**sampling, "detokenize": False}}
    found = await engine.call("POST", "/inference/v1/generate", body)
    return found["choices"][0]  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_an_aborted_answer_has_all_that_was_sampled(
    live: Live, model_folder: Callable[[bool], Path], tmp_path: Path
) -> None:
    if reason := missing("cpu-once"):
        pytest.skip(reason)
    facts = Facts.of_vllm(live.installation("cpu-once").version)
    async with aiohttp.ClientSession() as session:
        url, folder = live.url("cpu-once", True), model_folder(True)
        engine = Engine(url, facts, True, folder, session, file_transport(tmp_path, False))
        await engine.publish(30, 1, "recompute")
        held = 0
        for _ in range(5):
            before = await engine.metric(TOKENS)
            running = asyncio.create_task(asked(engine, LENGTH))
            await engine.until(TOKENS, lambda tokens, least=before + 5: tokens >= least)  # type: ignore[misc]
            await engine.call("POST", "/pause?mode=keep&clear_cache=false")
            handed_over = await engine.metric(TOKENS) - before
            await engine.call("POST", "/abort_requests", {"request_ids": []})
            cut = await running
            await engine.call("POST", "/resume")
            sampled = len(cut["token_ids"])
            assert cut["finish_reason"] == "abort" and handed_over <= sampled < LENGTH
            whole = await asked(engine, sampled)
            assert cut["token_ids"] == whole["token_ids"]
            found, expected = (
                np.array([one["logprob"] for one in each["logprobs"]["content"]]) for each in (cut, whole)
            )
            np.testing.assert_allclose(found, expected, atol=1e-5)
            if facts.reports_versions:
                assert cut["weight_versions"] == [{"version": "30", "start": 0, "end": sampled}]
            held = max(held, sampled - int(handed_over))
            if held:
                break
        assert held, "of five aborts, none met tokens that the engine held"
