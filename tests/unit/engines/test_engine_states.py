"""Models whose layers have a state: each sequence has its own, whoever had the slot before."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks._texts import learner_for
from pipelinerl.engines.client import Generation, SamplingParams
from pipelinerl.modeling.model import distinct_parameters, load_model
from pipelinerl.weights.transports.file import FileTransport
from tests.support.engine_harness import (
    EOS,
    VOCAB,
    RunningEngine,
    full_logprobs,
    random_prompt,
    reference,
    running_engine,
    until,
)
from tests.support.tiny_model import HYBRIDS, hybrid_lm

TOLERANCE = 2e-5
KINDS = [*((family, False) for family in HYBRIDS), ("qwen3_5", True), ("qwen3_5_moe", True)]


def save(folder: Path, family: str = "qwen3_5", sees: bool = False, seed: int = 0) -> Path:
    model = hybrid_lm(family, VOCAB, sees=sees, eos=EOS, seed=seed, max_position_embeddings=4096)
    model.save_pretrained(folder)
    return folder


def ids_of(one: Generation) -> np.ndarray:
    return np.concatenate([one.prompt_ids, one.token_ids])


async def sampled(engine: RunningEngine, lengths: list[int], tokens: int = 20) -> list[Generation]:
    return await asyncio.gather(
        *(
            engine.client.generate(
                random_prompt(length, seed=length), SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
            )
            for length in lengths
        )
    )


@pytest.mark.parametrize(("family", "sees"), KINDS)
async def test_logprobs_are_those_of_transformers_and_of_the_trainer(
    family: str, sees: bool, tmp_path: Path
) -> None:
    """More requests than slots, prompts longer than a step, of one token and shorter than the convolution."""
    folder = save(tmp_path, family, sees)
    own, trainer = reference(folder), learner_for(load_model(folder))
    async with running_engine(folder, max_num_seqs=3) as engine:
        found = await sampled(engine, [1, 2, 3, 4, 33, 64, 65, 200])
    for one in found:
        begin = len(one.prompt_ids) - 1
        ids = ids_of(one)
        assert np.abs(one.logprobs - full_logprobs(own, ids)[begin:]).max() <= TOLERANCE
        assert np.abs(one.logprobs - trainer.score_rows(ids[None])[0, begin:]).max() <= TOLERANCE


async def test_prompts_are_scored_across_pieces(tmp_path: Path) -> None:
    folder, prompt = save(tmp_path), random_prompt(200)
    async with running_engine(folder, max_prefill_tokens=48) as engine:
        scores = await engine.client.prompt_logprobs(prompt)
        again = await engine.client.prompt_logprobs(prompt)  # nothing of it was kept
    np.testing.assert_allclose(scores, full_logprobs(reference(folder), prompt), atol=TOLERANCE)
    np.testing.assert_allclose(again, scores, atol=TOLERANCE)


async def test_the_slot_of_an_aborted_request_begins_anew(tmp_path: Path) -> None:
    folder = save(tmp_path)
    async with running_engine(folder, max_num_seqs=1) as engine:
        scheduler = engine.backend.queue
        body = {"request_id": "long", "token_ids": random_prompt(50), "sampling_params": {"max_tokens": 400}}
        body["sampling_params"] |= {"ignore_eos": True}  # type: ignore[operator]
        long = asyncio.create_task(engine.post("/inference/v1/generate", body))
        await until(lambda: any(one.output_length > 5 for one in scheduler.running))
        await engine.post("/abort_requests", {"request_ids": ["long"]})
        await long
        (one,) = await sampled(engine, [30])
    assert np.abs(one.logprobs - full_logprobs(reference(folder), ids_of(one))[29:]).max() <= TOLERANCE


@torch.no_grad()
def continued(old: Any, new: Any, ids: np.ndarray, cut: int) -> np.ndarray:
    """float32 [len(ids) - cut]: of the ids from `cut` on, by `new` behind what `old` made of those before."""
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    cache = old(tokens[:, : cut - 1], use_cache=True).past_key_values
    found = []
    for at in range(cut - 1, len(ids) - 1):
        logits = new(tokens[:, at : at + 1], past_key_values=cache, use_cache=True).logits[0, -1]
        found.append(float(logits.log_softmax(-1)[tokens[0, at + 1]]))
    return np.array(found)


@pytest.mark.parametrize(("recompute", "sees"), [(False, True), (True, False)])
async def test_an_update_in_flight_keeps_the_state_or_computes_it_again(
    recompute: bool, sees: bool, tmp_path: Path
) -> None:
    before, after = save(tmp_path / "old", sees=sees), save(tmp_path / "new", sees=sees, seed=1)
    info = FileTransport(tmp_path).stage(1, distinct_parameters(load_model(after))).info
    async with running_engine(before) as engine:
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        running = asyncio.create_task(sampled(engine, [20, 41], tokens=200))
        scheduler = engine.backend.queue
        await until(
            lambda: all(one.output_length > 10 for one in scheduler.running) and scheduler.running != []
        )
        await engine.post(f"/pause?mode=keep&clear_cache={str(recompute).lower()}")
        await engine.post("/start_weight_update")
        await engine.post("/update_weights", {"update_info": info})
        await engine.post("/finish_weight_update", {"weight_version": "1"})
        await engine.post("/resume")
        found = await running
    old, new = reference(before), reference(after)
    for one in found:
        ids, first = ids_of(one), one.versions[0][2]
        assert 0 < first < len(one.token_ids) and one.versions[1][0] == 1
        cut = len(one.prompt_ids) + first
        ids = ids if recompute else ids[: cut + 20]  # token by token by transformers takes longer
        expected = full_logprobs(new, ids)[cut - 1 :] if recompute else continued(old, new, ids, cut)
        assert np.abs(one.logprobs[first : len(ids) - len(one.prompt_ids)] - expected).max() <= TOLERANCE


async def test_in_bfloat16_the_engine_is_near_the_same_weights_in_float32(tmp_path: Path) -> None:
    folder = save(tmp_path)
    model = reference(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    async with running_engine(folder, dtype="bfloat16", max_num_seqs=3) as engine:
        found = await sampled(engine, [3, 33, 100, 4])
    for one in found:
        ids = ids_of(one)
        assert np.abs(one.logprobs - full_logprobs(model, ids)[len(one.prompt_ids) - 1 :]).mean() <= 0.02
