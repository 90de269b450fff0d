"""Sampling: frequencies, determinism, and the arguments that reshape the distribution."""

import asyncio
from pathlib import Path

import numpy as np
import torch
from engine_harness import EOS, VOCAB, random_prompt, reference, running_engine

from pipelinerl.inference.client import SamplingParams


def next_token_probabilities(folder: Path, prompt: list[int], temperature: float) -> np.ndarray:
    with torch.no_grad():
        logits = reference(folder)(torch.tensor([prompt])).logits[0, -1]
    return (logits / temperature).softmax(-1).numpy()


async def test_frequencies_match_the_reported_probabilities(tied_model: Path) -> None:
    prompt, draws = random_prompt(6), 4000
    expected = next_token_probabilities(tied_model, prompt, 0.7)
    async with running_engine(tied_model, max_num_seqs=50, max_waiting=4000) as engine:
        sampling = SamplingParams(max_tokens=1, temperature=0.7, n=50)
        answers = await asyncio.gather(
            *(engine.client.generate_many(prompt, sampling) for _ in range(draws // 50))
        )
    ids = np.array([one.token_ids[0] for many in answers for one in many])
    reported = np.array([np.exp(one.logprobs[0]) for many in answers for one in many])
    np.testing.assert_allclose(reported, expected[ids], rtol=1e-4)
    counts = np.bincount(ids, minlength=VOCAB)
    likely = expected * draws >= 5
    assert likely.sum() >= 3
    rest = expected[~likely].sum() * draws
    chi_square = ((counts[likely] - expected[likely] * draws) ** 2 / (expected[likely] * draws)).sum()
    chi_square += (counts[~likely].sum() - rest) ** 2 / max(rest, 1e-9)
    degrees = int(likely.sum())
    # Mean `degrees`, variance 2 * degrees: six standard deviations never happen by chance.
    assert chi_square < degrees + 6 * np.sqrt(2 * degrees) + 6


async def test_equal_seeds_give_equal_tokens_and_n_gives_different_ones(tied_model: Path) -> None:
    prompt = random_prompt(10)
    async with running_engine(tied_model) as engine:
        sampling = SamplingParams(max_tokens=20, seed=7, ignore_eos=True, n=3)
        first = await engine.client.generate_many(prompt, sampling)
        second = await engine.client.generate_many(prompt, sampling)
        unseeded = [
            await engine.client.generate(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
            for _ in range(2)
        ]
    assert [one.token_ids.tolist() for one in first] == [one.token_ids.tolist() for one in second]
    assert len({tuple(one.token_ids.tolist()) for one in first}) == 3
    assert unseeded[0].token_ids.tolist() != unseeded[1].token_ids.tolist()


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
