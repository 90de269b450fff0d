"""`actor.sampling=difficulty`: simulated problems of known rates against the formula and the bound."""

import json
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.actor.known_rates import Known, measured_rate
from pipelinerl.actor.messages import Ending, FinishedRollout
from pipelinerl.actor.sampler import ProblemSampler
from pipelinerl.actor.stats import RECENT_GROUPS, UnratedWatch, known_rates
from pipelinerl.config.roles import DifficultyConfig

DRAWS = 20_000


UNBOUNDED = 1e6


def sampler(count, mix=None, domains="a", most=UNBOUNDED, **config):
    problems = [{"id": i, "domain": domains[i % len(domains)]} for i in range(count)]
    return ProblemSampler(problems, 7, mix, DifficultyConfig(most=most, **config))


def groups(rates, attempts, rng):
    """Endless groups: the mean of so many attempts on a problem that each succeed with its rate."""
    return lambda problem: sum(rng.random() < rates[problem] for _ in range(attempts)) / attempts


def test_a_problem_is_drawn_as_often_as_its_rate_the_band_and_the_share_say():
    """Rates that never change: share/N each, and the rest alike over the problems of the closed band."""
    rates, share = [0.0, 0.05, 0.2, 0.5, 0.8, 0.81, 1.0, 1.0, 0.0, 0.79], 0.3
    one = sampler(10, low=0.2, high=0.8, uniform_share=share)
    for _ in range(200):
        one.record_completion(problem := one.draw().problem, rates[problem])
    assert one.difficulty["all"].known.keys() == set(range(10))
    drawn = [one.draw() for _ in range(DRAWS)]
    counts = Counter(draw.problem for draw in drawn)
    for problem in range(10):
        expected = share / 10 + (0.7 / 4 if problem in (2, 3, 4, 9) else 0)
        deviation = math.sqrt(DRAWS * expected * (1 - expected))
        assert counts[problem] == pytest.approx(DRAWS * expected, abs=5 * deviation)
        (weight,) = {draw.weight for draw in drawn if draw.problem == problem}
        assert weight == pytest.approx(10 * expected)


@pytest.mark.parametrize("most", [1.0, 3.0, 8.0])
def test_where_few_problems_are_in_the_band_none_is_drawn_much_more_often_than_in_a_uniform_draw(most):
    """Two of forty problems are in it: alone they would be drawn 0.2 + 0.8 * 20 = 16.2 times as often."""
    one = sampler(40, uniform_share=0.2, most=most)
    for _ in range(400):
        one.record_completion(problem := one.draw().problem, 0.5 if problem in (3, 30) else 1.0)
    drawn = [one.draw() for _ in range(DRAWS)]
    counts = Counter(draw.problem for draw in drawn)
    assert {round(draw.weight, 9) for draw in drawn if draw.problem in (3, 30)} == {most}
    for problem in range(40):
        expected = most / 40 if problem in (3, 30) else (1 - most / 20) / 38
        deviation = math.sqrt(DRAWS * expected * (1 - expected))
        assert counts[problem] == pytest.approx(DRAWS * expected, abs=5 * deviation)


def test_a_problem_that_is_solved_at_last_leaves_the_band_with_its_second_full_group():
    """0.3 of many groups, then 1: 0.3 + 0.7 * 0.7 = 0.79, and 0.79 + 0.7 * 0.21 = 0.937."""
    pool = sampler(2).difficulty["all"]
    for value, inside in [*[(0.3, True)] * 9, (1.0, True), (1.0, False)]:
        pool.record(0, value)
        assert pool.in_band(0) is inside


def test_of_noisy_groups_most_attempts_go_to_problems_that_are_solved_at_times():
    """Half of the problems are always solved, a fifth never, as is usual; eight attempts in a group."""
    rng = random.Random(3)
    rates = [1.0] * 100 + [0.0] * 40 + [0.3] * 30 + [0.6] * 30
    one, of = sampler(200, uniform_share=0.25), groups(rates, 8, rng)
    for _ in range(1000):
        one.record_completion(problem := one.draw().problem, of(problem))
    useful = 0
    for _ in range(4000):
        useful += rates[problem := one.draw().problem] in (0.3, 0.6)
        one.record_completion(problem, of(problem))
    # All draws beside the share that stays uniform, of which three in ten are useful; uniform ones: 0.3.
    assert useful / 4000 == pytest.approx(0.75 + 0.25 * 0.3, abs=0.03)
    known = one.difficulty["all"].known
    assert all(known[i].rate == rates[i] for i in range(140))
    assert sum(known[i].rate for i in range(140, 200)) / 60 == pytest.approx(0.45, abs=0.06)


