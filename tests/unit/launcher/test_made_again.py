"""What the launcher says about the steps behind the last checkpoint."""

import json
from pathlib import Path

import pytest

from pipelinerl import launch
from pipelinerl.launcher.made_again import RESUMES, made_again, resumes
from pipelinerl.launcher.run import Interrupted
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.saved_steps import MARKER


def stopped(folder: Path, made: list[int], **saved: int) -> Path:
    """A run's folder, with records of these steps and these parts of checkpoints."""
    for part, step in saved.items():
        (folder / "finetune" / part).mkdir(parents=True)
        (folder / "finetune" / part / MARKER).write_text(json.dumps({"step": step}))
    (folder / "finetune").mkdir(exist_ok=True)
    lines = [json.dumps({"step": 8 * step, "stats/completed_steps": step}) for step in made]
    (folder / "finetune" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in [*lines, "{}"]))
    return folder


@pytest.mark.parametrize(
    ("made", "saved", "said", "again"),
    [
        (
            [1, 29],
            {"current": 8, "training_state": 8},
            " at step 8 (29 were made; one is saved every finetune.save_checkpoint_steps=40)",
            "resumes at step 8: steps 9 to 29 are made again",
        ),
        # Another start went on at 8 and was stopped behind its first step.
        (
            [1, 29, 9],
            {"current": 8, "training_state": 8},
            " at step 8 (9 were made; ",
            "step 9 is made again",
        ),
        ([8], {"current": 8, "training_state": 8}, " at step 8", None),
        # Stopped amid a save: the trainer settles the step of which both parts are complete.
        ([29], {"current": 16, "~old-current": 8, "training_state": 8}, " at step 8 (29 ", "steps 9 to 29"),
        ([29], {}, " at step 0 (29 were made; ", "steps 1 to 29 are made again"),
        ([29], {"current": 8}, "", None),
        ([], {"current": 8, "training_state": 8}, "", None),
    ],
)
def test_it_says_where_a_resume_starts_and_what_it_makes_again(
    tmp_path: Path, made: list[int], saved: dict[str, int], said: str, again: str | None
) -> None:
    folder = stopped(tmp_path, made, **saved)
    line = resumes(folder, 40)
    assert line.startswith(RESUMES + said) and (len(line) > len(RESUMES + said)) == said.endswith(" ")
    found = made_again(folder, 40)
    assert found is None if again is None else found is not None and again in found


def test_a_hint_names_no_step_that_a_resume_undid_or_will_not_make(tmp_path: Path) -> None:
    """Ten steps were made and two saved; the next start was to make four and was stopped before its first."""
    folder = stopped(tmp_path, [2, 10], current=2, training_state=2)
    records = folder / "finetune" / "metrics.jsonl"
    records.write_text(records.read_text().replace('{"step"', '{"time": 100.0, "step"'))
    assert resumes(folder, 40).startswith(f"{RESUMES} at step 2 (10 were made; ")
    assert made_again(folder, 4) == "resumes at step 2: steps 3 to 4 are made again"
    assert made_again(folder, 2) is None
    ResumePoint(16, 2, attempt=1, time=150.0).write(folder)
    assert resumes(folder, 40) == f"{RESUMES} at step 2" and made_again(folder, 4) is None


def test_a_damaged_record_and_a_fresh_folder_say_nothing(tmp_path: Path) -> None:
    assert resumes(tmp_path, 40) == RESUMES and made_again(tmp_path, 40) is None
    stopped(tmp_path, [29])
    (tmp_path / "finetune" / "metrics.jsonl").write_text("damaged\n{}\n")
    assert resumes(tmp_path, 40) == RESUMES and made_again(tmp_path, 40) is None


def test_an_interrupted_run_says_it_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(argv: object) -> int:
        error = Interrupted(2)
        error.resumes = resumes(stopped(tmp_path, [9], current=8, training_state=8), 4)
        raise error

    monkeypatch.setattr(launch, "launch", interrupt)
    assert launch.main([]) == 130
    assert capsys.readouterr().err == (
        "launcher: stopped by SIGINT; the same command resumes at step 8 "
        "(9 were made; one is saved every finetune.save_checkpoint_steps=4)\n"
    )
