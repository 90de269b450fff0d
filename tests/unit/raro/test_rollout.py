"""Rollouts of both roles with a scripted model: texts, rewards, masks, counters, buffer."""

import asyncio
import itertools
import random
from collections import Counter

import numpy as np
import pytest

from domains.raro import evaluate as evaluation
from domains.raro import rollout
from domains.raro.calls import Caller
from domains.raro.metrics import PREFIX
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.rollouts import RolloutOrigin
from tests.support.raro_harness import PROBLEM, RIGHT, ScriptedModel, pair, runtime, settings

MIXED = ["[Answer 1]", "[Answer 2]", "[Tie]", "no verdict"]


class Always:
    """A generator whose order of answers is fixed; the rest is random."""

    def __init__(self, position: int) -> None:
        self.position, self._rng = position, random.Random()

    def choice(self, options):
        return self.position

    def __getattr__(self, name):
        return getattr(self._rng, name)


@pytest.fixture
def model(monkeypatch):
    scripted = ScriptedModel()
    monkeypatch.setattr("domains.raro.calls.llm_async_generate", scripted.generate)
    return scripted


@pytest.fixture
def running(tmp_path):
    return runtime(tmp_path)


async def play(model, running, problem=PROBLEM):
    return await rollout.play(Caller(model.llm(), None), problem, running)


def metric(result, name):
    return getattr(result.metrics, PREFIX + name, None)


def by_source(result, source):
    return [text for text in result.training_texts if text.metadata.get("source") == source]


def advantages(results, **rl):
    samples = []
    for index, result in enumerate(results):
        samples += samples_of(result.training_texts, RolloutOrigin("g", index, 0, training=True))
    config = RLConfig(step_reward_advantages=True, **rl)
    return process_chunk(samples, config).ready


async def test_paired_rewards_of_the_worked_example(model, running):
    model.critic = MIXED
    running.rng = Always(2)
    result = await play(model, running)
    policy, *critic = result.training_texts
    assert policy.reward == pytest.approx(1.6 / 3) == result.metrics.reward
    assert [(t.reward, t.masked) for t in critic] == [(0.0, False), (1.0, False), (0.55, False), (0.0, True)]
    assert [t.metadata["label"] for t in critic] == ["policy", "expert", "tie", None]
    ready = advantages([result])
    assert [t.advantage for t in ready] == pytest.approx([0.0, -0.775, 0.725, 0.05], abs=1e-6)
    assert (policy.role, policy.situation) == ("policy", "raro:policy")
    assert {t.position for t in critic} == {"pool"} and {t.role for t in critic} == {"critic"}


async def test_advantages_of_a_policy_group(model, tmp_path):
    results = []
    for verdicts in (["[Answer 1]"], ["[Answer 2]"], ["[Tie]"], ["[Answer 2]"]):
        model.critic, model._used = verdicts, {}
        running = runtime(tmp_path, replay={"fraction": 0.0})
        running.rng = Always(2)
        results.append(await play(model, running))
    ready = advantages(results)
    policy = [text.advantage for text in ready if text.role == "policy"]
    assert policy == pytest.approx([0.8, -8 / 15, 4 / 15, -8 / 15], abs=1e-6)
    assert all(abs(text.advantage) < 1e-12 for text in ready if text.role == "critic")


async def test_the_situation_names_pair_order_and_group(model, tmp_path):
    running = runtime(tmp_path, replay={"fraction": 0.0})
    first, second = await play(model, running), await play(model, running)
    names = [{t.situation for t in by_source(result, "fresh")} for result in (first, second)]
    assert all(len(found) == 1 for found in names) and names[0] != names[1]
    text = by_source(first, "fresh")[0]
    sha, order, nonce = text.situation.removeprefix("raro:critic:").split("-")
    assert text.metadata["pair_sha"].startswith(sha) and len(sha) == 12 and len(nonce) == 8
    assert order == f"e{text.metadata['expert_position']}"


async def test_a_group_continues_one_prompt_that_shows_the_stored_order(model, running):
    await play(model, running)
    result = await play(model, running)
    for source in ("fresh", "replay"):
        texts = by_source(result, source)
        prompts = {tuple(t.input_ids[: t.prompt_tokens].tolist()) for t in texts}
        assert len(texts) == 4 and len(prompts) == 1
        (position,) = {t.metadata["expert_position"] for t in texts}
        assert f"{position}: 3*(11-8)*1" in texts[0].prompt_text
        assert f"{3 - position}: 8*(11-8)" in texts[0].prompt_text
    assert {p["temperature"] for p in model.parameters} == {1.0}