def test_a_problem_that_becomes_solvable_is_found_and_one_that_is_mastered_is_left():
    one = sampler(40, uniform_share=0.5)
    solved = {i: 0.0 if i < 20 else 0.5 for i in range(40)}
    for _ in range(400):
        one.record_completion(problem := one.draw().problem, solved[problem])
    solved = {i: 0.5 if i < 20 else 1.0 for i in range(40)}
    for _ in range(1600):
        one.record_completion(problem := one.draw().problem, solved[problem])
    pool = one.difficulty["all"]
    assert [problem for problem in range(40) if pool.in_band(problem)] == list(range(20))


@pytest.mark.parametrize("share", [0.05, 0.25, 0.3, 1.0])
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 12), seed=st.integers(0, 10**6), resume_at=st.integers(0, 300))
def test_every_problem_comes_again_within_the_bound(share, count, seed, resume_at):
    """Whatever its groups say, if they say anything; also over a resume."""
    rng, one = random.Random(seed), sampler(count, uniform_share=share)
    bound = math.ceil(2 * count / share)
    last = dict.fromkeys(range(count), -1)
    for number in range(3 * bound):
        if number == resume_at:
            state, one = json.loads(json.dumps(one.state_dict())), sampler(count, uniform_share=share)
            one.load_state_dict(state)
        problem = one.draw().problem
        last[problem] = number
        one.record_completion(problem, rng.choice([None, 0.0, 0.5, 1.0]))
        assert number - min(last.values()) <= bound


@pytest.mark.parametrize("mix", [None, {"a": 1, "b": 3}])
def test_a_resumed_sampler_goes_on_as_the_other_would_have(mix):
    rng = random.Random(5)
    of = groups([rng.random() for _ in range(60)], 4, rng)
    one, two = (sampler(60, mix, "ab", uniform_share=0.3) for _ in range(2))
    under_way = []
    for _ in range(150):
        under_way.append(one.draw().problem)
        if len(under_way) > 5:  # groups end in another order than they began
            one.record_completion(problem := under_way.pop(rng.randrange(6)), of(problem))
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for _ in range(150):
        draws = one.draw(), two.draw()
        assert draws[0] == draws[1]
        value = of(draws[0].problem)
        one.record_completion(draws[0].problem, value)
        two.record_completion(draws[1].problem, value)
    assert one.state_dict() == two.state_dict()


def test_problems_are_drawn_alike_bit_for_bit_where_nothing_was_asked():
    """The first draws of seed 7 over nine problems, as they were before problems could be drawn otherwise."""
    problems = [{"id": i, "domain": "abc"[i % 3]} for i in range(9)]
    one, mixed = ProblemSampler(problems, 7), ProblemSampler(problems, 7, {"a": 1, "b": 3, "c": 0})
    assert [one.draw() for _ in range(20)] == [
        (problem, 1.0) for problem in (7, 4, 6, 0, 1, 4, 3, 4, 3, 0, 0, 0, 2, 7, 3, 8, 1, 5, 2, 5)
    ]
    drawn = []
    for _ in range(60):
        drawn.append(mixed.draw().problem)
        mixed.record_completion(drawn[-1], 1.0)
    assert drawn[-12:] == [1, 1, 7, 4, 4, 3, 7, 3, 3, 7, 6, 4]
    assert one.state_dict() == {"seed": 7, "drawn": 20} and mixed.known(drawn[0]) is None


def test_a_problem_whose_rollouts_fail_is_drawn_no_more_than_any_other():
    """It was drawn and nothing is known of it: that is no reason to draw it for ever."""
    one = sampler(20, uniform_share=0.2)
    counts: Counter[int] = Counter()
    for _ in range(2000):
        problem = one.draw().problem
        counts[problem] += 1
        one.record_completion(problem, None if problem == 4 else 0.5)
    assert counts[4] == pytest.approx(2000 * 0.2 / 20, abs=3)


