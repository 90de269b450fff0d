"""What a run that is stopped makes again when the same command resumes it, for people."""

from pathlib import Path

from pipelinerl.base.line_file import DamagedLine
from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.saved_steps import saved_step

RESUMES = "the same command resumes"


def _steps(output_dir: Path) -> tuple[int, int] | None:
    """The step that a resume starts from, and the last one that was made and not undone since.

    None unless both are known.
    """
    saved = saved_step(output_dir)
    try:
        records = read_metrics(output_dir, "finetune")
    except (DamagedLine, OSError):  # this is a hint; the report refuses the file
        return None
    # The last and not the largest: what an earlier start made beyond it was made again, or is gone.
    last = next((r for r in reversed(records) if "stats/completed_steps" in r), None)
    if saved is None or last is None:
        return None
    return saved, int(last["stats/completed_steps"])


def resumes(output_dir: Path, save_every: int) -> str:
    """Where the same command goes on; without a step where none is known."""
    if (steps := _steps(output_dir)) is None:
        return RESUMES
    saved, made = steps
    where = f"{RESUMES} at step {saved}"
    if made <= saved:
        return where
    return f"{where} ({made} were made; one is saved every finetune.save_checkpoint_steps={save_every})"


def made_again(output_dir: Path, last_step: int) -> str | None:
    """Which steps this start makes again, if any; it ends at `last_step`."""
    if (steps := _steps(output_dir)) is None:
        return None
    saved, made = steps[0], min(steps[1], last_step)
    if made <= saved:
        return None
    again = f"steps {saved + 1} to {made} are" if made > saved + 1 else f"step {made} is"
    return f"resumes at step {saved}: {again} made again"
