"""Settings of PPO training: two named recipes whose parts the command line of `train` can switch alone."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyperparameters of stable-baselines3's PPO and what the adapter and the features do."""

    n_envs: int = 256
    total_steps: int = 600_000
    """Rounded up to whole rollouts of n_envs whole episodes."""
    minibatches: int = 8
    epochs: int = 8
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    """Reached linearly at the end."""
    gamma: float = 1.0
    """The only reward comes at the end: any discount hides it from the first steps."""
    gae_lambda: float = 0.97
    entropy: float = 0.02
    entropy_until: float = 5 / 6
    """Share of training in which the entropy bonus falls to 0."""
    clip_range: float = 0.2
    reward_scale: float = 0.05
    """In the adapter only."""
    layers: tuple[int, ...] = (64, 64)
    """tanh layers, separate for policy and value."""
    scaled: bool = True
    """Whether the network sees (observation - centre) * scale or the observation as it is."""
    rest_flag: bool = False
    """Add the sign of (fatigue - rest limit) as a feature."""
    tape_baseline: bool = False
    """Subtract (1-a)·(L - E_without(tape)), which no action can influence, from the reward."""

    def rollouts(self, horizon: int) -> int:
        """Whole rollouts of `horizon` steps in every environment that cover `total_steps`."""
        return -(-self.total_steps // (self.n_envs * horizon))


BASE = Recipe()
STRONG = Recipe(n_envs=512, total_steps=4_000_000, gae_lambda=1.0, rest_flag=True, tape_baseline=True)
RECIPES = {"base": BASE, "strong": STRONG}
QUICK_STEPS = 153_600
"""Training steps of `--quick`."""
