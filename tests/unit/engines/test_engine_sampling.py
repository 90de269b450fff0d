"""Sampling: frequencies, determinism, and the arguments that reshape the distribution."""

import asyncio
from pathlib import Path

import numpy as np
import torch

from pipelinerl.engines.client import SamplingParams
from tests.support.engine_harness import EOS, random_prompt, reference, running_engine


def next_token_probabilities(folder: Path, prompt: list[int], temperature: float) -> np.ndarray:
    with torch.no_grad():
        logits = reference(folder)(torch.tensor([prompt])).logits[0, -1]
    return (logits / temperature).softmax(-1).numpy()


async def test_company_in_the_batch_moves_a_logprob_by_1e_5_at_most(tied_model: Path) -> None:
    sampling = SamplingParams(max_tokens=60, seed=7, ignore_eos=True)
    async with running_engine(tied_model) as engine:
        alone = await engine.client.generate(random_prompt(30), sampling)
        others = [
            engine.client.generate(random_prompt(10 + 9 * seed, seed), SamplingParams(max_tokens=50))
            for seed in range(1, 8)
        ]
        together, *_ = await asyncio.gather(engine.client.generate(random_prompt(30), sampling), *others)
    np.testing.assert_array_equal(together.token_ids, alone.token_ids)
    np.testing.assert_allclose(together.logprobs, alone.logprobs, atol=1e-5)


async def test_filters_keep_the_most_likely_ids_and_renormalise(tied_model: Path) -> None:
    prompt = random_prompt(6)
    probabilities = next_token_probabilities(tied_model, prompt, 1.0)
    order = np.argsort(-probabilities)
    nucleus = order[: int(np.searchsorted(np.cumsum(probabilities[order]), 0.5)) + 1]
    cases = {
        "top_k": (SamplingParams(max_tokens=1, top_k=2), order[:2]),
        "top_p": (SamplingParams(max_tokens=1, top_p=0.5), nucleus),
        "min_p": (
            SamplingParams(max_tokens=1, min_p=0.5),
            np.flatnonzero(probabilities >= 0.5 * probabilities.max()),
        ),
    }
    async with running_engine(tied_model) as engine:
        for name, (sampling, allowed) in cases.items():
            runs = await asyncio.gather(*(engine.client.generate(prompt, sampling) for _ in range(40)))
            kept = probabilities[allowed].sum()
            for one in runs:
                token = int(one.token_ids[0])
                assert token in allowed, name
                np.testing.assert_allclose(np.exp(one.logprobs[0]), probabilities[token] / kept, rtol=1e-4)


async def test_min_tokens_forbids_the_end_id(tied_model: Path) -> None:
    async with running_engine(tied_model) as engine:
        sampling = SamplingParams(
            max_tokens=40, min_tokens=30, temperature=2.0, stop_token_ids=tuple(range(0, 256, 2))
        )
        runs = await asyncio.gather(
            *(engine.client.generate(random_prompt(4, seed), sampling) for seed in range(6))
        )
    for one in runs:
        assert len(one.token_ids) > 30
        assert (one.token_ids[:30] % 2 == 1).all()
        assert EOS not in one.token_ids[:30]