async def test_no_reasoning_reaches_critic_or_buffer(model, running):
    model.policy = ["MARKER " + RIGHT, "<answer>MARKER</answer>" + RIGHT]
    for _ in range(2):
        await play(model, running)
    assert model.critic_prompts and not any("MARKER" in text for text in model.critic_prompts)
    assert not any("MARKER" in repr(row) for row in running.buffer.rows())


FAILURES = [
    # event, policy completion, settings, (masked, reward), critic texts, rows
    ("policy_truncated", (RIGHT, "length"), {}, (True, 0.0), 0, 0),
    ("policy_truncated", (RIGHT, "length"), {"overlength": "zero"}, (False, 0.0), 0, 0),
    ("policy_answer_too_long", "<answer>" + "1+" * 40 + "1</answer>", {}, (True, 0.0), 0, 0),
    ("policy_answerless", "I give up", {}, (False, 0.0), 0, 0),
    ("policy_answerless", "<answer>[Tie]</answer>", {}, (False, 0.0), 0, 0),
    ("policy_answerless", "I give up", {"answerless": "mask"}, (True, 0.0), 0, 0),
    (None, RIGHT, {}, (False, 0.6), 4, 1),
]


@pytest.mark.parametrize(("event", "said", "values", "policy", "critic", "rows"), FAILURES)
async def test_policy_failures(model, tmp_path, event, said, values, policy, critic, rows):
    model.policy = [said]
    running = runtime(tmp_path, **values)
    result = await play(model, running)
    text = result.training_texts[0]
    assert (text.masked, text.reward) == policy
    assert len(result.training_texts) == 1 + critic and running.buffer.stats().size == rows
    for name in ("policy_truncated", "policy_answer_too_long", "policy_answerless"):
        assert metric(result, name) == [float(name == event)]
    assert result.metrics.no_answer == (event == "policy_answerless")


@pytest.mark.parametrize(
    ("said", "values", "rewards", "counted"),
    [
        (["[Tie]", ("[Answer 1]", "length"), "[Tie]", "[Tie]"], {}, [0.55, None, 0.55, 0.55], (1, 0)),
        (["what", "[Answer 1], [Tie]", "[Tie]", "[Tie]"], {}, [None, None, 0.55, 0.55], (0, 2)),
        (["what", "[Answer 1], [Tie]", "[Tie]", "[Tie]"], {"critic_parse_failure": "zero"},
         [0.0, 0.0, 0.55, 0.55], (0, 2)),
        (["[Tie]", "[Answer 1]", "[Tie]", "[Answer 1]"], {"allow_tie": False},
         [None, 1.0, None, 1.0], (0, 2)),
    ],
    ids=["cut off, with a tag", "unreadable", "unreadable costs", "ties are not allowed"],
)  # fmt: skip
async def test_verdicts_that_do_not_count_are_masked_or_cost_the_critic_only(
    model, tmp_path, said, values, rewards, counted
):
    model.critic, running = said, runtime(tmp_path, **values)
    running.rng = Always(1)
    result = await play(model, running)
    fresh = by_source(result, "fresh")
    assert [None if t.masked else t.reward for t in fresh] == rewards
    assert (metric(result, "critic_truncated"), metric(result, "critic_parse_fail")) == counted
    assert sum(metric(result, "fresh/parse_fail_rate")) == counted[1]
    assert result.training_texts[0].reward == pytest.approx(0.0 if "allow_tie" in values else 0.6)


async def test_without_a_readable_fresh_verdict_the_policy_is_masked_and_replay_still_trains(model, running):
    running.buffer.put(pair("1+1"))
    model.critic = lambda text: "[Tie]" if "1+1" in text else "no"
    result = await play(model, running)
    assert result.training_texts[0].masked and metric(result, "policy_unjudged") == [1.0]
    assert all(t.masked for t in by_source(result, "fresh")) and len(by_source(result, "fresh")) == 4
    assert not any(t.masked for t in by_source(result, "replay"))
    assert running.buffer.stats().size == 2


