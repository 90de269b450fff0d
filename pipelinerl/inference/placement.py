"""Where the tensors of a version lie in a served model, so that putting one there is nothing but copies.

Engines keep several tensors of a checkpoint in one parameter, such as queries, keys and values. Their own way
of loading asks every layer anew where everything belongs. Here that is worked out once, from the names, and
believed only if the model holds exactly the version that it has just loaded its own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

Named = Sequence[tuple[str, torch.Tensor]]
KV_CACHE = "kv_cache"
"""What attention layers of vLLM call theirs; it is no copy of weights."""


class NoPlacement(ValueError):
    """A model cannot be given a version by copies; the message says why not."""


class Placement:
    """A view of the model's memory for each tensor of a version."""

    def __init__(self, places: Mapping[str, torch.Tensor], pointers: Sequence[int]) -> None:
        self._places = dict(places)
        self._pointers = list(pointers)

    @classmethod
    @torch.no_grad()
    def of(cls, model: torch.nn.Module, tensors: Named, packed: Mapping[str, Sequence[str]]) -> Placement:
        """`model` has just been given `tensors`, under the names of the checkpoint, on any device.

        `packed`: names of its modules that hold several of the checkpoint's, one behind the other in the
        first dimension (vLLM's `packed_modules_mapping`). Raises NoPlacement if a tensor has no place, a
        parameter no tensor, or the model does not hold in every place what it was given.
        """
        _check_nothing_derived(model)
        parameters = dict(model.named_parameters())
        places: dict[str, torch.Tensor] = {}
        for fused, parts in _by_parameter(tensors, parameters, packed).items():
            places |= _slices(fused, parameters[fused], parts)
        reached = {one.untyped_storage().data_ptr() for one in places.values()}
        for name, parameter in parameters.items():
            if parameter.untyped_storage().data_ptr() not in reached:
                raise NoPlacement(f"{name} is in no version")
        for name, tensor in tensors:
            if not torch.equal(places[name], tensor.to(places[name])):
                raise NoPlacement(f"the model does not hold {name} as it was sent")
        return cls(places, _pointers(model))

    def holds(self, model: torch.nn.Module) -> bool:
        """Whether the model's parameters still lie where they lay."""
        return _pointers(model) == self._pointers

    @torch.no_grad()
    def put(self, tensors: Named) -> None:
        """Copy a version to its places, in the order of the current stream; nothing waits for the copies.

        Raises ValueError, with nothing copied, for other tensors than those of the first version.
        """
        given = {name: tensor.shape for name, tensor in tensors}
        if given != {name: place.shape for name, place in self._places.items()}:
            raise ValueError("names or shapes of the tensors have changed since the first version")
        for name, tensor in tensors:
            self._places[name].copy_(tensor, non_blocking=True)


def _by_parameter(
    tensors: Named, parameters: Mapping[str, torch.Tensor], packed: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[str, torch.Tensor]]]:
    """Tensors of each parameter, in the order in which they lie there."""
    found: dict[str, list[tuple[int, str, torch.Tensor]]] = {}
    for name, tensor in tensors:
        target, position = _target(name, parameters, packed)
        found.setdefault(target, []).append((position, name, tensor))
    return {
        target: [(name, tensor) for _, name, tensor in sorted(parts, key=lambda part: part[0])]
        for target, parts in found.items()
    }


def _target(
    name: str, parameters: Mapping[str, torch.Tensor], packed: Mapping[str, Sequence[str]]
) -> tuple[str, int]:
    """The parameter of a tensor, and which of its parts the tensor is."""
    if name in parameters:
        return name, 0
    words = name.split(".")
    for fused, parts in packed.items():
        for position, part in enumerate(parts):
            if part in words:
                target = ".".join(fused if word == part else word for word in words)
                if target in parameters:
                    return target, position
    raise NoPlacement(f"the model has no parameter for {name}")


def _slices(
    fused: str, parameter: torch.Tensor, parts: Sequence[tuple[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """The part of a parameter for each of its tensors; a single one may be followed by padding rows."""
    rows = sum(len(tensor) for _, tensor in parts)
    if rows > len(parameter) or (rows < len(parameter) and len(parts) > 1):
        raise NoPlacement(f"{fused} has {len(parameter)} rows, its tensors {rows}")
    found, first = {}, 0
    for name, tensor in parts:
        place = parameter.detach()[first : first + len(tensor)]
        if place.shape != tensor.shape:
            raise NoPlacement(f"{name} is {list(tensor.shape)}, its place {list(place.shape)}")
        found[name] = place
        first += len(tensor)
    return found


def _check_nothing_derived(model: torch.nn.Module) -> None:
    """What lies beside parameters and buffers may be computed from weights; copies would leave it old."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if not isinstance(value, torch.Tensor) or name == KV_CACHE:
                continue
            if value.is_floating_point() and value.dim() > 0:  # scalars are scales of the cache
                raise NoPlacement(f"{prefix} holds {name} beside its parameters")


def _pointers(model: torch.nn.Module) -> list[int]:
    return [one.data_ptr() for one in model.parameters()]
