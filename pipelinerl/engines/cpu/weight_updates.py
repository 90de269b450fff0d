"""New weights for an engine: read and checked in a thread of the caller's, switched to between two steps.

`prepare` does the slow part while tokens are still sampled and keeps the result; `update`, which belongs in a
pause, then only switches. Without a `prepare`, or with another file, `update` does both. One version at most
is kept; a failure, a newer `prepare` and a change of the transport drop it.

A version is all weights, or adapters alone: those are added to a copy of the weights that the engine was
started with, so that sampling costs the same either way.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from pipelinerl.base import faults
from pipelinerl.engines.cpu.update_state import OutOfOrder, State, UpdateState
from pipelinerl.engines.openai.protocol import FileUpdateInfo
from pipelinerl.engines.version_file import HostMemory, read_tensors
from pipelinerl.engines.wire import PermanentUpdateError, lacks_memory, parameter_checksum
from pipelinerl.modeling.lora import adapted, adapter_pairs

# Longest wait for another read of weights to end.
READ_DEADLINE_S = 60.0
SAME_MODEL = "engine and trainer have to be given one model (model_path) and one type (engine.dtype)"

# Runs a function in the engine thread between two steps; waits for its result.
BetweenSteps = Callable[[Callable[[], Any]], Any]


class WeightsRefused(ValueError):
    """The file is not what was announced; no tensor has changed."""


class WeightsUnfit(WeightsRefused, PermanentUpdateError):
    """The model or this host cannot take them, nor could another process; no tensor has changed."""


@dataclass(frozen=True, slots=True)
class PreparedWeights:
    """One version, checked, in memory of its own and laid out as the model's storages are."""

    info: FileUpdateInfo
    storages: dict[int, torch.Tensor]
    """uint8, by the number of the loader's own; those that the version leaves as they are have none."""
    adapters: dict[str, torch.Tensor] = field(default_factory=dict)
    """What the file had, where that are adapters alone."""


