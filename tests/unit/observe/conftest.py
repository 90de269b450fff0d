"""A run that never took place: files as the roles would have written them, for tests of the report."""

from pathlib import Path

import numpy as np
import pytest

from pipelinerl.observe.metrics import MetricsWriter, histogram
from pipelinerl.run_state.accounting import Outcome, RolloutLog, rollout_id
from pipelinerl.run_state.shared_problems import note_shared
from pipelinerl.streams import SingleStreamSpec, write_to_streams

BATCH, STEPS, PROBLEMS = 32, 60, 50
STAGES = {"plan": "plan_accuracy", "choose": "choose_accuracy", "read": "read_accuracy"}
"""Metrics of the run's evaluations that belong to stages of its agent, by label."""


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty steps in which success grows from about 0.35 to 0.7 and leakage falls; tests may only add."""
    path, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    _write_metrics(path, rng)
    _write_evaluations(path, rng)
    _write_rollouts(path)
    note_shared(path, 0, PROBLEMS)
    return path


def _write_metrics(output_dir: Path, rng: np.random.Generator) -> None:
    with MetricsWriter(output_dir, "actor") as actor, MetricsWriter(output_dir, "finetune") as trainer:
        for step in range(1, STEPS + 1):
            texts, done = step * BATCH, step / STEPS
            actor.log(
                {
                    "actor/success_mean": np.clip(0.35 + 0.35 * done + rng.normal(0, 0.06), 0, 1),
                    "actor/reward_mean": 0.45 + 0.3 * done + rng.normal(0, 0.05),
                    "actor/output_tokens_per_second": 1800 + rng.normal(0, 100),
                    "actor/latency_mean": 2.5,
                },
                texts,
            )
            lags = rng.integers(0, 3, 500) * BATCH
            trainer.log(
                {
                    "stats/samples": texts,
                    "stats/tokens": texts * 150,
                    "stats/completed_steps": step,
                    "stats/grad_norm": 0.3 + rng.normal(0, 0.02),
                    "stats/lag": lags.mean(),
                    "stats/lag_max": lags.max(),
                    "stats/lag_histogram": histogram(lags, [0, 1, 32, 64, 96, 128]),
                    "stats/multi_version_share": np.clip(0.12 + rng.normal(0, 0.03), 0, 1),
                    "rl/ratio_new_old": 1 + rng.normal(0, 0.002),
                    "rl/max_ratio_new_old": 1.3 + rng.normal(0, 0.05),
                    "rl/min_ratio_new_old": 0.8 + rng.normal(0, 0.03),
                    "rl/ess": 0.985 + rng.normal(0, 0.004),
                    "rl/kl_new_old": 0.002 + 0.001 * done,
                    "rl/kl": 0.03 * done,
                    "rl/entropy": 0.5 - 0.15 * done,
                    "throughput/tokens_per_step": 4800,
                    "throughput/tokens_per_sec": 900 + rng.normal(0, 60),
                    "throughput/working_tokens_per_sec": 2500 + rng.normal(0, 60),
                },
                texts,
            )


def _write_evaluations(output_dir: Path, rng: np.random.Generator) -> None:
    luck = rng.random(PROBLEMS)
    with write_to_streams(SingleStreamSpec(output_dir, "stats_test")) as stats:
        for step in (0, 20, 40, 60):
            done = step / STEPS
            success = luck < 0.35 + 0.35 * done
            values: dict[str, list[float | None]] = {
                "success": success.astype(float).tolist(),
                "reward": (0.2 + 0.8 * success + rng.normal(0, 0.02, PROBLEMS)).tolist(),
                "leak": (luck[::-1] < 0.4 - 0.3 * done).astype(float).tolist(),
                "no_error": [1.0] * PROBLEMS,
                "turns": rng.integers(3, 9, PROBLEMS).astype(float).tolist(),
            }
            for index, name in enumerate(STAGES.values()):
                share = rng.random(PROBLEMS) < 0.6 + 0.1 * index + (0.2 * done if index < 2 else 0)
                values[name] = share.astype(float).tolist()
            for column in values.values():
                column[7] = None
            stats.write({"version": step * BATCH, "values": values})


def _write_rollouts(output_dir: Path) -> None:
    with (
        RolloutLog(output_dir, "actor") as actor,
        RolloutLog(output_dir, "preprocess") as preprocess,
        RolloutLog(output_dir, "finetune") as trainer,
    ):
        for group in range(70):
            names = [rollout_id(f"run/{group}", i) for i in range(8)]
            actor.record(Outcome.STARTED, names)
            if group >= 66:
                continue
            if group % 6 == 0:
                preprocess.record(Outcome.FILTERED, names, "zero_advantage")
            elif group % 17 == 1:
                actor.record(Outcome.FAILED, names[:2], "timeout")
                trainer.record(Outcome.TRAINED, names[2:])
            else:
                trainer.record(Outcome.TRAINED, names)
        evaluated = [rollout_id(f"test/{i}", 0) for i in range(200)]
        actor.record(Outcome.EVAL_STARTED, evaluated)
        actor.record(Outcome.EVAL_DONE, evaluated[4:])
        actor.record(Outcome.EVAL_FAILED, evaluated[:4], "timeout")
