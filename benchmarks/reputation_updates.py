"""The language model's updates without engines: what start, pull and estimator do, in minutes on one core.

    python -m benchmarks.reputation_updates [--start DIR] [--advantage to_go] [--groups 4] [--updates 100]
        [--learning-rate 4e-3] [--pull 0.15] [--seed 0]

The same prompts, model, advantages and reference term as in the pipeline, but every update is on policy and
only the three answers can be drawn. Prints the share of the margin on held-out seeds every 20 updates.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from domains.reputation_hacking.game.dynamics import HELP, SIGNAL, Episodes, Tapes
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import choose, play, returns
from domains.reputation_hacking.language.decisions import table_of
from domains.reputation_hacking.language.policy import LanguagePolicy
from domains.reputation_hacking.language.prompts import situations
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import compute_advantages

START = Path(__file__).parent.parent / "domains" / "reputation_hacking" / "checkpoint"
ATTEMPTS, CHUNK = 8, 1600
HELD_OUT = range(10_000, 10_300)
LARGEST_RATIO = 5.0


@dataclass(frozen=True)
class Decisions:
    """All decisions of one update: prompts, int64 [M] actions, float64 [M] advantages."""

    prompts: list[list[int]]
    actions: torch.Tensor
    advantages: torch.Tensor


def collect(
    policy: LanguagePolicy, params: Params, groups: int, advantage: str, rng: np.random.Generator
) -> Decisions:
    """Play `groups` tapes, eight attempts each."""
    episodes = Episodes(params, Tapes.draw(params, groups, rng).repeat(ATTEMPTS))
    prompts: list[list[int]] = []
    seen, gains = [], []
    while episodes.t < params.T:
        prompts += policy.prompts(episodes)
        seen.append(situations(episodes))
        actions = choose(policy.probabilities(episodes), rng.random(len(episodes)))
        episodes.step(actions)
        gains.append(-params.effort_weight * episodes.e + params.net_signal_value * (actions == SIGNAL))
    to_go = np.cumsum(np.array(gains)[::-1], axis=0)[::-1]
    if advantage == "to_go":
        table = table_of(to_go, ATTEMPTS)
    else:
        table = table_of(np.broadcast_to(to_go[0], to_go.shape), ATTEMPTS, np.array(seen))
    rl = RLConfig(step_reward_advantages=True, divide_advantage_by_std=True)
    found = compute_advantages(table, rl).advantage
    taken = episodes.actions.ravel().astype(np.int64)
    return Decisions(prompts, torch.from_numpy(taken), torch.from_numpy(found))


def update(
    policy: LanguagePolicy,
    reference: LanguagePolicy,
    optimiser: torch.optim.Optimizer,
    batch: Decisions,
    pull: float,
) -> None:
    """REINFORCE with the reference term r - log r - 1, r = reference / policy (Schulman 2020)."""
    optimiser.zero_grad()
    for part in torch.arange(len(batch.prompts)).split(CHUNK):
        prompts, actions = [batch.prompts[index] for index in part.tolist()], batch.actions[part, None]
        taken = policy.log_probabilities(prompts).gather(1, actions)[:, 0]
        with torch.no_grad():
            anchor = reference.log_probabilities(prompts).gather(1, actions)[:, 0]
        log_ratio = (anchor - taken).clamp(-LARGEST_RATIO, LARGEST_RATIO)
        loss = pull * (log_ratio.exp() - log_ratio - 1) - batch.advantages[part] * taken
        (loss.sum() / len(batch.prompts)).backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 0.3)
    optimiser.step()


def show(update_index: int, folder_policy: LanguagePolicy, yardstick: Yardstick) -> None:
    parts = []
    for sampled in (False, True):
        folder_policy.sampled = sampled
        episodes = play(yardstick.params, yardstick.tapes, folder_policy)
        share = yardstick.share(float(returns(episodes).mean()))
        helps = (episodes.actions == HELP).sum(0).mean()
        parts.append(f"{'sampled' if sampled else 'deterministic'} {share:+.2f} (HELP {helps:.1f})")
    print(f"{update_index:5d}  " + "   ".join(parts), flush=True)


def main(argv: Sequence[str]) -> int:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--start", type=Path, default=START, metavar="DIR")
    parser.add_argument("--advantage", choices=("to_go", "situation"), default="to_go")
    parser.add_argument("--groups", type=int, default=4, help="tapes an update, eight attempts each")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="falls linearly to 0")
    parser.add_argument("--pull", type=float, default=0.15, help="to the start; falls linearly to 0")
    parser.add_argument("--price", type=float, default=0.7, help="of a SIGNAL")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    params, rng = Params(c_signal=options.price, l0=0.0), np.random.default_rng([options.seed, 19])
    policy, yardstick = LanguagePolicy(options.start), Yardstick(params, HELD_OUT)
    reference = copy.deepcopy(policy)
    optimiser = torch.optim.AdamW(policy.model.parameters(), lr=options.learning_rate, weight_decay=0.01)
    for index in range(options.updates):
        if index % 20 == 0:
            show(index, policy, yardstick)
        left = 1.0 - index / options.updates
        optimiser.param_groups[0]["lr"] = options.learning_rate * left
        batch = collect(policy, params, options.groups, options.advantage, rng)
        update(policy, reference, optimiser, batch, options.pull * left)
    show(options.updates, policy, yardstick)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
