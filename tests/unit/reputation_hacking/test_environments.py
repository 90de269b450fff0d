"""What gymnasium and stable-baselines3 may rely on, and who owns the Worker's memory."""

import copy
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_for_sb3

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import HELP, Tape
from domains.reputation_hacking.game.env import ReputationEnv
from domains.reputation_hacking.game.params import ENV_ID, Params
from domains.reputation_hacking.game.vector import ReputationVectorEnv
from domains.reputation_hacking.ppo.sb3 import ReputationVecEnv
from domains.reputation_hacking.ppo.tables import COLUMNS

FIXED = Params(l0=50.0)
NAMED = {*COLUMNS[4:], "reward_raw", "plain_rating"} - {"effort_without"}


def episode_of(env: ReputationEnv, actions: list[int], **reset: Any) -> tuple[list[np.ndarray], float, dict]:
    observation, _ = env.reset(**reset)
    seen, reward, info = [observation], 0.0, {}
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(observation)
        assert (terminated, truncated) == (len(seen) == 51, False)
    return seen, reward, info


@pytest.fixture
def env() -> ReputationEnv:
    """An episode of seed 0 has begun."""
    made = ReputationEnv(FIXED)
    made.reset(seed=0)
    return made


def test_both_checkers_pass() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check_env(ReputationEnv(FIXED), skip_render_check=True)
    check_for_sb3(ReputationEnv(FIXED))


