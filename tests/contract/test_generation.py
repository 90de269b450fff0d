"""Token ids in; token ids, their log-probabilities and their weight versions out."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelinerl.engines.client import SamplingParams
from tests.support.contract.engines import Engine
from tests.support.contract.models import END, TOKENIZER, VOCABULARY, prompt
from tests.support.engine_harness import full_logprobs

TOLERANCE = 2e-5
DRAWS = 480


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_trainer_s_forward(engine: Engine, temperature: float) -> None:
    await engine.publish(1, 1, "recompute")
    client = engine.client(announced=1)
    sampling = SamplingParams(max_tokens=24, temperature=temperature, ignore_eos=True)
    prompts = [prompt(length, seed=length) for length in (1, 4, 63, 200)]
    for one in await asyncio.gather(*(client.generate(ids, sampling) for ids in prompts)):
        assert one.token_ids.dtype == np.int32 and one.logprobs.dtype == np.float32
        assert len(one.token_ids) == len(one.logprobs) == 24 and one.finish_reason == "length"
        assert one.versions == [(1, 0, 24)] and one.exact_versions == engine.facts.reports_versions
        ids = np.concatenate([one.prompt_ids, one.token_ids])
        expected = full_logprobs(engine.model(1), ids, temperature)[len(one.prompt_ids) - 1 :]
        np.testing.assert_allclose(one.logprobs, expected, atol=TOLERANCE)
        # What a trainer that has not moved finds: every importance ratio is 1.
        np.testing.assert_allclose(np.exp(expected - one.logprobs), 1.0, atol=1e-3)
    assert (client.counts.sent, client.counts.completed) == (4, 4)
    assert client.counts.as_dict()["exact_versions"] == float(engine.facts.reports_versions)


async def test_prompt_tokens_are_scored_at_temperature_1(engine: Engine) -> None:
    await engine.publish(2, 1, "recompute")
    ids = prompt(150)
    scores = await engine.client().prompt_logprobs(ids)
    np.testing.assert_allclose(scores, full_logprobs(engine.model(1), ids), atol=TOLERANCE)


async def test_reported_probabilities_match_the_frequencies(engine: Engine) -> None:
    await engine.publish(3, 1, "recompute")
    ids, temperature = prompt(6), 0.7
    with torch.no_grad():
        expected = (engine.model(1)(torch.tensor([ids])).logits[0, -1] / temperature).softmax(-1).numpy()
    sampling = SamplingParams(max_tokens=1, temperature=temperature)
    client = engine.client()
    answers = await asyncio.gather(*(client.generate(ids, sampling) for _ in range(DRAWS)))
    tokens = np.array([one.token_ids[0] for one in answers])
    np.testing.assert_allclose([np.exp(one.logprobs[0]) for one in answers], expected[tokens], rtol=1e-4)
    counts = np.bincount(tokens, minlength=VOCABULARY)
    likely = expected * DRAWS >= 5
    assert likely.sum() >= 3
    wanted = np.append(expected[likely], expected[~likely].sum()) * DRAWS
    found = np.append(counts[likely], counts[~likely].sum())
    chi_square, degrees = ((found - wanted) ** 2 / wanted).sum(), len(wanted) - 1
    # Mean `degrees`, variance 2 * degrees: six standard deviations never happen by chance.
    assert chi_square < degrees + 6 * np.sqrt(2 * degrees) + 6


async def test_equal_seeds_give_equal_tokens_and_continuations_of_one_prompt_differ(engine: Engine) -> None:
    await engine.publish(4, 1, "recompute")
    client, ids = engine.client(), prompt(10)
    seeds = [SamplingParams(max_tokens=12, seed=seed, ignore_eos=True) for seed in (7, 8, 9)]
    first, again = [
        await asyncio.gather(*(client.generate(ids, sampling) for sampling in seeds)) for _ in range(2)
    ]
    assert [one.token_ids.tolist() for one in first] == [one.token_ids.tolist() for one in again]
    assert len({tuple(one.token_ids.tolist()) for one in first}) == 3


async def test_an_end_id_is_part_of_the_output(engine: Engine) -> None:
    await engine.publish(5, 1, "recompute")
    client, ids = engine.client(), prompt(8)
    greedy = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    free = (await client.generate(ids, greedy)).token_ids.tolist()
    assert END not in free, "choose another prompt"
    stop = free[6]
    cut = await client.generate(
        ids, SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    )
    assert cut.finish_reason == "stop" and cut.token_ids.tolist() == free[: free.index(stop) + 1]


async def test_a_stop_string_ends_the_answer_and_its_ids_belong_to_it(engine: Engine) -> None:
    await engine.publish(7, 1, "recompute")
    client, ids = engine.client(), prompt(8, seed=3)
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    free = await client.generate(ids, greedy)
    letters = [
        one for one in TOKENIZER.decode(free.token_ids.tolist()) if one.isascii() and one.isprintable()
    ]
    stop = letters[len(letters) // 2]
    cut = await client.generate(ids, replace(greedy, stop=(stop,)))
    assert cut.finish_reason == "stop" and TOKENIZER.decode(cut.token_ids.tolist()).endswith(stop)
    assert cut.token_ids.tolist() == free.token_ids[: len(cut.token_ids)].tolist()
    assert TOKENIZER.decode(cut.token_ids.tolist()).count(stop) == 1


async def test_evaluation_may_reshape_the_distribution(engine: Engine) -> None:
    """Greedy takes the most likely id; where a filter leaves it alone, it is drawn with probability 1."""
    await engine.publish(6, 1, "recompute")
    client, ids = engine.client(), prompt(20)
    greedy = await client.generate(ids, SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True))
    whole = torch.tensor([[*ids, *greedy.token_ids.tolist()]])
    with torch.no_grad():
        best = engine.model(1)(whole).logits[0, len(ids) - 1 : -1].argmax(-1)
    assert greedy.token_ids.tolist() == best.tolist()
    expected = full_logprobs(engine.model(1), whole[0].numpy())[len(ids) - 1 :]
    np.testing.assert_allclose(greedy.logprobs, expected, atol=TOLERANCE)
    for changes in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        only = await client.generate(ids, SamplingParams(max_tokens=10, ignore_eos=True, **changes))
        assert only.token_ids.tolist() == greedy.token_ids.tolist(), changes
        np.testing.assert_allclose(only.logprobs, 0.0, atol=1e-6)
    plain, penalised = [
        await client.generate(
            ids, SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, frequency_penalty=value)
        )
        for value in (0.0, 2.0)
    ]
    assert len(set(penalised.token_ids.tolist())) > len(set(plain.token_ids.tolist()))