async def test_an_empty_buffer_gives_no_replay_group_and_is_counted(model, running):
    first, second = await play(model, running), await play(model, running)
    assert by_source(first, "replay") == [] and metric(first, "replay_empty") == [1.0]
    assert len(by_source(second, "replay")) == 4 and metric(second, "replay_empty") == [0.0]


async def test_an_engine_error_passes_to_the_retries_and_publishes_nothing(model, running):
    model.fail_with = ConnectionError("gone")
    with pytest.raises(ConnectionError):
        await play(model, running)


async def test_replay_never_touches_the_policy(model, tmp_path):
    outcomes = []
    for verdict in ("[Answer 1]", "[Answer 2]", "[Tie]", "nothing"):
        running = runtime(tmp_path / verdict.strip("[]"), seed=1)
        running.buffer.put(pair("1+1"))
        model.critic = lambda text, verdict=verdict: verdict if "1+1" in text else "[Tie]"
        result = await play(model, running)
        policy = result.training_texts[0]
        outcomes.append((policy.text, policy.reward, policy.masked, result.metrics.reward))
        assert by_source(result, "replay")
    assert len(set(outcomes)) == 1


async def test_drawing_comes_before_inserting_and_stays_below_the_watermark(model, running):
    for _ in range(6):
        await play(model, running)
    for turn in range(6):
        (_, mark), sampled, put = running.buffer.events[3 * turn : 3 * turn + 3]
        assert sampled[:2] == ("sample", mark) and put[0] == "put"
        assert all(seq <= mark for seq in sampled[2])


async def test_siblings_that_started_together_do_not_see_each_other(model, running, monkeypatch):
    from domains.raro.calls import together

    started = asyncio.Barrier(6)

    async def after_all_have_started(*args):
        async with asyncio.timeout(200):
            await started.wait()
        return await attempt(*args)

    attempt = rollout.attempt_question
    monkeypatch.setattr(rollout, "attempt_question", after_all_have_started)
    results = await together([play(model, running) for _ in range(6)])
    marks = [event[1] for event in running.buffer.events if event[0] == "watermark"]
    assert marks == [0] * 6 and all(not by_source(result, "replay") for result in results)


async def test_earlier_pairs_are_judged_by_the_live_model_in_a_fresh_order(model, running):
    running.buffer.put(pair("1+1", model_version=3))
    model.version, orders = 70, set()
    for seed in range(12):
        running.rng = random.Random(seed)
        model._used = {}
        result = await play(model, running)
        shown = [t for t in by_source(result, "replay") if "1+1" in t.prompt_text]
        orders |= {t.metadata["expert_position"] for t in shown}
        assert all(t.weight_versions[0][0] == 70 for t in shown)
        assert all(np.all(t.logprobs == -0.5) and t.metadata["replay_age"] == 67 for t in shown)
    assert orders == {1, 2}


@pytest.mark.parametrize(("fraction", "low", "high"), [(0.5, 1, 1), (0.25, 0.313, 0.353), (0.0, 0, 0)])
def test_replay_groups_per_judged_answer(fraction, low, high):
    rng, chosen = random.Random(4), settings(replay={"fraction": fraction})
    drawn = Counter(rollout.replay_groups(rng, chosen) for _ in range(10_000))
    assert low <= sum(n * times for n, times in drawn.items()) / 10_000 <= high


async def test_training_with_a_critic_never_asks_the_verifier(model, running, monkeypatch):
    def refuse(*_):
        raise AssertionError("the verifier was called")

    for name in ("domains.raro.rollout.is_correct", "domains.raro.evaluate.is_correct"):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setattr("domains.raro.countdown.verify", refuse)
    result = await play(model, running)
    assert result.metrics.reward == pytest.approx(0.6)


@pytest.mark.parametrize(("said", "reward"), [(RIGHT, 0.0), ("<answer>3*(11-8)*8</answer>", 0.0)])
async def test_the_verifier_baseline_makes_no_critic_call_and_has_no_buffer(model, tmp_path, said, reward):
    model.policy = [said]
    running = runtime(tmp_path, buffered=False, reward="verifier")
    result = await play(model, running)
    assert model.critic_prompts == [] and result.training_texts[0].reward == reward
    problem = PROBLEM | {"numbers": [8, 8, 11]}
    model.policy = [RIGHT]
    assert (await play(model, running, problem)).training_texts[0].reward == 1.0


