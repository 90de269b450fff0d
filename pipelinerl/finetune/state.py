"""What a resumed learner takes up beside its weights: one `Part` for each thing, in `PARTS`.

`checkpoints.py` writes them all into `training_state/` and hands them back. Nothing else knows their names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from pipelinerl.finetune.optimiser import OwnStates
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.sharding import shard_like

Tensors = Mapping[str, torch.Tensor]


class Part(NamedTuple):
    """One thing that a checkpoint keeps: a value of JSON, tensors, or both."""

    name: str
    """Its key in `state.json`, and what the names of its tensors begin with."""
    restore: Callable[[Learner, Any, Tensors], None]
    """From the value (None without one) and the whole tensors; raises ValueError for what does not fit."""
    value: Callable[[Learner], Any] | None = None
    tensors: Callable[[Learner], Iterable[tuple[str, torch.Tensor]]] = lambda _: ()
    """Names and tensors, called on all ranks; shards are put together afterwards."""
    may_lack: bool = False
    """Whether a checkpoint without it, of an earlier version or another machine, is taken up all the same."""

    def restored(self, learner: Learner, values: Mapping[str, Any], tensors: Tensors) -> bool:
        """Take it up from what was saved of all parts; False where it is not among that, but has to be."""
        own = {name: one for name, one in tensors.items() if f"{name}.".startswith(f"{self.name}.")}
        found = self.name in values if self.value else bool(own)
        if found:
            self.restore(learner, values.get(self.name), own)
        return found or self.may_lack


def _parameters(learner: Learner) -> list[torch.Tensor]:
    """In the order in which an optimizer's state numbers them."""
    return [p for group in learner.optimiser.param_groups for p in group["params"]]


def _described_optimiser(learner: Learner) -> str:
    """What a saved state must agree with: the state of another optimizer or model would not fit."""
    tensors = " + ".join(str(len(group["params"])) for group in learner.optimiser.param_groups)
    return f"{type(learner.optimiser).__name__} over {tensors} tensors"


def _optimiser_tensors(learner: Learner) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = _parameters(learner)
    for index, values in learner.optimiser.state_dict()["state"].items():
        if isinstance(learner.optimiser, OwnStates):
            values = learner.optimiser.plain_state(parameters[index], values)
        for name, value in values.items():
            yield f"optimiser.{index}.{name}", value


def _restore_optimiser(learner: Learner, saved: str, tensors: Tensors) -> None:
    """Hyperparameters such as the learning rate stay the configuration's: a resume may change them."""
    ours = _described_optimiser(learner)
    if saved != ours:
        raise ValueError(
            f"saved with {saved}, this run trains with {ours}; set finetune.optim and "
            "finetune.model_class as before"
        )
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        _, index, name = key.split(".", 2)
        state.setdefault(int(index), {})[name] = tensor
    groups = learner.optimiser.state_dict()["param_groups"]
    parameters = _parameters(learner)
    for number, values in state.items():
        if isinstance(learner.optimiser, OwnStates):
            state[number] = learner.optimiser.own_state(parameters[number], values)
        else:
            state[number] = {name: shard_like(value, parameters[number]) for name, value in values.items()}
    learner.optimiser.load_state_dict({"state": state, "param_groups": groups})


def _restore_schedule(learner: Learner, completed: int, tensors: Tensors) -> None:
    scheduler = learner.scheduler
    scheduler.last_epoch = int(completed)
    for group, base, factor in zip(learner.optimiser.param_groups, scheduler.base_lrs, scheduler.lr_lambdas):
        if isinstance(group["lr"], torch.Tensor):  # that compiled steps read
            group["lr"].fill_(base * factor(completed))
        else:
            group["lr"] = base * factor(completed)


def _cuda_state(learner: Learner) -> Iterator[tuple[str, torch.Tensor]]:
    if learner.device.type == "cuda":
        yield "rng.cuda", torch.cuda.get_rng_state(learner.device)


def _restore_cuda(learner: Learner, value: None, tensors: Tensors) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])


PARTS = (
    Part("optimiser", _restore_optimiser, _described_optimiser, _optimiser_tensors),
    Part("completed_schedule_steps", _restore_schedule, lambda learner: learner.scheduler.last_epoch),
    Part(
        "rng.cpu",
        lambda _, value, tensors: torch.set_rng_state(tensors["rng.cpu"]),
        tensors=lambda _: [("rng.cpu", torch.get_rng_state())],
    ),
    Part("rng.cuda", _restore_cuda, tensors=_cuda_state, may_lack=True),
)
