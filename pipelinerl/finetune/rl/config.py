"""Settings of the objective, under the names of `finetune.rl.*`; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

POLICY_LOSSES = ("reinforce", "ppo", "gspo", "cispo", "sft")
NORMALISATIONS = ("training_texts", "rollouts", "rollout_mean")
SCOPES = ("batch", "chunk")
IGNORED: dict[str, tuple[str, ...]] = {
    "reinforce": ("epsilon_low",),
    "ppo": (),
    "gspo": (
        "kl_coef",
        "final_kl_coef",
        "entropy_bonus",
        "final_entropy_bonus",
        "relu_log_p_weights",
        "use_advantages",
    ),
    "cispo": (),
    "sft": ("epsilon_low", "epsilon_high", "use_advantages", "relu_log_p_weights"),
}
"""Settings that a policy loss does not read; a run that changes one of them is refused."""


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """What the advantage, scale and loss functions need; defaults are those of a run."""

    policy_loss: str = "reinforce"
    epsilon_low: float = 0.02
    epsilon_high: float = 0.02
    use_advantages: bool = True
    divide_advantage_by_std: bool = False
    kl_coef: float = 0.0
    final_kl_coef: float | None = None
    """None: the same as `kl_coef`."""
    entropy_bonus: float = 0.0
    final_entropy_bonus: float | None = None
    relu_log_p_weights: bool = False
    clamp_log_ratio_ref_new_value: float = 5.0
    group_normalization: bool = False
    overlong_filtering: bool = False
    value_loss_coef: float = 0.0
    """Positive exactly when the model has a value head; the advantage is then reward minus value."""
    filter_zero_advantage_groups: bool = False
    temperature: float = 1.0
    step_reward_advantages: bool = False
    """Compare texts of one situation (or step) instead of whole rollouts."""
    pad_step_rewards_for_advantage: bool = False
    batch_size_normalization: str = "training_texts"
    loss_scale_scope: str = "batch"
    role_weights: Mapping[str, float] = field(default_factory=dict)
    role_lengths: Mapping[str, float] = field(default_factory=dict)
    """Constant that the token losses of a role are divided by, instead of the response's own length."""
    zero_advantage_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        _one_of("policy_loss", self.policy_loss, POLICY_LOSSES)
        _one_of("batch_size_normalization", self.batch_size_normalization, NORMALISATIONS)
        _one_of("loss_scale_scope", self.loss_scale_scope, SCOPES)
        if self.pad_step_rewards_for_advantage and not self.step_reward_advantages:
            raise ValueError(
                "finetune.rl.pad_step_rewards_for_advantage=true needs step_reward_advantages=true"
            )
        if self.temperature <= 0:
            raise ValueError(f"finetune.rl.temperature={self.temperature} must be positive")
        object.__setattr__(self, "role_weights", parse_role_weights(self.role_weights))
        if self.policy_loss == "gspo" and (
            self.uses_reference or self.uses_entropy or self.relu_log_p_weights or not self.use_advantages
        ):
            raise ValueError(
                "finetune.rl.policy_loss=gspo takes no KL, no entropy bonus, no relu_log_p_weights and "
                "needs use_advantages=true"
            )

    @classmethod
    def from_tree(cls, tree: Any) -> RLConfig:
        """Take the fields by name from a mapping or an object with attributes (`cfg.finetune.rl`)."""
        names = [f.name for f in fields(cls)]
        if isinstance(tree, Mapping):
            return cls(**{name: tree[name] for name in names if name in tree})
        return cls(**{name: getattr(tree, name) for name in names if hasattr(tree, name)})

    @property
    def uses_reference(self) -> bool:
        """Whether reference log-probabilities are needed: max(kl_coef, final_kl_coef) > 0."""
        return max(self.kl_coef, self.kl_coef if self.final_kl_coef is None else self.final_kl_coef) > 0

    @property
    def uses_entropy(self) -> bool:
        """Whether the entropy has a gradient at any time."""
        return self.entropy_bonus != 0 or bool(self.final_entropy_bonus)

    def kl_coefficient(self, completed_steps: int, final_steps: int) -> float:
        """Linear from `kl_coef` to `final_kl_coef` over completed_steps / final_steps."""
        return _linear(self.kl_coef, self.final_kl_coef, completed_steps, final_steps)

    def entropy_coefficient(self, completed_steps: int, final_steps: int) -> float:
        """Linear from `entropy_bonus` to `final_entropy_bonus` over completed_steps / final_steps."""
        return _linear(self.entropy_bonus, self.final_entropy_bonus, completed_steps, final_steps)


def _linear(start: float, end: float | None, completed_steps: int, final_steps: int) -> float:
    end = start if end is None else end
    progress = completed_steps / final_steps if final_steps > 0 else 1.0
    return start + (end - start) * min(1.0, progress)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"finetune.rl.{name}={value} is unknown; use one of {', '.join(allowed)}")


def parse_role_weights(weights: Mapping[str, Any] | None) -> dict[str, float]:
    """Role weights as floats; numbers or fraction strings ("1/9") are accepted.

    Raises ValueError naming the role when a weight is not finite, negative or does not parse.
    """
    parsed: dict[str, float] = {}
    for role, value in (weights or {}).items():
        try:
            number = float(Fraction(value)) if isinstance(value, str) else float(value)
        except (ValueError, ZeroDivisionError):
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"finetune.rl.role_weights.{role}={value!r} must be a finite number >= 0")
        parsed[str(role)] = number
    return parsed
