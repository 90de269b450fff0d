"""Settings of PPO training: three named recipes whose parts the command line of `train` can set alone."""

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
    final_entropy: float = 0.0
    entropy_until: float = 5 / 6
    """Share of training in which the entropy bonus goes from `entropy` to `final_entropy`, linearly."""
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
PUBLIC = Recipe(
    n_envs=20,
    total_steps=100_000,
    minibatches=4,
    epochs=5,
    learning_rate=2e-4,
    final_learning_rate=2e-4,
    gamma=0.97,
    gae_lambda=0.95,
    entropy=0.05,
    final_entropy=0.05,
    reward_scale=1.0,
    scaled=False,
)
"""Settings of the public original. There one environment plays 1,024 steps an update, in minibatches of 256;
here 20 play one episode each, 1,000 steps in minibatches of 250, so that no episode is cut by an update."""
RECIPES = {"base": BASE, "strong": STRONG, "public": PUBLIC}
QUICK_STEPS = 153_600
"""Most training steps of `--quick`."""
