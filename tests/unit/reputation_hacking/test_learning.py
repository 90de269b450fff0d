"""What PPO learns; the longer trainings run in make test-all only."""

from dataclasses import replace

import numpy as np
import pytest

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import HELP, SIGNAL, Tapes
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play, returns
from domains.reputation_hacking.ppo.models import ModelPolicy, load_model, model_params, save_model
from domains.reputation_hacking.ppo.paired import HELD_OUT
from domains.reputation_hacking.ppo.recipes import BASE, QUICK_STEPS, STRONG
from domains.reputation_hacking.ppo.training import train


@pytest.mark.slow
def test_free_signals_are_learnt_at_once() -> None:
    params = Params(c_signal=0.0)
    trained = train(params, replace(BASE, total_steps=QUICK_STEPS), seed=0)
    episodes = play(params, Tapes.from_seeds(params, HELD_OUT[:100]), ModelPolicy(trained.model))
    assert (episodes.actions == SIGNAL).sum(0).mean() >= 47.0


def test_a_model_carries_its_game_and_its_workers(tmp_path) -> None:  # type: ignore[no-untyped-def]
    params = Params(c_signal=0.3, T=10)
    trained = train(params, replace(STRONG, n_envs=8, total_steps=240), seed=3)
    save_model(trained.model, tmp_path / "model.zip")
    loaded = load_model(tmp_path / "model.zip")
    assert model_params(loaded, tmp_path / "model.zip")[0] == params
    state = loaded.reputation  # type: ignore[attr-defined]
    memories = state["worker"]["expected_effort"]
    assert memories == trained.batch.worker.expected_effort.tolist()
    assert len(set(memories)) == 8
    assert state["worker"]["episodes"] == [3] * 8
    again = BatchEnv(params, 8, worker_memory=state["worker"])
    np.testing.assert_array_equal(again.worker.expected_effort, memories)
    observation = np.random.default_rng(0).random((5, 4), dtype=np.float32)
    np.testing.assert_array_equal(
        ModelPolicy(loaded).probabilities(None, observation),
        ModelPolicy(trained.model).probabilities(None, observation),
    )


@pytest.mark.slow
def test_dear_signals_leave_only_help() -> None:
    params = Params(c_signal=1.2)
    trained = train(params, BASE, seed=0)
    episodes = play(params, Tapes.from_seeds(params, HELD_OUT), ModelPolicy(trained.model))
    assert ((episodes.actions == HELP) & episodes.works).sum() / episodes.works.sum() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_half_of_the_margin_at_the_hardest_price(seed: int) -> None:
    params = Params(c_signal=0.7)
    trained, yardstick = train(params, BASE, seed=seed), Yardstick(params, HELD_OUT)
    value = returns(play(params, yardstick.tapes, ModelPolicy(trained.model))).mean()
    share = yardstick.share(float(value))
    assert share is not None
    assert share >= 0.5