def test_with_no_problem_in_the_band_all_are_drawn_alike():
    one = sampler(10, uniform_share=0.1)
    for _ in range(200):
        one.record_completion(one.draw().problem, 1.0)
    drawn = [one.draw() for _ in range(5000)]
    counts = Counter(draw.problem for draw in drawn)
    assert {draw.weight for draw in drawn} == {1.0}
    assert all(counts[problem] == pytest.approx(500, abs=110) for problem in range(10))


def test_each_domain_of_a_mixture_keeps_its_share_and_has_a_band_of_its_own():
    """Without its own band the domain that is always solved would be drawn less than was asked."""
    one = sampler(40, {"a": 1, "b": 1}, "ab", uniform_share=0.25)
    counts: Counter[int] = Counter()
    for number in range(6000):
        problem = one.draw().problem
        counts[problem] += number >= 1000
        one.record_completion(problem, 1.0 if problem % 2 else float(problem < 10) * 0.5)
    of_a, of_b = (sum(counts[i] for i in range(first, 40, 2)) / 5000 for first in (0, 1))
    assert of_a == pytest.approx(0.5, abs=0.03) and of_b == pytest.approx(0.5, abs=0.03)
    assert sum(counts[i] for i in (0, 2, 4, 6, 8)) / 5000 == pytest.approx(
        0.5 * (0.75 + 0.25 * 0.25), abs=0.03
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_a_rate_is_the_mean_of_the_first_groups_and_then_exponentially_weighted(values, newest):
    """Group k weighs a_k times what later groups left: a_k = max(newest, 1/k)."""
    known = Known()
    for value in values:
        known.add(value, newest)
    steps = [max(newest, 1 / k) for k in range(1, len(values) + 1)]
    weights = [step * math.prod(1 - later for later in steps[k + 1 :]) for k, step in enumerate(steps)]
    assert sum(weights) == pytest.approx(1) and known.groups == len(values)
    assert known.rate == pytest.approx(sum(w * v for w, v in zip(weights, values, strict=True)), abs=1e-12)
    plain = [k for k in range(1, len(values) + 1) if 1 / k >= newest]
    early = Known()
    for value in values[: plain[-1]]:
        early.add(value, newest)
    assert early.rate == pytest.approx(sum(values[: plain[-1]]) / plain[-1])


def ended(ending=Ending.DONE, **metrics):
    return FinishedRollout(key=0, ending=ending, metrics=metrics)


def test_rollouts_that_failed_say_nothing_of_their_problem():
    group = [ended(success=1.0, reward=0.5), ended(Ending.EMPTY, success=0.0), ended(Ending.FAILED)]
    assert measured_rate(group, "success") == 0.5
    assert measured_rate(group, "reward") == 0.5
    assert measured_rate([ended(guesses=[0.0, 1.0]), ended(guesses=[])], "guesses") == 0.5
    assert measured_rate([ended(Ending.FAILED)], "success") is None
    assert measured_rate([ended(success=math.nan)], "success") is None


def test_a_domain_without_success_is_told_once_and_with_reward_it_is_not():
    watches = UnratedWatch("success"), UnratedWatch("reward")
    for watch, told in zip(watches, (1, 0), strict=True):
        lines = [watch.add_group([ended(reward=-2.0)]) for _ in range(3 * RECENT_GROUPS)]
        assert [watch.add_group([ended(Ending.FAILED)]) for _ in range(100)] == [None] * 100
        assert sum(line is not None for line in lines) == told
        if told:
            assert "actor.difficulty.metric=reward" in lines[RECENT_GROUPS - 1]


def test_what_is_known_and_drawn_is_reported_and_nothing_where_problems_are_drawn_alike():
    assert known_rates([]) == {}
    one = sampler(4, uniform_share=0.01)
    drawn = [one.draw().problem for _ in range(4)]
    assert known_rates(one.difficulty.values()) == {
        "sampling/known": 0.0,
        "sampling/in_band": 0.0,
        "sampling/first": 1.0,
    }
    for problem, value in zip(drawn, (0.5, 1.0, 0.0, None), strict=True):
        one.record_completion(problem, value)
    assert [one.draw().problem for _ in range(8)] == [drawn[0]] * 8
    assert known_rates(one.difficulty.values()) == {
        "sampling/known": 3.0,
        "sampling/in_band": 1.0,
        "sampling/first": 0.0,
        "sampling/known_in_band": pytest.approx(1 / 3),
        "sampling/known_rate_mean": 0.5,
    }
    assert known_rates(one.difficulty.values()).keys().isdisjoint({"sampling/in_band", "sampling/first"})
