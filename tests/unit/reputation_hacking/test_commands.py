"""The command lines: files they leave, what is in them, and one-line errors."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine
from stable_baselines3 import PPO

import domains.reputation_hacking
from domains.reputation_hacking import ablate, eval, optimum, train
from domains.reputation_hacking.game import figures, policies
from domains.reputation_hacking.game import optimum as ruler
from domains.reputation_hacking.game.tracing import Tracer
from domains.reputation_hacking.ppo import paired, plots
from domains.reputation_hacking.ppo.tables import COLUMNS, read_table
from tests.support.light_figures import draw_light_ones_only

FILES = {
    "trained_model.zip",
    "training_metrics.csv",
    "debug_trace.jsonl",
    "plots/peer_rating_vs_true_impact.png",
    "plots/manipulation_score_histogram.png",
    "plots/action_frequencies.png",
    "plots/experienced_effort_comparison.png",
    "plots/training_curves.png",
}
SMALL = ["--n-envs", "16", "--steps", "1600", "--c-signal", "0.7", "--c-help", "0.05"]


@pytest.fixture(scope="module", autouse=True)
def quick_parts() -> Iterator[None]:
    """No display, coarse figures and a short fit: these tests are about files and messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DISPLAY", raising=False)
        patch.setattr(figures, "DPI", 40)
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)  # half of the time of drawing
        short = partial(policies.fitted_rule, rounds=2, population=8, episodes=16)
        patch.setattr(ruler, "fitted_rule", short)
        yield


