"""A run that goes on in its folder does so with the model that it began with."""

import shutil
from pathlib import Path

import pytest

from pipelinerl.config.files import config_path, load
from tests.unit.launcher.conftest import DryRun

GUESSING = ("+domain=guessing", "engine.max_model_len=64", "llm.parameters.max_tokens=16")


@pytest.fixture
def begun(dry_run: DryRun, tmp_path: Path) -> Path:
    """The folder of a run that has a checkpoint."""
    assert dry_run(*GUESSING)[0] == 0
    checkpoint = tmp_path / "run/finetune/current"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    return tmp_path / "run"


def test_another_model_is_refused_beside_a_checkpoint(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    status, _, err = dry_run(*GUESSING, f"model_path={other}")
    assert status == 2 and err == (
        f"launcher: model_path={other}: this folder's run began with {model}; give that, another output_dir, "
        "or force_restart=true\n"
    )
    status, _, err = dry_run(*GUESSING, "model_path=owner/other")
    assert status == 2 and "this folder's run began with" in err
    assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
    shutil.rmtree(begun / "finetune")
    assert dry_run(*GUESSING, f"model_path={other}")[0] == 0, "nothing was trained yet"


def test_a_dry_run_of_another_model_leaves_the_checkpoint_to_its_own(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    config_path(begun).chmod(0o600)
    other = shutil.copytree(model, tmp_path / "other")
    for _ in range(2):
        assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
        assert load(begun).model_path == str(other), "the scripts that it wrote read it"
    (kept,) = [path for path in config_path(begun).parent.glob("*.yaml") if path.stat().st_mode & 0o077 == 0]
    assert f"model_path: {model}" in kept.read_text()
    status, _, err = dry_run(*GUESSING, f"model_path={other}")
    assert status == 2 and f"this folder's run began with {model}" in err
    assert dry_run(*GUESSING)[0] == 0


def test_a_start_forgets_what_a_dry_run_had_kept(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    assert dry_run(*GUESSING, f"model_path={other}", "force_restart=true")[0] == 0
    monkeypatch.setenv("DRY_RUN", "0")
    monkeypatch.setattr("pipelinerl.launch.supervise", lambda *_: None)
    monkeypatch.setattr("pipelinerl.launch.report_run", lambda *_: None)
    assert dry_run(*GUESSING)[0] == 0
    assert {path.name for path in (begun / "conf").iterdir()} == {"accelerate.yaml", "exp_config.yaml"}


def test_the_same_model_may_be_given_in_another_way(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for given in ("link", "model", "./run/../model"):
        assert dry_run(*GUESSING, f"model_path={given}")[0] == 0
    (tmp_path / "moved").mkdir()
    (tmp_path / "link").unlink()
    shutil.move(model, tmp_path / "moved/model")
    assert dry_run(*GUESSING, f"model_path={tmp_path / 'moved/model'}")[0] == 0


def test_a_run_may_be_copied_with_the_model_in_it(
    begun: Path, dry_run: DryRun, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, begun / "theirs")
    tree = config_path(begun).read_text()
    config_path(begun).write_text(tree.replace(f"model_path: {model}", f"model_path: {begun / 'theirs'}"))
    copied = shutil.copytree(begun, tmp_path / "copied")
    assert dry_run(*GUESSING, f"output_dir={copied}", f"model_path={copied / 'theirs'}")[0] == 0


def test_the_table_says_how_to_leave_a_checkpoint(begun: Path, dry_run: DryRun) -> None:
    row = next(line for line in dry_run(*GUESSING)[1].splitlines() if " model " in line)
    assert "latest checkpoint" in row and "model_path=DIR" not in row and "force_restart=true" in row
