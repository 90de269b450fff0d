"""Advantages and loss weights against stored reference values and worked examples."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages.base import zero_advantage_groups
from pipelinerl.finetune.rl.loss_scale import loss_scales
from pipelinerl.finetune.rl.sample import BadSample
from pipelinerl.finetune.rl.table import SampleTable
from tests.support.builders import estimate, samples, table_of, text

FIXTURE = Path(__file__).parents[3] / "fixtures" / "advantages_pr146.json"
CASES = json.loads(FIXTURE.read_text())["cases"]


def advantages(texts: list[dict], pad: bool = False, std: bool = False, steps: bool = True) -> np.ndarray:
    return estimate(texts, steps, pad, std).advantage


def scales(table: SampleTable, mode: str, roles: dict | None = None, counted: Any = None) -> np.ndarray:
    counted = np.ones(len(table), bool) if counted is None else np.asarray(counted)
    return loss_scales(table, counted, mode, roles).policy


@pytest.mark.parametrize("number", range(len(CASES)))
def test_reference_cases(number: int) -> None:
    case = CASES[number]
    texts = [
        text(
            t["rollout_index"],
            t["step_index"],
            t["reward"],
            t["group_id"],
            t["n_tokens"],
            metadata=t["metadata"],
        )
        for t in case["texts"]
    ]
    table = table_of(texts)
    for options, expected in case["expected"].items():
        pad, std, mode = (part.split("=")[-1] for part in options.split(","))
        ours = estimate(table, case["step_reward_advantages"], pad == "1", std == "1")
        np.testing.assert_allclose(ours.advantage, expected["advantages"], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(ours.group_tokens, expected["group_tokens"], rtol=1e-12)
        np.testing.assert_allclose(scales(table, mode), expected["loss_weight_scale"], rtol=1e-12)


EXAMPLE_A = [
    ((0, 0, "S", 0.25), (0, 0, -0.5, -0.865875, 0.125)),
    ((0, 1, "S", 1.25), (0.5, 0.865875, 0.5, 0.865875, 0.5)),
    ((0, 2, "C", 1.0), (1.0, 1.414014, 1.0, 1.414014, 1.0)),
    ((1, 0, "S", 1.25), (0.5, 0.865875, 0.5, 0.865875, 0.5)),
    ((1, 1, "C", 0.0), (-1.0, -1.414014, -1.0, -1.414014, -1.0)),
    ((2, 0, "S", 0.0), (0, 0, -0.75, -1.133722, -0.125)),
    ((2, 1, "S", 0.25), (0, 0, -0.5, -0.865875, 0.125)),
    ((2, 2, "S", 0.25), (-1.0, -1.731751, -1.0, -1.731751, -1.0)),
]


def test_example_a_situations() -> None:
    tokens = {(0, 0): 6, (0, 1): 6, (0, 2): 6, (1, 0): 5, (1, 1): 5, (2, 0): 8, (2, 1): 8, (2, 2): 8}
    texts = [text(r, s, w, situation=c, tokens=tokens[r, s]) for (r, s, c, w), _ in EXAMPLE_A]
    expected = np.array([row for _, row in EXAMPLE_A]).T
    for column, (pad, std) in enumerate([(False, False), (False, True), (True, False), (True, True)]):
        np.testing.assert_allclose(advantages(texts, pad, std), expected[column], atol=1e-6)
    table = table_of(texts)
    np.testing.assert_allclose(estimate(table, True).group_tokens, 52 / 3)
    np.testing.assert_allclose(scales(table, "rollouts"), 8 / 3)
    texts[3]["padding_value"] = 0.0
    np.testing.assert_allclose(advantages(texts, True), expected[4], atol=1e-6)


def test_example_b_no_situations() -> None:
    texts = [text(0, 0, 0), text(0, 1, 1), text(0, 2, 1), text(1, 0, 1)]
    texts += [text(1, 1, 0, padding_reward=0.5), text(2, 0, 0.5)]
    for (pad, std), expected in {
        (False, False): [-0.75, 1.0, 0, 0.75, -1.0, 0],
        (False, True): [-1.4997, 1.414014, 0, 1.4997, -1.414014, 0],
        (True, False): [-0.75, 0.75, 0.5, 0.75, -0.75, 0],
        (True, True): [-1.4997, 1.4997, 1.731451, 1.4997, -1.4997, 0],
    }.items():
        np.testing.assert_allclose(advantages(texts, pad, std), expected, atol=1e-6)


def test_example_c_tail_padding_counts_all_texts() -> None:
    texts = [text(0, 0, 1.0), text(0, 1, 0.5, situation="a"), text(0, 2, 0.25, situation="a")]
    texts += [text(1, 0, 0.0), text(1, 1, 0.5)]
    assert advantages(texts)[4] == 0 and advantages(texts, True)[4] == -0.5
    assert (advantages(texts, True)[1:3] == 0).all()


def example_d() -> list[dict]:
    texts = [text(0, s, 1, "k", n) for s, n in enumerate((5, 9))] + [text(1, 0, 0, "k", 7)]
    texts += [text(2, s, 0, "k", 6) for s in range(3)]
    return [*texts, text(0, 0, 1, "z"), text(1, 0, 1, "z")]


def test_example_d_default_path_and_scale() -> None:
    table = table_of(example_d())
    default = estimate(table)
    np.testing.assert_allclose(default.advantage, [1, 1, -0.5, -0.5, -0.5, -0.5, 0, 0])
    assert (default.group_tokens[:6] == 6.0).all()
    std = estimate(table, std=True).advantage
    np.testing.assert_allclose(std[[0, 2, 3]], [1.731751, -0.865875, -0.865875], atol=1e-6)
    steps = estimate(table, True)
    np.testing.assert_allclose(steps.advantage[3:6], [-0.5, -1.0, 0])
    assert (steps.group_tokens[:6] == 13.0).all()
    kept = table.select(~zero_advantage_groups(table, default.advantage))
    assert len(kept) == 6
    np.testing.assert_allclose(scales(table, "rollouts"), 1.6)
    np.testing.assert_allclose(scales(kept, "rollouts"), 2.0)
    np.testing.assert_allclose(scales(kept, "rollout_mean"), [1, 1, 2, 2 / 3, 2 / 3, 2 / 3])
    everything = scales(table, "rollout_mean")
    np.testing.assert_allclose(everything, [0.8, 0.8, 1.6, 1.6 / 3, 1.6 / 3, 1.6 / 3, 1.6, 1.6])


LAMBDA = {"policy": "1/9", "critic": "8/9"}


def roles(counts: dict[str, int], weights: dict[int, float] | None = None) -> SampleTable:
    names = [role for role, n in counts.items() for _ in range(n)]
    return table_of(
        [
            text(i, 0, 0.0, role=role, situation=role, loss_weight=(weights or {}).get(i, 1.0))
            for i, role in enumerate(names)
        ]
    )


def parsed() -> dict[str, float]:
    return RLConfig(role_weights=LAMBDA).role_weights


def test_example_e_role_weights() -> None:
    ours = scales(roles({"policy": 3, "critic": 5}), "training_texts", parsed())
    np.testing.assert_allclose(ours, [8 / 27] * 3 + [64 / 45] * 5)
    ours = scales(roles({"policy": 3, "critic": 5}, {7: 0.5}), "training_texts", parsed())
    np.testing.assert_allclose(ours, [0.277778] * 3 + [1.481481] * 4 + [0.740741], atol=1e-6)
    both = loss_scales(roles({"policy": 2, "critic": 4}), np.ones(6, bool), "training_texts", parsed())
    np.testing.assert_allclose(both.policy / 6, [1 / 18] * 2 + [2 / 9] * 4)
    np.testing.assert_allclose(both.kl / 6, [1 / 4] * 2 + [1 / 8] * 4)


def test_example_e_rollout_mean() -> None:
    lengths = [("policy", 1), ("policy", 2), ("critic", 1), ("critic", 1), ("critic", 3)]
    texts = [
        text(i, s, 0.0, role=role, situation=role) for i, (role, n) in enumerate(lengths) for s in range(n)
    ]
    ours = scales(table_of(texts), "rollout_mean", parsed())
    expected = [0.444444, 0.222222, 0.222222, 2.37037, 2.37037, 0.790123, 0.790123, 0.790123]
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    assert ours[:3].sum() == pytest.approx(8 / 9) and ours[3:].sum() == pytest.approx(64 / 9)


def test_example_f_an_error_keeps_its_situation() -> None:
    rewards = [1.25, 0.25, -1, -1]
    shared = advantages([text(i, 0, r, situation="plan") for i, r in enumerate(rewards)])
    np.testing.assert_allclose(shared, [1.833333, 0.5, -1.166667, -1.166667], atol=1e-6)
    labels = ["plan", "plan", "plan:error", "plan:error"]
    apart = advantages([text(i, 0, r, situation=s) for i, (r, s) in enumerate(zip(rewards, labels))])
    np.testing.assert_allclose(apart, [1, -1, 0, 0])


def example_g() -> list[dict]:
    texts = [text(i, 0, r, situation="policy") for i, r in enumerate([1, 0, 0.6, 0])]
    critic = [text(0, 1 + i, r, situation="critic", position="pool") for i, r in enumerate([0, 1, 0.55])]
    return texts + critic


@pytest.mark.parametrize("pad", [False, True])
def test_example_g_pooled_situation_and_masked_text(pad: bool) -> None:
    texts = example_g()
    expected = [0.8, -0.533333, 0.266667, -0.533333, -0.775, 0.725, 0.05]
    np.testing.assert_allclose(advantages(texts, pad), expected, atol=1e-6)
    lost = text(0, 4, -9.0, situation="critic", position="pool", masked=True)
    without = estimate([*texts, lost], True, pad)
    assert np.array_equal(without.advantage, advantages(texts, pad))
    end_aligned = [{**t, "position": "end"} for t in texts]
    assert (advantages(end_aligned)[4:] == 0).all()


def meta(**fields: Any) -> dict[str, Any]:
    return {f"step_advantage_{k}": v for k, v in fields.items()}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([text(1, 2, float("nan"))], r"sample g/1/2: reward is nan, expected a finite number"),
        ([text(1, 2, 0, role="")], r"sample g/1/2: role is the empty string"),
        (
            [text(1, 2, 0, situation="b", metadata=meta(local_index="x", segment_length=2))],
            r"sample g/1/2: step_advantage_local_index=x is not in",
        ),
        ([text(1, 2, 0, metadata=meta(group="b", segment_length=2))], r"sample g/1/2: metadata needs"),
        (
            [text(1, 2, 0, padding_reward=0.5, metadata={"padding_reward": 0.25})],
            r"sample g/1/2: padding_reward=0.5 contradicts metadata.padding_reward=0.25; give one",
        ),
        (
            [
                text(1, s, 0, metadata=meta(group="a", local_index=0, segment_length=1 + s))
                for s in range(1, 3)
            ],
            r"rollout g/1: step_advantage_segment_length=3 differs within situation 'a', the first .* says 2",
        ),
        (
            [text(1, 2, 0, situation="a", position="pool", metadata=meta(local_index=1, segment_length=2))],
            r"sample g/1/2: a pooled sample is index 0 of 1, not 1 of 2",
        ),
        ([text(1, 2, 0, situation=3)], r"sample g/1/2: situation=3 must be a string"),
        ([text(1, 2, 0, position="start")], r"sample g/1/2: position='start' must be one of end, pool"),
        ([text(1, 2, 0, loss_weight="much")], r"sample g/1/2: loss_weight='much' must be a number"),
        ([text(1, 2, 0, padding_reward=[1])], r"sample g/1/2: padding_reward=\[1\] must be a number"),
        ([text(1, 2, 0, loss_weight=-1.0)], r"sample g/1/2: loss_weight=-1.0 must be from 0 to 1e\+15"),
        ([text(1, 2, 0, situation="a", padding_value=float("inf"))], r"sample g/1/2: padding_value=inf"),
        (
            [text(0, 0, 0, situation="a"), text(1, 2, 0, situation="a", position="pool")],
            r"situation 'a' has both pooled and end-aligned",
        ),
        ([text(1, 2, 0) | {"group_id": None}], "a sample of rollout 1 has no group_id"),
        ([text(1, 2, 0, metadata={"step_index": None})], "group g has rollout_index=1 and step_index=None"),
    ],
)
def test_label_errors_name_the_sample(texts: list[dict], message: str) -> None:
    with pytest.raises(BadSample, match=message):
        samples(texts)


def test_estimator_errors_name_sample_or_flag() -> None:
    uneven = table_of([text(0, 0, 1), text(0, 1, 0)])
    with pytest.raises(ValueError, match=r"sample g/0/1: reward 0 differs .*step_reward_advantages=true"):
        estimate(uneven)
    two_roles = table_of([text(0, 0, 1, situation="a", role="x"), text(1, 0, 1, situation="a", role="y")])
    with pytest.raises(ValueError, match="sample g/1/0: roles x and y share one situation"):
        estimate(two_roles, True)


def test_scale_errors_name_sample_and_role() -> None:
    table = roles({"policy": 1, "judge": 1})
    with pytest.raises(ValueError, match=r"sample g/1/0 has role 'judge'; .* knows policy, critic"):
        scales(table, "training_texts", parsed())
    with pytest.raises(ValueError, match="sample g/0/0 has no role"):
        scales(table_of([text(0, 0, 1)]), "training_texts", parsed())
    policy = roles({"policy": 2})
    with pytest.raises(ValueError, match="a chunk holds no sample of role critic"):
        loss_scales(policy, np.ones(2, bool), "training_texts", parsed(), "chunk")
    assert loss_scales(policy, np.ones(2, bool), "training_texts", parsed()).missing_roles == ("critic",)


def test_uncounted_texts_get_scale_zero_except_when_everything_is_off() -> None:
    table = table_of([text(0, 0, 1), text(1, 0, 0), text(1, 1, 0)])
    counted = [True, True, False]
    np.testing.assert_allclose(scales(table, "rollouts", None, counted), [1, 1, 0])
    np.testing.assert_allclose(scales(table, "training_texts", None, counted), [1, 1, 1])


def test_module_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; import pipelinerl.finetune.rl.advantages, pipelinerl.finetune.rl.loss_scale, "
        "pipelinerl.finetune.rl.batch, pipelinerl.finetune.types, "
        "pipelinerl.finetune.data; from pipelinerl.finetune.rl import RLConfig, populate_rl_data; "
        "assert not {'torch', 'pandas', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("reward", [0.1, 1e6 + 0.1, -3e9 / 7, 1e12 / 3, -1e15 / 7])
def test_equal_rewards_of_any_size_have_no_advantage(reward: float, steps: bool) -> None:
    for n in (2, 3, 8):
        same = [text(i, 0, reward) for i in range(n)]
        rounded = [text(i, 0, float(np.nextafter(reward, 0)) if i else reward) for i in range(n)]
        for texts in (same, rounded):
            found = estimate(texts, steps, std=True)
            assert (found.advantage == 0).all()
            assert found.baseline.tolist() == [t["reward"] for t in texts]


def test_rewards_of_a_rollout_may_be_sums_in_another_order_and_others_are_told_apart() -> None:
    summed = [text(0, 0, 0.1 + 0.2), text(0, 1, 0.3), text(1, 0, 1.3), text(1, 1, 1.3)]
    np.testing.assert_allclose(estimate(summed).advantage, [-1, -1, 1, 1], rtol=1e-15)
    apart = [text(0, 0, 0.3), text(0, 1, 0.3 + 1e-12), text(1, 0, 1), text(1, 1, 1)]
    with pytest.raises(ValueError, match=r"g/0/1: reward 0\.300000000001 differs from 0\.3 of"):
        estimate(apart)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9, 1e12, 9e14])
def test_large_rewards_that_differ_keep_their_differences(size: float) -> None:
    rewards = [size + i for i in (0, 1, 2, 5, 0, 7, 3, 3)]  # exact in float64
    exact = [Fraction(r) - (sum(map(Fraction, rewards)) - Fraction(r)) / 7 for r in rewards]
    found = estimate([text(i, 0, r) for i, r in enumerate(rewards)])
    np.testing.assert_allclose(found.advantage, [float(a) for a in exact], rtol=1e-14)
    mean = sum(map(Fraction, rewards)) / 8
    std = float(sum((Fraction(r) - mean) ** 2 for r in rewards) / 7) ** 0.5
    divided = estimate([text(i, 0, r) for i, r in enumerate(rewards)], std=True)
    np.testing.assert_allclose(divided.advantage, [float(a) / (std + 1e-4) for a in exact], rtol=1e-13)