TRANSITION = ("transition.json", "plots/transition.png", "plots/transition_dark.png")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by tests of figures."""
    draw_light_ones_only(monkeypatch)


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest) -> None:
    if "drawn" not in request.fixturenames:
        request.getfixturevalue("undrawn")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def train_in(out: Path, *arguments: str) -> int:
    return train.main([*arguments, "--out", str(out)])


def eval_in(out: Path, seeds: str, *arguments: object) -> int:
    return eval.main(["--out", str(out), "--seeds", seeds, *map(str, arguments)])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    tables = ("--summary", out.parent / "a.json", "--per-seed", out.parent / "a.csv")
    assert (train_in(out, *SMALL), eval_in(out, "10000:10012", *tables)) == (0, 0)
    return out


def test_exactly_the_named_files_are_left(run: Path) -> None:
    assert files(run) == FILES
    for name in FILES:
        if name.endswith(".png"):
            assert (run / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_quick_training_and_evaluation_are_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (train.QUICK_STEPS, paired.QUICK_SEEDS) == (153_600, 100)
    monkeypatch.setattr(train, "QUICK_STEPS", 1_600)
    monkeypatch.setattr(paired, "QUICK_SEEDS", 10)
    assert train_in(tmp_path, "--quick", "--n-envs", "16") == 0
    assert eval.main(["--quick", "--out", str(tmp_path)]) == 0
    assert files(tmp_path) == FILES
    printed = capsys.readouterr().out
    assert "1,600 steps" in printed
    assert "calibrated evaluation, n=10" in printed


def test_every_episode_is_a_row_that_adds_up(run: Path) -> None:
    table = read_table(run / "training_metrics.csv")
    assert tuple(table) == COLUMNS
    assert table["episode"].tolist() == list(range(32))
    counts = table["help_count"] + table["signal_count"] + table["nothing_count"]
    assert (counts == 50).all()
    recomputed = (
        0.9 * table["learned_expected_effort_before"]
        + 0.1 * table["experienced_effort"]
        + table["signal_bias"]
        - table["experienced_effort"]
        - 0.05 * table["help_count"]
        - 0.7 * table["signal_count"]
        - table["penalty"]
    )
    np.testing.assert_allclose(table["reward"], recomputed, rtol=0, atol=1e-6)
    first, second = table["env"] == 0, table["learned_expected_effort"]
    assert table["learned_expected_effort_before"][first][1] == second[first][0]


def test_the_trace_holds_every_step_of_its_episodes(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "debug_trace.jsonl").read_text().splitlines()]
    assert [line["run"] for line in lines if line["kind"] == "meta"] == ["train", "eval"]
    steps = [line for line in lines if line["kind"] == "step"]
    table = read_table(run / "training_metrics.csv")
    trained = [line for line in steps if line["phase"] == "train"]
    assert [line["t"] for line in trained] == [*range(50), *range(50)]
    assert [line["reward"] for line in trained if line["t"] == 49] == table["reward"][
        table["env"] == 0
    ].tolist()
    for line in steps:
        assert line["worker_works"] == (line["fatigue_before"] < 2.5)
        assert (line["e"] == 0.0) or line["worker_works"]
        assert ("info" in line) == (line["t"] == 49)
    assert len(steps) == 50 * (2 + 4)


def test_equal_seeds_give_equal_files(
    run: Path, tmp_path: Path, drawn: None, request: pytest.FixtureRequest
) -> None:
    out = tmp_path / "again"
    assert train_in(out, *SMALL) == 0
    for name in ("training_metrics.csv", "plots/training_curves.png"):
        assert (out / name).read_bytes() == (run / name).read_bytes()
    request.getfixturevalue("undrawn")  # figures of an evaluation are compared by nobody
    shuffled = np.random.default_rng(0).permutation(np.arange(10000, 10012)).tolist()
    tables = ("--summary", tmp_path / "b.json", "--per-seed", tmp_path / "b.csv")
    assert eval_in(out, ",".join(map(str, shuffled)), *tables) == 0
    for name in ("json", "csv"):
        assert (tmp_path / f"b.{name}").read_bytes() == (run.parent / f"a.{name}").read_bytes()


def test_nothing_is_overwritten_unasked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "trained_model.zip").read_bytes()
    assert train_in(run, *SMALL) == 2
    assert "--force" in one_line(capsys)
    assert (run / "trained_model.zip").read_bytes() == before


def test_steps_are_rounded_up_and_the_trace_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_in(tmp_path, "--n-envs", "4", "--steps", "201", "--no-trace") == 0
    assert "rounded up to 400" in capsys.readouterr().out
    assert len(read_table(tmp_path / "training_metrics.csv")["episode"]) == 8
    assert eval_in(tmp_path, "10000:10003", "--trace-max-mb", 0) == 0
    assert "debug_trace.jsonl" not in files(tmp_path)
    limited = ["--n-envs", "4", "--steps", "200", "--trace-max-mb", "0.01", "--force"]
    assert train_in(tmp_path, *limited) == 0
    lines = (tmp_path / "debug_trace.jsonl").read_text().splitlines()
    assert json.loads(lines[-1]) == {"kind": "truncated"}
    assert (tmp_path / "debug_trace.jsonl").stat().st_size <= 10_000


def test_chained_evaluation_needs_a_burn_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chained = ("10000:10040", "--policy", "rule", "--mode", "chained", "--burn-in", 10)
    assert eval_in(tmp_path, *chained) == 2
    assert "30 episodes to settle" in one_line(capsys)
    assert eval_in(tmp_path, *chained, "--allow-transient") == 0
    assert "chained evaluation, n=30" in capsys.readouterr().out


def test_the_originals_evaluation_is_one_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain from 0 over all pairs, in the original's game, for scripted policies too."""
    monkeypatch.setattr(plots, "draw_evaluation", lambda *_: None)
    given = ("42:52", "--policy", "all_signal", "--preset", "public", "--no-trace")
    summaries = [tmp_path / "one.json", tmp_path / "other.json"]
    assert eval_in(tmp_path, *given, "--mode", "from_zero", "--summary", summaries[0]) == 0
    assert "from_zero evaluation, n=10 seeds 42..51" in capsys.readouterr().out
    long_form = ("--mode", "chained", "--l0", 0, "--burn-in", 0, "--allow-transient")
    assert eval_in(tmp_path, *given, *long_form, "--summary", summaries[1]) == 0
    capsys.readouterr()
    one, other = (json.loads(path.read_text())["policies"] for path in summaries)
    assert one == other
    assert eval_in(tmp_path, *given, "--mode", "from_zero", "--burn-in", 30) == 2
    assert "counts every pair" in one_line(capsys)


def recipe_in(out: Path, *arguments: str) -> tuple[dict, dict]:
    """(parameters of the game, settings of PPO) that a trained model holds."""
    assert train_in(out, *arguments, "--steps", "1000") == 0
    state = PPO.load(out / "trained_model.zip", device="cpu").reputation  # type: ignore[attr-defined]
    return state["params"], state["recipe"]


def test_the_originals_game_and_training_are_two_options(tmp_path: Path) -> None:
    params, recipe = recipe_in(tmp_path / "a", "--preset", "public", "--recipe", "public")
    assert (params["help_strength"], params["l0"], params["task_units"]) == (0.2, 0.0, 100)
    table = read_table(tmp_path / "a" / "training_metrics.csv")
    assert table["learned_expected_effort_before"][0] == 0.0
    each = ["--learning-rate", "2e-4", "--gamma", "0.97", "--entropy", "0.05", "--epochs", "5"]
    each += ["--n-envs", "20", "--minibatches", "4", "--gae-lambda", "0.95", "--raw-observations"]
    settings = recipe_in(tmp_path / "b", *each)[1]
    assert settings | {"reward_scale": 1.0} == recipe
    shape = recipe_in(
        tmp_path / "c", "--learning-rate", "1e-3:1e-5", "--entropy", "0.02:0.01", "--n-envs", "20"
    )
    names = ("learning_rate", "final_learning_rate", "entropy", "final_entropy")
    assert [shape[1][name] for name in names] == [1e-3, 1e-5, 0.02, 0.01]