class WeightLoader:
    """Knows the distinct parameters of a model; a tied head is one parameter and is sent once.

    Parameters may be views of storages that they share in any layout. A version is therefore laid out in
    copies of the storages as it is read, so that the switch copies whole storages, at the speed of memory.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """Afterwards no parameter may move to another storage."""
        self._module = module
        # named_parameters names each distinct tensor once, under its first name.
        self._parameters = dict(module.named_parameters())
        storages = {one.untyped_storage().data_ptr(): one for one in self._parameters.values()}
        self._places = {address: index for index, address in enumerate(storages)}
        self._storages = [_bytes(one) for one in storages.values()]
        # Of storages with adapters, the weights without them; None where whole weights took their place.
        self._base: dict[int, torch.Tensor] | None = {}
        self._adapters: dict[str, torch.Tensor] = {}

    def read(self, info: FileUpdateInfo) -> PreparedWeights:
        """Weights or adapters of the file, checked against size, checksum, names, shapes and dtypes.

        Raises WeightsRefused with the first mismatch, WeightsUnfit for one of the model's own.
        """
        path = Path(info.path)
        try:
            # From the bytes that were checked: the file is not looked at again, so it may not change in
            # between. Their memory is let go with them: the layout below is what is kept.
            tensors = read_tensors(path, info.bytes, info.checksum, HostMemory())
        except OSError as error:
            raise WeightsRefused(f"{path} cannot be read: {error}") from None
        except ValueError as error:
            raise WeightsRefused(str(error)) from None
        if info.adapter_scale is not None:
            pairs = self._checked_pairs(tensors)
            return PreparedWeights(info, self._with_adapters(pairs, info.adapter_scale), tensors)
        self._check(tensors)
        return PreparedWeights(info, self._lay_out(tensors))

    @property
    def bytes(self) -> int:
        """Of the storages, which a version needs once more, and the first with adapters twice."""
        return sum(one.nbytes for one in self._storages)

    @torch.no_grad()
    def switch(self, weights: PreparedWeights) -> None:
        """Overwrite the parameters in place and restore ties; call between two steps only."""
        for number, new in weights.storages.items():
            self._storages[number].copy_(new)
        self._adapters = weights.adapters
        if weights.info.adapter_scale is None:
            self._base = None
        # In-place copies keep ties; this repairs a model whose head is a copy that should be tied.
        self._module.tie_weights()

    def checksums(self) -> dict[str, str]:
        """XXH3 of the bytes of every distinct parameter and of the adapters in use, by name.

        Call between two steps only.
        """
        return {
            name: parameter_checksum(one.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
            for name, one in (self._parameters | self._adapters).items()
        }

    def _check(self, tensors: dict[str, torch.Tensor]) -> None:
        missing = sorted(self._parameters.keys() - tensors.keys())
        extra = sorted(tensors.keys() - self._parameters.keys())
        if missing or extra:
            raise WeightsUnfit(
                f"names differ from the model's: missing {_some(missing)}, not in the model {_some(extra)}; "
                f"{SAME_MODEL}"
            )
        for name, parameter in self._parameters.items():
            tensor = tensors[name]
            if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                raise WeightsUnfit(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, "
                    f"the model has {parameter.dtype} {tuple(parameter.shape)}; {SAME_MODEL}"
                )

    def _checked_pairs(self, tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
        """Both parts of each adapter by the parameter that they belong to."""
        if self._base is None:
            raise WeightsUnfit(
                "this engine was sent whole weights before, and adapters belong to those that it was started "
                "with; start it again, or set weights.lora=merged"
            )
        try:
            pairs = adapter_pairs(tensors)
        except ValueError as error:
            raise WeightsUnfit(f"{error}; {SAME_MODEL}") from None
        for name, (down, up) in pairs.items():
            if (parameter := self._parameters.get(name)) is None:
                raise WeightsUnfit(f"adapters of {name}, which is not in the model; {SAME_MODEL}")
            shape = (up.shape[0], down.shape[1])
            expected = tuple(reversed(parameter.shape)) if self._transposed(name) else tuple(parameter.shape)
            if shape != expected or up.shape[1] != down.shape[0] or {up.dtype, down.dtype} != {torch.float32}:
                raise WeightsUnfit(
                    f"{name} of shape {expected} has adapters {up.dtype} {tuple(up.shape)} and {down.dtype} "
                    f"{tuple(down.shape)}; {SAME_MODEL}"
                )
        return dict(pairs)

    def _transposed(self, name: str) -> bool:
        return isinstance(self._module.get_submodule(name.rpartition(".")[0]), Conv1D)

    @torch.no_grad()
    def _with_adapters(
        self, pairs: dict[str, tuple[torch.Tensor, ...]], scale: float
    ) -> dict[int, torch.Tensor]:
        """Copies of the storages that have adapters, or had some in an earlier version, with these added."""
        assert self._base is not None
        for name in pairs:
            # Weights that no version with adapters has changed are still those of the start.
            number = self._place(self._parameters[name])
            if number not in self._base:
                self._base[number] = self._storages[number].clone()
        copies = {number: one.clone() for number, one in self._base.items()}
        for name, (down, up) in pairs.items():
            view = self._view(copies, self._parameters[name])
            view.copy_(adapted(view, down, up, scale, self._transposed(name)))
        return copies

    @torch.no_grad()
    def _lay_out(self, tensors: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Copies of the storages with `tensors` in the places of the parameters."""
        copies = {number: one.clone() for number, one in enumerate(self._storages)}
        for name, parameter in self._parameters.items():
            self._view(copies, parameter).copy_(tensors[name])
        return copies

    def _place(self, parameter: torch.Tensor) -> int:
        return self._places[parameter.untyped_storage().data_ptr()]

    def _view(self, copies: dict[int, torch.Tensor], parameter: torch.Tensor) -> torch.Tensor:
        """Where a parameter lies in the copy of its storage."""
        place = copies[self._place(parameter)].untyped_storage()
        empty = torch.empty(0, dtype=parameter.dtype)
        return empty.set_(place, parameter.storage_offset(), parameter.shape, parameter.stride())