@pytest.mark.parametrize(
    "code",
    [
        "import domains.reputation_hacking, gymnasium; env = gymnasium.make('ReputationEnv-v0')",
        "import gymnasium; env = gymnasium.make('domains.reputation_hacking:ReputationEnv-v0')",
    ],
    ids=["after an import", "named with its module"],
)
def test_gymnasium_makes_the_game_in_a_fresh_process(code: str) -> None:
    command = [sys.executable, "-c", f"{code}; print(env.unwrapped.params.T)"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "50", answer.stderr


def test_made_by_name_it_ends_by_termination_only() -> None:
    env = gymnasium.make(ENV_ID)
    seen, _, _ = episode_of(env, [HELP] * 50, seed=1)  # type: ignore[arg-type]
    assert seen[-1][0] == 1.0
    assert env.spec is not None
    assert env.spec.max_episode_steps is None


def test_only_numpy_is_needed_to_import_the_package() -> None:
    code = (
        "import sys\n"
        "absent = ('torch', 'stable_baselines3', 'gymnasium', 'matplotlib')\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in absent: raise ModuleNotFoundError(name, name=name)\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in absent else real(name, *rest)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import domains.reputation_hacking.ppo.report\n"
        "from domains.reputation_hacking.game.batch import BatchEnv, Params\n"
        "env = BatchEnv(Params(l0=50.0), 2)\n"
        "try: env.step([0, 0])\n"
        "except RuntimeError as error: print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "call reset before step" in answer.stdout, answer.stderr


def test_the_last_step_tells_everything_and_the_others_nothing(env: ReputationEnv) -> None:
    infos = [env.step(HELP)[4] for _ in range(50)]
    assert all(info == {} for info in infos[:-1])
    assert set(infos[-1]) == NAMED
    assert len({id(info) for info in infos}) == 50
    assert infos[-1]["tape_seed"] == 0


@pytest.mark.parametrize("action", [1, np.int64(1), np.int8(1), np.array(1)])
def test_whole_numbers_are_actions(env: ReputationEnv, action: object) -> None:
    env.step(action)
    assert env.episode is not None
    assert (env.episode.t, env.episode.actions[0]) == (1, 1)


@pytest.mark.parametrize("action", [True, 1.0, float("nan"), -1, 3, np.array([1]), "1", None, np.array(1.0)])
def test_anything_else_is_refused_and_changes_nothing(env: ReputationEnv, action: object) -> None:
    with pytest.raises(ValueError, match="choose among 0, 1, 2"):
        env.step(action)
    assert env.episode is not None
    assert env.episode.t == 0


def test_steps_outside_an_episode_are_refused() -> None:
    env = ReputationEnv(FIXED)
    with pytest.raises(ResetNeeded):
        env.step(0)
    episode_of(env, [0] * 50, seed=0)
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_same_seed_memory_and_actions_give_the_same_episode(env: ReputationEnv) -> None:
    actions = np.random.default_rng(0).integers(0, 3, 50).tolist()
    first, second = (episode_of(env, actions, seed=5, options={"worker_memory": 44.0}) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1:] == second[1:]


def test_memory_survives_reset_and_changes_once_an_episode(env: ReputationEnv) -> None:
    env.reset(seed=2)
    assert env.worker.expected_effort[0] == 50.0
    for number in range(3):
        before = env.worker.expected_effort[0]
        _, _, info = episode_of(env, [0] * 50, seed=number)
        assert env.worker.expected_effort[0] == info["learned_expected_effort"] != before
        assert env.worker.episodes[0] == number + 1
    env.reset(seed=0, options={"worker_memory": {"expected_effort": 7, "trust": 0.5}})
    assert (env.worker.expected_effort[0], env.worker.trust[0]) == (7.0, 0.5)


@pytest.mark.parametrize("memory", [float("nan"), [1.0, 2.0], {"effort": 3}, {"expected_effort": "4"}, True])
def test_bad_memory_is_refused(env: ReputationEnv, memory: object) -> None:
    with pytest.raises(ValueError, match="worker_memory"):
        env.reset(seed=0, options={"worker_memory": memory})
    assert env.worker.expected_effort[0] == 50.0


def test_a_tape_of_ones_own_can_be_played() -> None:
    env = ReputationEnv(FIXED, noise_std=0.0, trend_std=0.0)
    _, _, info = episode_of(env, [0] * 50, options={"tape": Tape.quiet(env.params)})
    assert info["experienced_effort"] == pytest.approx(53.2575751048, abs=1e-9)
    with pytest.raises(ValueError, match="tape"):
        env.reset(options={"tape": Tape(d0=0.5, z=np.zeros(2), eps=np.zeros(3))})
    with pytest.raises(ValueError, match="reset option"):
        env.reset(options={"memory": 3})


def test_unseeded_resets_report_their_tape(env: ReputationEnv) -> None:
    env.reset(seed=3)
    _, info = env.reset()
    seen, reward, _ = episode_of(env, [HELP] * 50, seed=info["tape_seed"], options={"worker_memory": 50.0})
    again = ReputationEnv(FIXED)
    again.reset(seed=3)
    later, reward_again, _ = episode_of(again, [HELP] * 50)
    np.testing.assert_array_equal(seen, later)
    assert reward == reward_again


def test_copies_are_independent_and_returned_arrays_are_the_callers(env: ReputationEnv) -> None:
    env.step(1)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        observation = twin.step(1)[0]
        observation[:] = 9.0
        np.testing.assert_array_less(twin.step(1)[0], 1.01)
    assert env.episode is not None
    assert env.episode.t == 1


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_environment_traces_itself_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    env = gymnasium.make(ENV_ID, params=FIXED, trace=str(path))
    seen, reward, info = episode_of(env, [HELP, 2, 0] * 16 + [1, 1], seed=4)  # type: ignore[arg-type]
    meta, *steps = lines_of(path)  # before anything is closed
    assert (meta["run"], meta["params"]["l0"]) == ("env", 50.0)
    assert [step["t"] for step in steps] == list(range(50))
    assert [step["action"] for step in steps[:3]] == ["HELP", "SIGNAL", "DO_NOTHING"]
    np.testing.assert_array_equal([step["observation"] for step in steps], np.array(seen[:50]))
    assert (steps[-1]["reward"], steps[-1]["info"], steps[-1]["L"]) == (reward, info, 50.0)
    for leave in (lambda: env.reset(seed=5), env.close):
        env.reset(seed=5)
        env.step(HELP)
        leave()
    left = lines_of(path)[51:]
    assert [(step["episode"], step["t"], "info" in step) for step in left] == [(1, 0, False), (2, 0, False)]


def test_a_trace_has_one_writer_and_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    env = ReputationEnv(FIXED, trace=path, trace_max_mb=0.01)
    with pytest.raises(ValueError, match="another process or environment writes this trace"):
        ReputationEnv(FIXED, trace=path)
    for twin in (copy.deepcopy(env), env):
        episode_of(twin, [HELP] * 50, seed=0)
    env.close()
    assert [line["kind"] for line in lines_of(path)] == ["meta", "truncated"]
    with pytest.raises(ValueError, match="cannot write there"):
        ReputationEnv(FIXED, trace=tmp_path / "none" / "trace.jsonl")


class TestBatch:
    def test_whole_batches_only(self) -> None:
        env = BatchEnv(FIXED, 4)
        with pytest.raises(ValueError, match="all 4 episodes"):
            env.reset(seeds=[1, 2])
        with pytest.raises(ResetNeeded):
            env.step(np.zeros(4, dtype=int))

    @pytest.mark.parametrize(
        "actions",
        [np.zeros(3, dtype=int), np.zeros(4), np.full(4, 3), np.full(4, -1), np.zeros(4, dtype=bool)],
    )
    def test_bad_actions_are_refused(self, actions: np.ndarray) -> None:
        env = BatchEnv(FIXED, 4)
        env.reset()
        with pytest.raises(ValueError, match="action"):
            env.step(actions)
        assert env.episodes is not None
        assert env.episodes.t == 0

    def test_eight_workers_have_eight_memories(self) -> None:
        env = BatchEnv(FIXED, 8, seed=1)
        for _ in range(2):
            env.reset()
            for _ in range(50):
                _, reward, ended, info = env.step(np.zeros(8, dtype=int))
        assert ended
        assert len(set(env.worker.expected_effort.tolist())) == 8
        assert env.worker.episodes.tolist() == [2] * 8
        np.testing.assert_array_equal(info["reward_raw"], reward)
        assert set(info) == NAMED


class TestVectorEnv:
    def test_same_step_resets_show_the_last_observation(self) -> None:
        env = ReputationVectorEnv(3, FIXED)
        assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        for _ in range(50):
            observation, reward, terminated, truncated, infos = env.step(np.ones(3, dtype=int))
        assert terminated.all()
        assert not truncated.any()
        assert (observation[:, 0] == 0.0).all()
        assert all(last[0] == 1.0 for last in infos["final_obs"])
        assert infos["_final_obs"].all()
        np.testing.assert_array_equal(infos["final_info"]["reward_raw"], reward)
        assert (env.batch.worker.expected_effort != 50.0).all()

    def test_gymnasium_makes_it(self) -> None:
        env = gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode="vector_entry_point", params=FIXED)
        assert isinstance(env.unwrapped, ReputationVectorEnv)


class TestSb3Adapter:
    def finished(self, **kwargs: object) -> tuple[ReputationVecEnv, np.ndarray, list[dict]]:
        env = ReputationVecEnv(BatchEnv(FIXED, 4, seed=2), **kwargs)  # type: ignore[arg-type]
        env.reset()
        for _ in range(50):
            observation, reward, done, infos = env.step(np.full(4, 2))
            assert len({id(info) for info in infos}) == 4
        assert done.all()
        assert (observation[:, 0] == 0.0).all()
        return env, reward, infos

    def test_terminal_infos_are_complete_and_the_raw_reward_stays(self) -> None:
        _, reward, infos = self.finished(reward_scale=0.05)
        for value, info in zip(reward, infos, strict=True):
            assert info["terminal_observation"][0] == 1.0
            assert info["TimeLimit.truncated"] is False
            assert value == pytest.approx(0.05 * info["reward_raw"], rel=1e-6)

    def test_the_tape_baseline_shifts_by_what_no_action_moves(self) -> None:
        _, reward, infos = self.finished(tape_baseline=True)
        for value, info in zip(reward, infos, strict=True):
            own = 0.9 * (info["learned_expected_effort_before"] - info["experienced_effort"])  # all SIGNAL
            assert value == pytest.approx(info["reward_raw"] - own, abs=1e-4)

    def test_attributes_belong_to_single_workers(self) -> None:
        env, _, _ = self.finished()
        env.set_attr("worker_memory", 11.0, indices=[1])
        memory = env.get_attr("worker_memory")
        assert memory[1] == 11.0
        assert 11.0 not in (memory[0], memory[2], memory[3])
        assert env.env_method("get_wrapper_attr", "worker_memory", indices=1) == [11.0]
        assert env.get_attr("params", indices=[0]) == [FIXED]
        with pytest.raises(AttributeError):
            env.set_attr("params", None)
        with pytest.raises(AttributeError):
            env.env_method("fly")
        env.seed(7)
        first = env.reset()
        env.seed(7)
        np.testing.assert_array_equal(first, env.reset())
        assert [info["tape_seed"] for info in env.reset_infos] == [7, 8, 9, 10]
        env.close()
        assert env.closed