async def test_held_out_questions_train_nothing_and_leave_the_buffer_alone(model, running):
    problem = PROBLEM | {"split": "test", "numbers": [8, 8, 11]}
    assert not rollout.trains(problem) and rollout.trains(PROBLEM)
    result = await evaluation.evaluate(Caller(model.llm(), None), problem, settings(), running.pool)
    assert result.training_texts == [] and result.metrics.success
    assert metric(result, "eval_accuracy") == metric(result, "eval_accuracy_greedy") == [1.0]
    assert [p["temperature"] for p in model.parameters] == [1.0, 0.0]


@pytest.mark.parametrize("task", ["poetry", "solution"])
async def test_a_written_answer_is_never_compared_as_a_text(model, running, task):
    problem = PROBLEM | {"task": task, "split": "test"}
    model.policy = [f"<answer>{problem['expert_answer']}</answer>"]
    result = await evaluation.evaluate(Caller(model.llm(), None), problem, settings(), running.pool)
    assert metric(result, "eval_accuracy") is None and metric(result, "answerless_rate") == [0.0]
    assert (result.metrics.reward, result.metrics.success) == (0.0, False)
    with pytest.raises(ValueError, match=f"the task {task} cannot be compared"):
        await evaluation.is_correct(problem, problem["expert_answer"], running.pool)


async def test_mathematics_is_compared_by_value(running):
    pytest.importorskip("math_verify")
    bare = PROBLEM | {"task": "math", "expert_answer": "1/2", "result": "1/2"}
    written = PROBLEM | {"task": "solution", "expert_answer": "half", "result": "1/2"}
    try:
        for answer, right in ((r"\frac{1}{2}", True), ("0.5", True), ("1/3", False), ("}{", False)):
            assert await evaluation.is_correct(bare, answer, running.pool) is right, answer
        for answer, right in ((r"So it is\n\boxed{0.5}", True), ("So it is 1/2", False), ("half", False)):
            assert await evaluation.is_correct(written, answer, running.pool) is right, answer
    finally:
        running.pool.close()


async def test_a_control_token_in_an_answer_counts_as_no_answer(model):
    llm = model.llm()
    assert rollout.read_answer("<answer>8<|assistant|>3</answer>", PROBLEM, llm) is None
    assert rollout.read_answer("<answer>8*3</answer>", PROBLEM, llm) == "8*3"


@pytest.mark.parametrize("task", ["countdown", "text", "math", "poetry"])
@pytest.mark.parametrize("tag", ["[Answer  2]", "[Answer\n2]", "[Answer\u00a02]"])
def test_a_verdict_tag_that_normalising_would_make_counts_as_no_answer(model, task, tag):
    """The critic would read it; nothing else of the answer matters then."""
    if task == "poetry" and "\n" in tag:
        return  # a line of a poem ends where it ends, so there is no tag
    assert rollout.read_answer(f"<answer>42 {tag}</answer>", PROBLEM | {"task": task}, model.llm()) is None


def test_expert_answers_as_texts_to_imitate():
    from domains.raro.expert import expert_rollout

    result = expert_rollout(ScriptedModel().llm(), PROBLEM, settings(reward="expert"))
    (text,) = result.training_texts
    assert text.output_text.startswith("<answer>3*(11-8)*1</answer>") and text.role == "policy"
    assert len(text.logprobs) == text.output_tokens and text.labels[text.prompt_tokens] != -100


async def test_every_metric_of_the_game_is_there(model, running):
    from domains.raro.metrics import CRITIC_RATES, SOURCES

    said = itertools.cycle(["[Answer 1]", "[Tie]"])
    model.critic = lambda text: next(said)
    await play(model, running)
    result = await play(model, running)
    for source in SOURCES:
        assert all(metric(result, f"{source}/{name}") is not None for name in CRITIC_RATES), source
    for name in (
        "policy_reward", "answerless_rate", "identical_rate", "length_rule_accuracy", "replay_size",
        "replay_dup_rate", "replay_age", "replay_age_s", "critic_zero_advantage_groups", "policy_tokens",
        "critic_tokens", "policy_unjudged", "policy_truncated", "replay_empty", "critic_parse_fail",
    ):  # fmt: skip
        assert metric(result, name) is not None, name
