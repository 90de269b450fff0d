"""Of which steps a run has complete checkpoints: the trainer settles one, the launcher only looks.

Called by `finetune/checkpoints.py` and, without torch, by the launcher, which tells people at which step the
same command goes on.
"""

import json
import os
from pathlib import Path

MODEL, STATE = "current", "training_state"
COUNTERS = "state.json"
INTERMEDIATE = "intermediate"
"""Folder of the models of all checkpoints, one by step, if they are kept."""
MARKER = "checkpoint.json"
"""Written last into each folder of a checkpoint: a folder that has it is complete."""
_PREFIXES = ("~old-", "~", "")


def step_of(folder: Path) -> int | None:
    """The step of a complete folder; None for any other."""
    try:
        return int(json.loads((folder / MARKER).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def candidates(root: Path, name: str) -> dict[int, Path]:
    """Complete folders by step; the published name wins over leftovers of an interrupted save."""
    found: dict[int, Path] = {}
    for prefix in _PREFIXES:
        folder = root / f"{prefix}{name}"
        step = step_of(folder)
        if step is not None:
            found[step] = folder
    return found


def trained_before(output_dir: Path) -> tuple[int, int]:
    """Steps and samples from which a resume goes on; zeros where nothing was saved, or it cannot be read."""
    states = candidates(output_dir / "finetune", STATE)
    if not (step := saved_step(output_dir)):
        return 0, 0
    try:
        counters = json.loads((states[step] / COUNTERS).read_text(encoding="utf-8"))["counters"]
        return step, int(counters["samples"])
    except (OSError, ValueError, KeyError, TypeError):  # the trainer says what is wrong with it
        return 0, 0


def half_checkpoint(root: Path) -> str | None:
    """What is there instead of a model and a state of one step, with what to do; None for both or neither.

    A resume without it would begin at step 0, over what is left.
    """
    if candidates(root, MODEL).keys() & candidates(root, STATE).keys():
        return None
    if not any(os.path.lexists(root / name) for name in (MODEL, STATE)):
        return None
    ours = ((MODEL, MARKER), (STATE, MARKER), (STATE, COUNTERS))
    if (root / MODEL / "config.json").is_file() and not any(os.path.lexists(root / n / f) for n, f in ours):
        return (
            f"{root}: was written by another program, whose training cannot be resumed here; choose another "
            f"output_dir, and give model_path={root / MODEL} to start with its weights"
        )
    found = []
    for name in (MODEL, STATE):
        marker = root / name / MARKER
        if (step := step_of(root / name)) is not None:
            found.append(f"{name} is of step {step}")
        elif marker.is_file():
            found.append(f"{name} has a damaged {MARKER} ({marker.read_text(encoding='utf-8')[:40]!r})")
        else:
            found.append(f"{name} is not complete" if marker.parent.is_dir() else f"{name} is missing")
    return f"{root}: {', '.join(found)}; put back both of one step, or train anew with force_restart=true"


def kept_step(output_dir: Path) -> int | None:
    """The last step of which a model was kept beside the checkpoint; None without one."""
    kept = (output_dir / "finetune" / INTERMEDIATE).glob("[0-9]*")
    return max((int(folder.name) for folder in kept if folder.name.isdecimal()), default=None)


def saved_step(output_dir: Path) -> int | None:
    """The step that a resume starts from, 0 where nothing was saved; None for half a checkpoint."""
    root = output_dir / "finetune"
    if not any((root / f"{prefix}{name}").exists() for prefix in _PREFIXES for name in (MODEL, STATE)):
        return 0
    return max(candidates(root, MODEL).keys() & candidates(root, STATE).keys(), default=None)
