"""The reputation game: speed of the environments and of PPO, and the share of the margin that PPO takes.

    python -m benchmarks.reputation [--seeds 0,1,2] [--c-signal PRICES] [--strong] [--jobs 1]
                                    [--skip-learning] [--budget 2.0] [--out FILE]

`--c-signal`: prices to train at (0.7). `--strong`: also the recipe of four million steps. `--jobs`: trainings
at a time. `--skip-learning`: speed only, `--budget` seconds for each environment.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks._figures import RESULTS, command_line, write_json
from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.env import ReputationEnv
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play, returns
from domains.reputation_hacking.ppo.models import ModelPolicy, make_model
from domains.reputation_hacking.ppo.paired import HELD_OUT
from domains.reputation_hacking.ppo.recipes import BASE, RECIPES, Recipe
from domains.reputation_hacking.ppo.sb3 import ReputationVecEnv
from domains.reputation_hacking.ppo.training import train

PARAMS = Params(l0=53.4)
PUBLIC = replace(
    BASE, n_envs=1, minibatches=32, epochs=10, learning_rate=3e-4, final_learning_rate=3e-4, entropy=0.01
)
"""stable-baselines3's usual settings: one environment, 2048 steps, ten epochs of 32 minibatches."""


def rate(env: Any, actions: Any, count: int, budget: float) -> float:
    """Steps a second of `count` games at once with these actions throughout, tape drawing included."""

    def once() -> None:
        env.reset()
        for _ in range(PARAMS.T):
            env.step(actions)

    once()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < budget:
        once()
        steps += count * PARAMS.T
    return steps / (time.perf_counter() - started)


def ppo_rate(recipe: Recipe, steps: int, env: Any, n_steps: int | None = None) -> float:
    """Environment steps a second of PPO end to end, one thread."""
    model = make_model(PARAMS, recipe, env, 0, n_steps)
    started = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - started)


def speed(budget: float) -> dict[str, Any]:
    batch = {
        str(n): rate(BatchEnv(PARAMS, n, seed=0), np.ones(n, dtype=np.int64), n, budget)
        for n in (1, 16, 256, 1024, 4096)
    }
    n_steps = BASE.n_envs * PARAMS.T
    public, matched = (
        ppo_rate(recipe, steps, DummyVecEnv([lambda: ReputationEnv(PARAMS)]), length)
        for recipe, steps, length in ((PUBLIC, 4096, 2048), (replace(BASE, n_envs=1), n_steps, n_steps))
    )
    batched = ReputationVecEnv(BatchEnv(PARAMS, BASE.n_envs, seed=0), reward_scale=BASE.reward_scale)
    ours = ppo_rate(BASE, 4 * n_steps, batched)
    return {
        "single_env_steps_per_s": rate(ReputationEnv(PARAMS), 1, 1, budget),
        "batch_env_steps_per_s": batch,
        "batch_4096_goal": 5e6,
        "ppo_batch_256_steps_per_s": ours,
        "ppo_dummy_1_public_steps_per_s": public,
        "ppo_dummy_1_matched_steps_per_s": matched,
        "ppo_ratio": ours / public,
        "ppo_ratio_goal": 15.0,
        "ppo_ratio_matched_hyperparameters": ours / matched,
    }


def learned(name: str, price: float, seed: int) -> dict[str, Any]:
    """One training: its share of the margin over the best constant policy on held-out seeds."""
    torch.set_num_threads(1)
    params = Params(c_signal=price)
    yardstick, trained = Yardstick(params, HELD_OUT), train(params, RECIPES[name], seed)
    row = {"recipe": name, "c_signal": price, "seed": seed, "seconds": trained.seconds}
    for key in ("deterministic", "sampled"):
        episodes = play(params, yardstick.tapes, ModelPolicy(trained.model, sampled=key == "sampled"))
        row[key] = yardstick.share(float(returns(episodes).mean()))
        row[f"{key}_help"] = float((episodes.actions == 1).sum(0).mean())
    return row


def learning(recipes: list[str], prices: list[float], seeds: list[int], jobs: int) -> list[dict[str, Any]]:
    """Rows of every recipe, price and training seed, `jobs` of them at a time; the longest begin first."""
    cells = [(name, price, seed) for name in reversed(recipes) for price in prices for seed in seeds]
    rows = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(learned, *cell) for cell in cells]):
            rows.append(row := future.result())
            shares = [row[key] for key in ("deterministic", "sampled")]
            shown = ["n/a" if share is None else f"{share:.2f}" for share in shares]
            print(
                f"  {row['recipe']} c_signal={row['c_signal']:g} seed {row['seed']}: share {shown[0]} "
                f"(sampled {shown[1]}), HELP {row['deterministic_help']:.1f}, {row['seconds']:.0f} s",
                flush=True,
            )
    return sorted(rows, key=lambda row: (recipes.index(row["recipe"]), row["c_signal"], row["seed"]))


def main() -> int:
    options = command_line(__doc__)
    torch.set_num_threads(1)
    shown = speed(options.budget)
    result: dict[str, Any] = {"speed": shown}
    for count, value in shown["batch_env_steps_per_s"].items():
        print(f"batch environment, N={count}: {value / 1e6:.2f} M steps/s")
    print(f"single environment: {shown['single_env_steps_per_s'] / 1e3:.0f} k steps/s")
    print(
        f"PPO: {shown['ppo_batch_256_steps_per_s']:,.0f} steps/s, "
        f"{shown['ppo_ratio']:.1f} x one environment with stable-baselines3's usual settings (goal 15), "
        f"{shown['ppo_ratio_matched_hyperparameters']:.1f} x one environment with the same settings"
    )
    if not options.skip_learning:
        recipes = ["base", "strong"] if options.strong else ["base"]
        prices = [float(price) for price in (options.c_signal or "0.7").split(",")]
        seeds = [int(seed) for seed in options.seeds.split(",")]
        result["learning"] = learning(recipes, prices, seeds, options.jobs)
        for name, goal in (("base", "required 0.50"), ("strong", "stretch 0.77")):
            rows = [row for row in result["learning"] if row["recipe"] == name and row["c_signal"] == 0.7]
            if shares := [row["deterministic"] for row in rows]:
                print(f"{name}, c_signal=0.7: shares {min(shares):.2f} to {max(shares):.2f} ({goal})")
    write_json(options.out or RESULTS / "reputation.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
