"""Prompts that begin alike are computed once per version, and no answer shows it."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.engines.cpu import __main__ as embedded
from pipelinerl.engines.cpu.prefixes import BLOCK
from pipelinerl.engines.cpu.scheduler import Scheduler
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.serving import command
from pipelinerl.engines.serving.sequence import Request, Sequence
from pipelinerl.weights.transports.file import FileTransport
from tests.support.contract.models import logprobs_over_an_update
from tests.support.engine_harness import (
    RunningEngine,
    full_logprobs,
    random_prompt,
    reference,
    running_engine,
    until,
)

TOLERANCE = 1e-5
PROMPT = list(range(40))
FOUND = 32
"""Tokens of PROMPT that a second sequence finds: the complete blocks before its last token."""


def sequence(prompt: list[int] = PROMPT, salt: str | None = None, **sampling: Any) -> Sequence:
    fields = SamplingFields(**sampling)
    (one,) = Request("r", prompt, fields, max_tokens=10, eos_ids=frozenset(), cache_salt=salt).sequences
    return one


def scheduler(budget: int = 16, rows: int = 512, slots: int = 8) -> Scheduler:
    return Scheduler(slots, budget, capacity=64, pool_rows=rows)


def step(one: Scheduler) -> dict[Sequence, tuple[int, int]]:
    """What each sequence computes in the next step, which is then done as the engine does it."""
    plan = one.plan()
    for chunk in plan.chunks:
        chunk.sequence.computed = chunk.end
    for chunk in plan.prefills:
        one.save_prefix(chunk.sequence)
    for chunk in plan.chunks:
        if chunk.samples:
            chunk.sequence.append(0, -1.0, "0")
    return {chunk.sequence: (chunk.start, chunk.end) for chunk in plan.chunks}


def test_a_group_is_computed_once_and_the_others_wait_for_it() -> None:
    one, group = scheduler(), [sequence() for _ in range(4)]
    one.waiting.extend(group)
    assert step(one) == {group[0]: (0, 16)}
    assert step(one) == {group[0]: (16, 32)}
    assert step(one) == {group[0]: (32, 40), group[1]: (32, 40)}, "the budget is spent"
    assert step(one) == {group[0]: (40, 41), group[1]: (40, 41), group[2]: (32, 40), group[3]: (32, 40)}
    assert (one.prefix_queries, one.prefix_hits) == (4 * 40, 3 * FOUND)


def test_when_the_first_of_a_group_is_aborted_the_next_goes_on_where_it_stopped() -> None:
    one, group = scheduler(), [sequence() for _ in range(3)]
    one.waiting.extend(group)
    step(one)
    one.remove(group[0])
    assert step(one) == {group[1]: (16, 32)}
    assert step(one) == {group[1]: (32, 40), group[2]: (32, 40)}


def test_a_dialogue_goes_on_from_its_last_call() -> None:
    one, first = scheduler(), sequence()
    one.waiting.append(first)
    while first.finish_reason is None:
        step(one)
    one.remove(first)
    following = sequence([*first.tokens.tolist(), 7, 8, 9])
    one.waiting.append(following)
    # The last token that was sampled never was computed, so 49 were.
    assert step(one) == {following: (48, 53)}


@pytest.mark.parametrize("asked", [{"salt": "1"}, {"prompt": [1, *PROMPT]}, {"prompt_logprobs": 0}], ids=str)
def test_others_keys_are_not_taken(asked: dict[str, Any]) -> None:
    """Of another salt, of other positions, and where every row is asked for; the same request again may."""
    one, first, other = scheduler(budget=100), sequence(), sequence(**asked)
    one.waiting.extend((first, other))
    assert step(one)[other] == (0, other.request.prompt_length)
    one.remove(other)
    again = sequence(**{name: value for name, value in asked.items() if name != "prompt_logprobs"})
    one.waiting.append(again)
    assert step(one)[again][0] == (again.request.prompt_length - 1) // BLOCK * BLOCK


def test_nothing_of_old_weights_is_found() -> None:
    one, ended, runs, ends = scheduler(), sequence(), sequence(), sequence()
    one.waiting.append(ended)
    for _ in range(3):
        step(one)
    one.remove(ended)
    one.waiting.extend((runs, ends))
    assert step(one) == {runs: (32, 40), ends: (32, 40)}
    one.weights_changed()
    one.remove(ends)  # under the new weights, with keys of the old ones
    one.waiting.append(late := sequence())
    assert step(one) == {runs: (40, 41), late: (0, 16)}
    one.waiting.append(later := sequence())
    assert step(one) == {runs: (41, 42), late: (16, 32)}
    assert step(one) == {runs: (42, 43), late: (32, 40), later: (32, 40)}


def test_a_group_that_an_update_finds_waiting_goes_on() -> None:
    one, first, second = scheduler(), sequence(), sequence()
    one.waiting.extend((first, second))
    assert step(one) == {first: (0, 16)}
    one.weights_changed()  # the first keeps its keys, which the second may not have
    assert step(one) == {first: (16, 32)}, "the budget is spent"
    assert step(one) == {first: (32, 40), second: (0, 8)}
    one.clear_prefixes()
    one.forget_computed()  # all is computed again, once
    assert step(one) == {first: (0, 16)}
    assert step(one) == {first: (16, 32)}
    assert step(one) == {first: (32, 41), second: (32, 39)}


def test_a_full_pool_gives_up_what_was_used_least() -> None:
    one = scheduler(budget=100, rows=2 * 40)
    starts = []
    for number in (0, 1, 0, 2, 0, 1):  # two prompts fit
        asked = sequence([number] * 40)
        one.waiting.append(asked)
        starts.append(step(one)[asked][0])
        one.remove(asked)
    assert starts == [0, 0, FOUND, 0, FOUND, 0]


def test_a_pool_smaller_than_a_prompt_harms_nobody() -> None:
    one, group = scheduler(rows=BLOCK), [sequence() for _ in range(3)]
    one.waiting.extend(group)
    for _ in range(30):
        for asked in step(one):
            if asked.finish_reason:
                one.remove(asked)
    assert all(asked.finish_reason for asked in group)


async def asked(
    engine: RunningEngine, prompt: list[int], salt: str | None = None, **sampling: Any
) -> dict[str, Any]:
    """The answer, with its `prompt`; logprobs and exactly `max_tokens` tokens unless told otherwise."""
    fields = {"ignore_eos": True, "logprobs": 0, **sampling}
    body = {"token_ids": prompt, "sampling_params": fields, "cache_salt": salt}
    return await engine.post("/inference/v1/generate", body) | {"prompt": prompt}


async def mix(engine: RunningEngine, seed: int) -> list[dict[str, Any]]:
    """Groups, dialogues, scored prompts and salts, more at a time than there are slots."""
    rng = np.random.default_rng(seed)
    stems = [random_prompt(int(rng.integers(1, 150)), 10 * seed + stem) for stem in range(3)]
    calls = []
    for number in range(16):
        prompt = stems[rng.integers(3)][: int(rng.integers(1, 150))]
        prompt += random_prompt(int(rng.integers(0, 20)), number)
        kwargs: dict[str, Any] = {"max_tokens": int(rng.integers(1, 20)), "seed": number}
        kwargs["n"] = int(rng.integers(1, 4))
        kwargs["prompt_logprobs"] = 0 if rng.random() < 0.1 else None
        salt = str(rng.integers(2)) if rng.random() < 0.5 else None
        calls += [(prompt, salt, kwargs)] * int(rng.choice([1, 1, 4]))

    async def dialogue(prompt: list[int], salt: str | None, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        first = await asked(engine, prompt, salt, **kwargs)
        more = [*prompt, *first["choices"][0]["token_ids"], *random_prompt(5, kwargs["seed"])]
        return [first, await asked(engine, more, salt, **kwargs)]

    answers = await asyncio.gather(*(dialogue(*call) for call in calls))
    return [answer for pair in answers for answer in pair]


async def hits(engine: RunningEngine) -> float:
    return (await engine.client.metrics())["vllm:prefix_cache_hits_total"]


def logprobs(choice: dict[str, Any]) -> np.ndarray:
    return np.array([entry["logprob"] for entry in choice["logprobs"]["content"]])


@pytest.mark.parametrize("seed", range(2))
async def test_answers_are_those_of_an_engine_without_cache(tied_model: Path, seed: int) -> None:
    async with running_engine(tied_model) as on:
        cached = await mix(on, seed)
        found, queries = await hits(on), (await on.client.metrics())["vllm:prefix_cache_queries_total"]
    async with running_engine(tied_model, enable_prefix_caching=False) as off:
        plain = await mix(off, seed)
        assert await hits(off) == 0
    assert 0.3 * queries < found < queries
    for one, other in zip(cached, plain, strict=True):
        assert (one["prompt_logprobs"] is None) == (other["prompt_logprobs"] is None)
        for scored, expected in zip(
            one["prompt_logprobs"] or (), other["prompt_logprobs"] or (), strict=True
        ):
            for token in scored or ():
                assert scored[token]["logprob"] == pytest.approx(expected[token]["logprob"], abs=TOLERANCE)
        for choice, expected in zip(one["choices"], other["choices"], strict=True):
            assert choice["token_ids"] == expected["token_ids"]
            np.testing.assert_allclose(logprobs(choice), logprobs(expected), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_answers_across_updates_are_of_the_weights_that_they_name(
    tied_model: Path, other_tied_model: Path, tmp_path: Path, kv: str
) -> None:
    """Groups and dialogues of one stem, without pause, through updates and aborts."""
    transport, models = FileTransport(tmp_path), [reference(tied_model), reference(other_tied_model)]
    stem, answers, ended = random_prompt(100), [], asyncio.Event()
    recompute = str(kv == "recompute").lower()
    # With `keep` a prompt that an update cuts in two has keys of both weights; here each is computed at once.
    budget = 64 if kv == "recompute" else 4096
    async with running_engine(tied_model, max_prefill_tokens=budget) as engine:

        async def stream(number: int) -> None:
            rng = np.random.default_rng(number)
            while not ended.is_set():
                prompt = stem[: int(rng.integers(1, 5)) * 25]
                for _ in range(2):
                    answer = await asked(engine, prompt, max_tokens=int(rng.integers(2, 40)))
                    answers.append(answer)
                    prompt = [*prompt, *answer["choices"][0]["token_ids"], 5, 6]

        async def publish() -> None:
            await engine.post("/init_weight_transfer_engine", {"init_info": {}})
            for version in range(1, 7):
                info = transport.stage(version, models[version % 2].named_parameters()).info
                await until(lambda enough=10 * version: len(answers) >= enough)  # type: ignore[misc]
                await engine.post(f"/pause?mode=keep&clear_cache={recompute}")
                await engine.post("/start_weight_update")
                if version % 3 == 0:
                    await engine.post("/abort_requests", {"request_ids": []})
                await engine.post("/update_weights", {"update_info": info})
                await engine.post("/finish_weight_update", {"weight_version": str(version)})
                await engine.post("/resume")
            await until(lambda: len(answers) >= 70)
            ended.set()

        await engine.post("/update_weight_version", {"weight_version": "0"})
        await asyncio.gather(publish(), *(stream(number) for number in range(12)))
        assert await hits(engine) > 0
    crossed = 0
    for answer in answers:
        (choice,) = answer["choices"]
        ids = np.array([*answer["prompt"], *choice["token_ids"]])
        start, spans = len(answer["prompt"]), choice["weight_versions"]
        crossed += len(spans) > 1
        for place, span in enumerate(spans):
            model = models[int(span["version"]) % 2]
            if kv == "recompute" or place == 0:
                expected = full_logprobs(model, ids)[start - 1 + span["start"] : start - 1 + span["end"]]
            elif place == 1:
                old = models[int(spans[0]["version"]) % 2]
                # The last token sampled before the update enters the cache with the step after it.
                expected = logprobs_over_an_update(old, model, ids, start + span["start"] - 1)
                expected = expected[: span["end"] - span["start"]]
            else:
                continue
            np.testing.assert_allclose(logprobs(choice)[span["start"] : span["end"]], expected, atol=1e-4)
    assert crossed and len(answers) > 50


async def test_a_reset_and_a_pause_that_clears_empty_it(tied_model: Path) -> None:
    async with running_engine(tied_model) as engine:
        found = []
        for path in ("/reset_prefix_cache", "/pause?mode=keep&clear_cache=true", "/is_paused"):
            for _ in range(2):
                await asked(engine, PROMPT, max_tokens=1)
                found.append(await hits(engine))
            if path != "/is_paused":
                await engine.post(path)
                await engine.post("/resume")
    assert found == [0, FOUND, FOUND, 2 * FOUND, 2 * FOUND, 3 * FOUND]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], True), (["--enable-prefix-caching"], True), (["--no-enable-prefix-caching"], False)],
)
def test_the_flags_are_vllms(
    tied_model: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], expected: bool
) -> None:
    seen: list[EngineSettings] = []

    def refuse(settings: EngineSettings) -> None:
        seen.append(settings)
        raise ValueError("enough")

    monkeypatch.setattr(embedded, "CpuBackend", refuse)
    monkeypatch.setattr(command.sys, "setswitchinterval", lambda _: None)
    assert embedded.main(["--model", str(tied_model), *flags]) == command.REFUSED
    assert [one.enable_prefix_caching for one in seen] == [expected]
    assert (seen[0].pool_rows > 0) == expected
