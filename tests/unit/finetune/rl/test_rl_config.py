"""Settings of the objective: fractions as weights of roles, coefficients that follow each other."""

from typing import Any

import pytest

from pipelinerl.config.finetune import RLConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"role_weights": {"critic": "1/0"}},
            "weight '1/0' of role critic must be a number >= 0 or a",
        ),
        ({"role_weights": {"critic": -1}}, "weight -1.0 of role critic must be >= 0"),
        ({"role_weights": {"critic": float("nan")}}, "weight nan of role critic must be a number >= 0"),
        ({"role_weights": {"critic": "inf"}}, "weight 'inf' of role critic must be a number >= 0"),
        ({"role_weights": {"critic": 10**400}}, "of role critic must be a number >= 0"),
        ({"role_weights": {"critic": [1]}}, "role_weights.critic"),
        ({"batch_size_normalization": "nothing"}, "'training_texts', 'rollouts' or 'rollout_mean'"),
        ({"loss_scale_scope": "nothing"}, "'chunk' or 'batch'"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RLConfig(**values)


def test_fractions_are_exact() -> None:
    given: dict[str, Any] = {"policy": "1/9", "critic": 8 / 9, "judge": 1}
    assert RLConfig(role_weights=given).role_weights == {"policy": 1 / 9, "critic": 8 / 9, "judge": 1.0}


def test_a_last_coefficient_that_is_not_given_is_the_first_one() -> None:
    rl = RLConfig(kl_coef=0.2, entropy_bonus=0.1)
    assert rl.kl_coefficient(3, 4) == 0.2 and rl.entropy_coefficient(3, 4) == 0.1
    assert rl.uses_reference and RLConfig(final_kl_coef=0.1).uses_reference
    assert not RLConfig().uses_reference


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "rollout"),
        ({"step_reward_advantages": True}, "situation"),
        ({"advantage_estimator": "situation"}, "situation"),
        ({"advantage_estimator": "mine.baseline", "step_reward_advantages": True}, "mine.baseline"),
    ],
)
def test_the_estimator_follows_from_step_rewards_unless_named(values: dict[str, Any], expected: str) -> None:
    assert RLConfig(**values).estimator == expected