class WeightUpdates:
    """`prepare` and `update` block, for a thread of the caller's; the rest is for the engine thread."""

    def __init__(
        self,
        module: torch.nn.Module,
        state: UpdateState,
        between_steps: BetweenSteps,
        on_switch: Callable[[], None],
    ) -> None:
        """`on_switch` is called in the engine thread when other weights are in force."""
        self._on_switch = on_switch
        self.loader = WeightLoader(module)
        self._state = state
        self._between_steps = between_steps
        self._reading = threading.Lock()
        self._prepared: PreparedWeights | None = None

    def prepare(self, info: FileUpdateInfo) -> None:
        """Read and check the announced weights, and keep them for `update`.

        Raises OutOfOrder, WeightsRefused or WeightsUnfit; nothing is kept then.
        """
        with self._alone():
            self._prepared = None
            # Before the read: a call out of order is refused without touching the file.
            self._between_steps(lambda: self._state.preparing(info.version))
            with self._memory():
                faults.hit("engine:mid_prepare")
                self._prepared = self.loader.read(info)
            # An update that did not wait for the read, or the end of the transport, makes it useless. This
            # only looks at the state, from this thread: between two steps it would answer when a step begins,
            # and the pause that follows would have to wait for all of it.
            try:
                self._state.preparing(info.version)
            except OutOfOrder:
                self._prepared = None
                raise

    def update(self, info: FileUpdateInfo) -> None:
        """Put the announced weights in the place of those in use.

        Raises OutOfOrder, WeightsRefused or WeightsUnfit when nothing was changed.
        """
        # From here on another update, a pause and a resume are out of order, until the read has ended.
        self._between_steps(lambda: self._state.loading(info.version))
        try:
            with self._memory():
                faults.hit("engine:mid_update")
                weights = self._take(info)
        # Whatever hindered the read, nothing has changed. An engine that stayed in LOADING could be neither
        # resumed nor updated again.
        except BaseException:
            self._between_steps(lambda: self._state.loaded(State.REFUSED))
            raise
        self._between_steps(lambda: self._switch(weights))

    def init(self) -> None:
        """A publisher agrees on the transport; what an earlier one had prepared is dropped."""
        self._state.init()
        self._prepared = None

    def leave(self) -> None:
        """The transport is given up."""
        self._state.leave()
        self._prepared = None

    @property
    def prepared_version(self) -> str | None:
        """The version that waits for its update, if any."""
        return None if self._prepared is None else self._prepared.info.version

    def _take(self, info: FileUpdateInfo) -> PreparedWeights:
        """What was prepared if it is this very file, else what is read now."""
        with self._alone():
            prepared, self._prepared = self._prepared, None
            # All of the announcement is compared: another file of the same version holds other weights.
            if prepared is not None and prepared.info == info:
                return prepared
            del prepared  # its memory is needed for the read
            return self.loader.read(info)

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """A version lies beside the weights in use; WeightsUnfit where this host has no room for it."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            size = self.loader.bytes / 2**30
            raise WeightsUnfit(
                f"the host has no memory for a second copy of the weights ({size:.2g} GiB, while it is read "
                "twice that); lower engine.count or engine.max_num_seqs, or choose a smaller model_path"
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One read at a time, so that there is memory of one version beside the weights in use."""
        if not self._reading.acquire(timeout=READ_DEADLINE_S):
            raise TimeoutError(f"another read of weights did not end within {READ_DEADLINE_S:g} s")
        try:
            yield
        finally:
            self._reading.release()

    def _switch(self, weights: PreparedWeights) -> None:
        try:
            self.loader.switch(weights)
        # Some tensors may be new and others old. Nothing may be sampled from such a mixture.
        except BaseException:
            self._state.loaded(State.BROKEN)
            raise
        self._on_switch()
        self._state.loaded(State.LOADED)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """uint8: all of the storage that `tensor` lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _some(names: list[str]) -> str:
    return (
        "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    )