@pytest.mark.parametrize(("recipe", "steps"), [("public", 100_000), ("base", 153_600), ("strong", 153_600)])
def test_quick_training_is_not_longer_than_the_recipe(recipe: str, steps: int) -> None:
    told = train.arguments().parse_args(["--quick", "--recipe", recipe])
    assert train.recipe_of(told).total_steps == steps


def test_a_constant_bonus_stays_and_no_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--n-envs", "4", "--steps", "400", "--entropy", "0.05", "--learning-rate", "2e-4")
    (elsewhere := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    assert train_in(tmp_path, *given) == 0
    assert not list(elsewhere.glob("SB3-*"))
    saved = PPO.load(tmp_path / "trained_model.zip", device="cpu")
    assert (saved.ent_coef, saved.lr_schedule(0.0), saved.lr_schedule(1.0)) == (0.05, 2e-4, 2e-4)


def test_a_language_model_is_evaluated_like_any_policy_without_a_training_table(
    tmp_path: Path,
) -> None:
    checkpoint = Path(domains.reputation_hacking.__file__).parent / "checkpoint"
    given = ("--language-model", checkpoint, "--c-signal", 0.7, "--no-trace")
    assert eval_in(tmp_path, "10000:10004", *given) == 0
    assert files(tmp_path) == {name for name in FILES if name.endswith(".png")}


def test_seeds_of_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = ("--policy", "all_help", "--no-trace")
    assert eval_in(tmp_path, "5:5", *policy) == 2
    assert "seeds are empty" in one_line(capsys)
    assert eval_in(tmp_path, "7", *policy) == 0
    assert "[n/a]" in capsys.readouterr().out
    assert len(files(tmp_path)) == 5
    assert eval_in(tmp_path, "1000000:1000002", *policy) == 0
    assert "overlap" in capsys.readouterr().err


BAD_TRAIN: list[tuple[list[str], str]] = [
    (["--set", "T=0"], "T=0"),
    (["--set", "T=1.5"], "integer"),
    (["--set", "work_units=-1"], "work_units=-1"),
    (["--set", "d_min=0.8"], "d_min=0.8"),
    (["--set", "help_strength=1.2"], "help_strength=1.2"),
    (["--set", "rest_decay=-0.1"], "rest_decay=-0.1"),
    (["--set", "noise_std=-1"], "noise_std=-1"),
    (["--set", "ema_alpha=0"], "ema_alpha=0"),
    (["--set", "ema_alpha=1.5"], "ema_alpha=1.5"),
    (["--set", "trend_std=nan"], "trend_std=nan"),
    (["--set", "c_signal=inf"], "c_signal=inf"),
    (["--set", "rating_order=never"], "rating_order='never'"),
    (["--set", "fatige_gain=1"], "did you mean fatigue_gain?"),
    (["--set", "noise_std"], "write name=value"),
    (["--c-signal", "-1"], "c_signal=-1"),
    (["--l0", "soon"], "--l0 soon"),
    (["--mitigation", "hope"], "mitigation 'hope'"),
    (["--n-envs", "0"], "--n-envs 0"),
    (["--steps", "-5"], "--steps -5"),
    (["--epochs", "0"], "--epochs 0: give at least 1"),
    (["--gamma", "1.1"], "--gamma 1.1: choose a number from 0 to 1"),
    (["--learning-rate", "fast"], "--learning-rate fast: give a number of at least 0"),
    (["--entropy", "0.1:inf"], "--entropy 0.1:inf"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD_TRAIN, ids=[" ".join(case) for case, _ in BAD_TRAIN])
def test_bad_settings_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_in(tmp_path, *arguments) == 2
    assert said in one_line(capsys)


def test_models_that_cannot_be_used(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("corrupt", "bare", "other")
    corrupt, bare, other = (tmp_path / f"{name}.zip" for name in names)
    corrupt.write_bytes(b"PK nothing")
    model = PPO.load(run / "trained_model.zip", device="cpu")
    del model.reputation  # type: ignore[attr-defined]
    model.save(bare)
    PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu").save(other)
    cases: list[tuple[Sequence[object], str]] = [
        ((), "no such model"),
        (("--model", corrupt), "not a saved PPO model"),
        (("--model", bare), "--l0"),
        (("--model", other), "observations of shape (3,)"),
        (("--policy", "fate"), "choose one of"),
    ]
    for arguments, said in cases:
        assert eval_in(tmp_path, "10000:10002", "--no-trace", *arguments) == 2
        assert said in one_line(capsys)
    assert eval_in(tmp_path, "10000:10002", "--no-trace", "--model", bare, "--l0", 53.4) == 0


def test_a_model_without_a_game_is_evaluated_in_the_one_that_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, named = tmp_path / "bare.zip", ("42:44", "--mode", "from_zero", "--preset", "public")
    model = PPO.load(run / "trained_model.zip", device="cpu")
    del model.reputation  # type: ignore[attr-defined]
    model.save(bare)
    assert eval_in(tmp_path, *named, "--model", bare) == 0
    played = json.loads((tmp_path / "debug_trace.jsonl").read_text().splitlines()[0])["params"]
    assert (played["help_strength"], played["l0"], played["task_units"]) == (0.2, 0.0, 100)
    capsys.readouterr()
    assert eval_in(tmp_path, *named, "--model", run / "trained_model.zip") == 2
    assert "leave --preset" in one_line(capsys)


@pytest.mark.parametrize("content", ["", ",".join(COLUMNS) + "\n", "a,b\n1,2\n"])
def test_unusable_tables_are_drawn_as_their_reason(content: str, tmp_path: Path, drawn: None) -> None:
    (tmp_path / "training_metrics.csv").write_text(content)
    plots.draw_training(tmp_path / "training_metrics.csv", tmp_path, 0.7)
    assert (tmp_path / "training_curves.png").stat().st_size > 500


def test_a_row_that_was_cut_off_is_left_out(run: Path, tmp_path: Path) -> None:
    text = (run / "training_metrics.csv").read_text()
    (tmp_path / "cut.csv").write_text(text[:-20])
    with pytest.warns(UserWarning, match="cut off"):
        assert len(read_table(tmp_path / "cut.csv")["episode"]) == 31


def test_an_unwritable_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert train_in(tmp_path / "file" / "out") == 2
    assert "cannot write there" in one_line(capsys)


def test_a_second_writer_of_a_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracer(tmp_path / "debug_trace.jsonl", 1.0):
        assert train_in(tmp_path, *SMALL) == 2
    assert "writes this trace" in one_line(capsys)


def test_a_worker_who_never_works_or_never_rests_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("10000:10003", "--policy", "all_help", "--no-trace")
    assert eval_in(tmp_path, *quick, "--set", "fatigue_threshold=0", "--set", "l0=10") == 0
    said = capsys.readouterr()
    assert "never works" in said.err
    (line,) = [line for line in said.out.splitlines() if line.startswith("effort per task")]
    assert line.split()[-1] == "n/a"
    assert eval_in(tmp_path, *quick, "--set", "fatigue_threshold=5") == 0
    assert "never rests" in capsys.readouterr().err


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("module", ["train", "eval", "optimum", "ablate"])
def test_every_command_explains_itself(module: str) -> None:
    command = [sys.executable, "-m", f"domains.reputation_hacking.{module}", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "--out" in answer.stdout
    assert "--quick" in answer.stdout


def test_the_optimum_command_prints_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: None
) -> None:
    quick = ["--quick", "--c-signal", "0.6,0.7", "--horizon", "1,5", "--out", str(tmp_path)]
    assert optimum.main(quick) == 0
    printed = capsys.readouterr().out
    assert "1: 0.29" in printed
    assert files(tmp_path) == {"optimum.csv", *TRANSITION}
    found = json.loads((tmp_path / "transition.json").read_text())
    assert [row["c_signal"] for row in found["optimum"]] == [0.6, 0.7]
    assert [len(shares) for shares in found["by_step"].values()] == [50, 50, 50]


def grid(out: Path, *more: str) -> Sequence[str]:
    steps = ["--quick", "--c-signal", "0,0.7", "--features", "scaled", "--steps", "12800"]
    return ["--out", str(out), *steps, *more]


@pytest.mark.slow
def test_ablations_run_resume_and_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: None
) -> None:
    assert ablate.main(grid(tmp_path, "--no-ppo")) == 0
    assert files(tmp_path) == {"ablation.csv", "optimum.csv", "plots/mitigations.png", *TRANSITION}
    assert ablate.main(grid(tmp_path)) == 0
    first = (tmp_path / "ablation.csv").read_text().splitlines()
    assert len(first) == 1 + 2 * 2
    (tmp_path / "ablation.csv").write_text("\n".join(first[:3]) + "\n" + first[3][:15])
    assert ablate.main(grid(tmp_path)) == 0
    second = (tmp_path / "ablation.csv").read_text().splitlines()
    assert second[:3] == first[:3]
    assert len(second) == len(first)
    assert "scaled" in capsys.readouterr().out
    assert ablate.main(grid(tmp_path, "--mitigations", "luck")) == 2
    assert "mitigation 'luck'" in one_line(capsys)
