"""Where the tensors of a version lie in a served model, so that putting one there is nothing but copies.

Engines keep several tensors of a checkpoint in one parameter, such as queries, keys and values. Their own way
of loading asks every layer anew where everything belongs. Here that is worked out once, from the names, and
believed only if the model holds exactly the version that it has just loaded its own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

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
        first dimension (vLLM's `packed_modules_mapping`). Raises NoPlacement if a tensor has no place of its
        own, a parameter no tensor, the model does not hold in every place what it was given, or no memory is
        left to see that.
        """
        _check_nothing_derived(model)
        parameters = dict(model.named_parameters())
        places: dict[str, torch.Tensor] = {}
        for fused, parts in _by_parameter(tensors, parameters, packed).items():
            places |= _slices(fused, parameters[fused], parts)
        if len({one.data_ptr() for one in places.values()}) < len(places):
            raise NoPlacement("several tensors have one place")
        reached = {one.untyped_storage().data_ptr() for one in places.values()}
        for name, parameter in parameters.items():
            if parameter.untyped_storage().data_ptr() not in reached:
                raise NoPlacement(f"{name} is in no version")
        for name, tensor in tensors:
            if not _equal(places[name], tensor):
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
    """The part of a parameter for each of its tensors.

    A single one of the parameter's own name may be followed by zeros, which pad a vocabulary.
    """
    if [tensor.shape for _, tensor in parts] == [parameter.shape]:  # also a number, which has no rows
        return {parts[0][0]: parameter.detach()}
    if not all(one.dim() for one in (parameter, *(tensor for _, tensor in parts))):
        raise NoPlacement(f"{fused} or one of its tensors is a single number")
    rows = sum(len(tensor) for _, tensor in parts)
    may_be_padded = [name for name, _ in parts] == [fused]
    if rows > len(parameter) or (rows < len(parameter) and not may_be_padded):
        raise NoPlacement(f"{fused} has {len(parameter)} rows, its tensors {rows}")
    if bool(parameter[rows:].any()):
        raise NoPlacement(f"{fused} holds more than zeros behind its {rows} rows")
    found, first = {}, 0
    for name, tensor in parts:
        place = parameter.detach()[first : first + len(tensor)]
        if place.shape != tensor.shape:
            raise NoPlacement(f"{name} is {list(tensor.shape)}, its place {list(place.shape)}")
        found[name] = place
        first += len(tensor)
    return found


def _equal(place: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Needs memory for the tensor and its comparison; a model that is loaded must not fail for want of it."""
    try:
        return torch.equal(place, tensor.to(place))
    except torch.OutOfMemoryError:
        raise NoPlacement(f"no memory is left to compare {list(place.shape)} numbers") from None


def _check_nothing_derived(model: torch.nn.Module) -> None:
    """What lies beside parameters and buffers may be computed from weights; copies would leave it old.

    It lies in the modules, or in what processes their weights for them, such as vLLM's kinds of attention.
    """
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    for prefix, module in model.named_modules():
        helpers = [one for one in vars(module).values() if _processes_weights(one)]
        for name, tensor in chain.from_iterable(map(_computed, (module, *helpers))):
            if tensor.untyped_storage().data_ptr() not in own:
                raise NoPlacement(f"{prefix or 'the model'} holds {name} beside its parameters")


def _computed(holder: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Plain attributes that may be computed from weights; scalars are scales of the cache."""
    for name, value in vars(holder).items():
        if isinstance(value, torch.Tensor) and name != KV_CACHE and value.is_floating_point() and value.dim():
            yield name, value


def _processes_weights(one: object) -> bool:
    """Whether it is an object, no module, that vLLM hands a layer's weights after loading."""
    return (
        hasattr(one, "process_weights_after_loading")
        and hasattr(one, "__dict__")
        and not isinstance(one, torch.nn.Module | type)
    )


def _pointers(model: torch.nn.Module) -> list[int]:
    return [one.data_ptr() for one in model.parameters()]
