"""The weights of a torch module, read into memory of their own and switched to in one copy.

For any back end whose weights are a module (`ModuleWeights`); `weight_updates` calls it. A version is all
weights, or adapters alone: those are added to a copy of the weights that the engine was started with, so that
sampling costs the same either way.
"""

from dataclasses import dataclass, field

import torch
from transformers.pytorch_utils import Conv1D

from pipelinerl.engines.received import Announced
from pipelinerl.engines.serving.backend import Weights, WeightsRefused, WeightsUnfit
from pipelinerl.engines.wire import parameter_checksum
from pipelinerl.modeling.adapters import Pairs, adapted, adapter_pairs, check_pair

SAME_MODEL = "engine and trainer have to be given one model (model_path) and one type (engine.dtype)"


@dataclass(frozen=True, slots=True)
class PreparedWeights:
    """One version, checked, in memory of its own and laid out as the model's storages are."""

    info: Announced
    storages: dict[int, torch.Tensor]
    """uint8, by the number of the loader's own; those that the version leaves as they are have none."""
    adapters: dict[str, torch.Tensor] = field(default_factory=dict)
    """What was read, where that are adapters alone."""


class ModuleWeights(Weights):
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

    def read(self, info: Announced) -> PreparedWeights:
        """Weights or adapters, checked by the announcement and against names, shapes and dtypes.

        Raises WeightsRefused with the first mismatch, WeightsUnfit for one of the model's own.
        """
        try:
            tensors = info.tensors()  # let go with this call: the layout below is what is kept
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
        """XXH3 of the bytes of every distinct parameter and of the adapters in use, by name."""
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

    def _checked_pairs(self, tensors: dict[str, torch.Tensor]) -> Pairs:
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
            expected = tuple(reversed(parameter.shape)) if self._transposed(name) else tuple(parameter.shape)
            try:
                check_pair(name, expected, down, up)
            except ValueError as error:
                raise WeightsUnfit(f"{error}; {SAME_MODEL}") from None
        return pairs

    def _transposed(self, name: str) -> bool:
        return isinstance(self._module.get_submodule(name.rpartition(".")[0]), Conv1D)

    @torch.no_grad()
    def _with_adapters(self, pairs: Pairs, scale: float) -> dict[int, torch.Tensor]:
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


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """uint8: all of the storage that `tensor` lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _some(names: list[str]) -> str:
    return (
        "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    )
