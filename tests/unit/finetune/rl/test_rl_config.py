"""What the configuration accepts is what the trainer has, with the same defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from pipelinerl.config.finetune import RLConfig as Section
from pipelinerl.finetune.rl.config import NORMALISATIONS, POLICY_LOSSES, SCOPES, RLConfig

FOLLOWING = {"final_kl_coef", "final_entropy_bonus"}
"""Absent means: as the first coefficient. In the configuration an interpolation says that."""


def test_every_key_reaches_the_trainer_with_its_default() -> None:
    ours = {field.name: getattr(RLConfig(), field.name) for field in fields(RLConfig)}
    assert ours.keys() == Section.model_fields.keys()
    section = Section()
    assert {k: v for k, v in ours.items() if k not in FOLLOWING} == {
        name: getattr(section, name) for name in ours if name not in FOLLOWING
    }
    assert RLConfig.from_tree(section).final_kl_coef == 0


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("policy_loss", POLICY_LOSSES),
        ("batch_size_normalization", NORMALISATIONS),
        ("loss_scale_scope", SCOPES),
    ],
)
def test_the_choices_are_the_same(key: str, choices: tuple[str, ...]) -> None:
    assert set(get_args(Section.model_fields[key].annotation)) == set(choices)
    with pytest.raises(ValueError, match=rf"finetune\.rl\.{key}=nothing is unknown; use one of"):
        RLConfig(**{key: "nothing"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0}, r"finetune\.rl\.temperature=0 must be positive"),
        ({"pad_step_rewards_for_advantage": True}, "needs step_reward_advantages=true"),
        ({"policy_loss": "gspo", "kl_coef": 0.1}, "gspo takes no KL"),
        ({"policy_loss": "gspo", "entropy_bonus": 0.1}, "no entropy bonus"),
        ({"policy_loss": "gspo", "use_advantages": False}, "needs use_advantages=true"),
        ({"role_weights": {"critic": "1/0"}}, r"role_weights\.critic='1/0' must be a finite number >= 0"),
        ({"role_weights": {"critic": -1}}, r"role_weights\.critic=-1 must be a finite number >= 0"),
        ({"role_weights": {"critic": float("nan")}}, r"role_weights\.critic=nan must be a finite"),
        ({"role_weights": {"critic": "inf"}}, r"role_weights\.critic='inf' must be a finite"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RLConfig(**values)


def test_fractions_are_exact() -> None:
    assert RLConfig(role_weights={"policy": "1/9", "critic": 8 / 9}).role_weights == {
        "policy": 1 / 9,
        "critic": 8 / 9,
    }
