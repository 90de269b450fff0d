"""Checkpoints: `current/` (the model) and `training_state/` (everything else) of one and the same step.

Both are written beside (`~name`) and renamed. A crash between the renames leaves two complete folders of
the newer step under whatever names; `settle` finds the newest step of which both parts exist.

The loop saves one after an update and loads the last at its start. `state.py` lists what the learner keeps in
it. Streams and the other roles' snapshots are not in it: `run_state/resume_point.py` and
`run_state/snapshots.py` say how those are found again.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pipelinerl.base import faults
from pipelinerl.base.digests import damaged_file, digests
from pipelinerl.base.files import let_others_read, naming, sync_files
from pipelinerl.base.tokenizing import copy_tokenizer
from pipelinerl.finetune.state import PARTS
from pipelinerl.finetune.step import Learner
from pipelinerl.finetune.types import TrainingMetrics
from pipelinerl.modeling.loading import keep_keys, left_out
from pipelinerl.modeling.lora import FOLDER as ADAPTER_FOLDER
from pipelinerl.modeling.lora import adapter_tensors, save_adapters
from pipelinerl.modeling.model import distinct_parameters, persistent_buffers
from pipelinerl.modeling.sharding import whole
from pipelinerl.modeling.value_head import save_value_head
from pipelinerl.run_state.saved_steps import (
    COUNTERS,
    INTERMEDIATE,
    MARKER,
    MODEL,
    STATE,
    candidates,
    half_checkpoint,
)


def settle(root: Path) -> int | None:
    """The newest step of which model and state are complete; None when there is none.

    An interrupted save is finished: both end up under the published names, leftovers go.
    """
    models, states = candidates(root, MODEL), candidates(root, STATE)
    steps = models.keys() & states.keys()
    if not steps:
        return None
    step = max(steps)
    for name, folder in ((MODEL, models[step]), (STATE, states[step])):
        if folder.name != name:
            shutil.rmtree(root / name, ignore_errors=True)
            os.replace(folder, root / name)
        for leftover in (root / f"~{name}", root / f"~old-{name}"):
            shutil.rmtree(leftover, ignore_errors=True)
    return step


def resume_step(root: Path) -> int | None:
    """The step from which training goes on, settled; None where nothing was saved.

    Raises ValueError for half a checkpoint, the model or the training state without the other of its step
    (to begin anew without saying so would throw away what was trained), and for a file of either that changed
    after it was saved.
    """
    step = settle(root)
    if step is None and (half := half_checkpoint(root)) is not None:
        raise ValueError(half)
    for folder in () if step is None else (root / MODEL, root / STATE):
        expected = json.loads((folder / MARKER).read_text(encoding="utf-8")).get("files")
        name = damaged_file(folder, expected) if isinstance(expected, dict) else MARKER
        if name is not None:
            raise ValueError(
                f"{folder / name}: damaged, it is not what was saved at step {step}; "
                "put it back, or train anew with force_restart=true"
            )
    return step


def save_checkpoint(
    root: Path,
    learner: Learner,
    counters: TrainingMetrics,
    extra: Mapping[str, Any],
    tokenizer_from: str | None = None,
    keep_intermediate: bool = False,
    with_state: bool = True,
) -> None:
    """Write a checkpoint of `counters.completed_steps` below `root`.

    Called on the main rank, and with a sharded policy on all of them; files hold whole tensors either way.
    `extra` holds plain values that the loop wants back, such as stream positions. `tokenizer_from` is a
    model folder or hub name whose tokenizer files are copied beside the weights. Raises OSError that names a
    file or `root`, such as on a full disk.
    """
    step = counters.completed_steps
    tensors = collect_tensors(learner, with_state)
    if not learner.ranks.is_main:
        return
    with naming(root, SafetensorError):
        root.mkdir(parents=True, exist_ok=True)
        beside = _fresh(root / f"~{MODEL}")
        learner.model.save_pretrained(beside, state_dict=left_out(learner.model) | tensors.model)
        keep_keys(learner.model, beside)
        if tokenizer_from is not None:
            copy_tokenizer(tokenizer_from, beside)
        if tensors.adapters:
            save_adapters(learner.model, tensors.adapters, beside / ADAPTER_FOLDER)
        if tensors.value_head:
            save_value_head(tensors.value_head, beside)
        _mark(beside, step)  # behind its last file: what has no mark was not finished
        if keep_intermediate:
            kept = _fresh(root / INTERMEDIATE / f"~{step}")
            shutil.copytree(beside, kept, dirs_exist_ok=True)
            _replace(kept, root / INTERMEDIATE / str(step))
        faults.hit("finetune:mid_checkpoint")
        if with_state:
            state = _fresh(root / f"~{STATE}")
            _save_state(state, tensors.state, learner, counters, extra)
            _mark(state, step)
            # Both parts are whole beside the old ones; a kill between the two renames is mended by `settle`.
            _swap(root, MODEL)
            faults.hit("finetune:between_swaps")
            _swap(root, STATE)
        else:
            _swap(root, MODEL)
            # The state of an earlier step would let a resume train anew what this model has behind it.
            shutil.rmtree(root / STATE, ignore_errors=True)
        for name in (MODEL, STATE):
            shutil.rmtree(root / f"~old-{name}", ignore_errors=True)


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """Whole tensors of one step; of other ranks than the main one, empty."""

    model: dict[str, torch.Tensor]
    adapters: dict[str, torch.Tensor]
    value_head: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]


@torch.no_grad()
def collect_tensors(learner: Learner, with_state: bool = True) -> CheckpointTensors:
    """Float32 masters of the model (adapters merged) and its buffers, adapters, value head, training state.

    Collective with a sharded policy: each tensor is put together on all ranks, and kept on the main one's
    host.
    """
    main, masters = learner.ranks.is_main, learner.masters.master_of() if learner.masters else {}

    def exact(tensor: torch.Tensor) -> torch.Tensor:
        return whole(masters.get(id(tensor), tensor)).detach()

    def kept(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: tensor.cpu() if learner.sharded else tensor for name, tensor in named if main}

    head, parts = learner.value_head, PARTS if with_state else ()
    return CheckpointTensors(
        # Sharding leaves buffers whole.
        kept(chain(distinct_parameters(learner.model, exact), persistent_buffers(learner.model))),
        kept(adapter_tensors(learner.model, exact).items()),
        kept((name, exact(p)) for name, p in ([] if head is None else head.named_parameters())),
        kept((name, whole(one)) for part in parts for name, one in part.tensors(learner)),
    )


def load_state(folder: Path, learner: Learner) -> tuple[TrainingMetrics, dict[str, Any]]:
    """Restore the training state (`state.py`); returns counters and the extra values.

    Raises ValueError, in one line, when the files are damaged, or of another version, optimizer or model.
    """
    try:
        tensors = load_file(folder / "tensors.safetensors")
        described = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{folder}: damaged ({error}); train anew with force_restart=true") from error
    try:
        missing = [part.name for part in PARTS if not part.restored(learner, described, tensors)]
    except ValueError as error:
        raise ValueError(f"{folder}: {error}, or force_restart=true") from error
    missing += [name for name in ("counters", "extra") if name not in described]
    if missing:
        raise ValueError(
            f"{folder}: has no {' and no '.join(missing)}, so another version saved it; "
            "train anew with force_restart=true"
        )
    return TrainingMetrics.from_dict(described["counters"]), described["extra"]


def _save_state(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    learner: Learner,
    counters: TrainingMetrics,
    extra: Mapping[str, Any],
) -> None:
    copies = {name: value.contiguous().clone() for name, value in tensors.items()}
    save_file(copies, folder / "tensors.safetensors")
    described = {part.name: part.value(learner) for part in PARTS if part.value is not None}
    described |= {"counters": counters.to_dict(), "extra": dict(extra)}
    (folder / COUNTERS).write_text(json.dumps(described, indent=1))


def _mark(folder: Path, step: int) -> None:
    """Complete: from here on every change of a file in it is damage."""
    let_others_read(folder)
    (folder / MARKER).write_text(json.dumps({"step": step, "files": digests(folder)}))
    sync_files(folder)  # before it takes the place of one that the disk has


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.replace(source, target)


def _swap(root: Path, name: str) -> None:
    """Rename `~name` to `name`, keeping the old folder as `~old-name` until both parts are in place."""
    if (root / name).exists():
        _replace(root / name, root / f"~old-{name}")
    os.replace(root / f"~{name}", root / name)
