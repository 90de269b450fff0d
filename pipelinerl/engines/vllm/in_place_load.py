"""Loading a version into a served model by nothing but copies; `vllm_ahead` does so in an update's pause.

vLLM keeps several tensors of a checkpoint in one parameter, such as queries, keys and values, and its own way
of loading asks every layer anew where each belongs. Here that is worked out once, from the names, and
believed only if the model holds exactly the version that it has just loaded its own way.

All experts of a layer lie in two parameters: `[experts, 2 * width, hidden]` for gate and up,
`[experts, hidden, width]` for down. The trainer sends both as they are, so that two copies fill a layer; a
checkpoint with tensors of single experts has a slice for each. Kernels that want experts permuted are found
by the comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch

Named = Sequence[tuple[str, torch.Tensor]]
Packed = Mapping[str, Sequence[str]]
# What attention layers of vLLM call theirs; it is no copy of weights.
KV_CACHE = "kv_cache"
# vLLM's mixtures do not name it, though their dense layers and shared experts have it.
GATE_UP: Packed = {"gate_up_proj": ("gate_proj", "up_proj")}
# Numbers that are compared at once: the experts of one layer are 600 MB, and little memory is free.
COMPARED = 2**24
# A copy costs Python 5 us: one for each tensor up to here is 20 ms.
MOST_SINGLE_COPIES = 4096


class NoInPlaceLoad(ValueError):
    """A model cannot be given a version by copies; the message says why not."""


class InPlaceLoad:
    """A view of the model's memory for each tensor of a version."""

    @torch.no_grad()
    def __init__(self, model: torch.nn.Module, tensors: Named, packed: Packed) -> None:
        """`model` has just been given `tensors`, under the names of the checkpoint, on any device.

        `packed`: names of its modules that hold several of the checkpoint's, one behind the other in the
        first dimension (vLLM's `packed_modules_mapping`). Raises NoInPlaceLoad.
        """
        check_nothing_derived(model)
        parameters, names = dict(model.named_parameters()), CheckpointNames(model, packed)
        parts: dict[str, list[tuple[int, str, torch.Tensor]]] = {}
        whole: set[str] = set()  # parameters whose only tensor has their name
        # What belongs to parts that this engine serves without, such as the tower of a model that also sees.
        self._without: dict[str, torch.Size] = {}
        for name, tensor in tensors:
            target, position = names.place(name)
            if target in parameters:
                parts.setdefault(target, []).append((position, name, tensor))
                whole |= {target} & {*names.known_as(name)}
            elif target or not _is_left_out(names.own(name), model):
                raise NoInPlaceLoad(f"the model has no parameter for {name}")
            else:
                self._without[name] = tensor.shape
        self._places: dict[str, torch.Tensor] = {}
        for target, found in parts.items():
            in_order = [(name, tensor) for _, name, tensor in sorted(found, key=itemgetter(0))]
            self._places |= _slices(target, parameters[target], in_order, target in whole)
        # Such as a head sent as its own to a model that keeps it in the memory of the embedding.
        if len({one.data_ptr() for one in self._places.values()}) < len(self._places):
            raise NoInPlaceLoad("several tensors have one place")
        reached = {one.untyped_storage().data_ptr() for one in self._places.values()}
        for name, parameter in parameters.items():
            if parameter.untyped_storage().data_ptr() not in reached:
                raise NoInPlaceLoad(f"{name} is in no version")
        # Names and shapes alone would not show a scale, a transposition or another order of the parts.
        for name, tensor in tensors:
            if name in self._places and not equal(self._places[name], tensor):
                raise NoInPlaceLoad(f"the model does not hold {name} as it was sent")
        self._pointers = pointers(model)

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether the model's parameters still lie where they lay."""
        return pointers(model) == self._pointers

    @torch.no_grad()
    def load(self, tensors: Named) -> None:
        """Enqueue a copy of each tensor to its place, on the current stream.

        Raises ValueError, with nothing copied, for other names or shapes than those of the first version.
        """
        given = {name: tensor.shape for name, tensor in tensors}
        if given != self._without | {name: place.shape for name, place in self._places.items()}:
            raise ValueError("names or shapes of the tensors have changed since the first version")
        copies = [(self._places[name], tensor) for name, tensor in tensors if name not in self._without]
        if len(copies) > MOST_SINGLE_COPIES:
            places, sources = zip(*copies, strict=True)
            torch._foreach_copy_(places, sources, non_blocking=True)
            return
        for place, tensor in copies:
            place.copy_(tensor, non_blocking=True)


class CheckpointNames:
    """Where a model of vLLM keeps the tensors of a checkpoint, by their names."""

    def __init__(self, model: torch.nn.Module, packed: Packed) -> None:
        """`packed`: as `InPlaceLoad` takes it."""
        self._parameters, self._experts = dict(model.named_parameters()), _experts(model)
        self._mapper, self._packed = _mapper(model), {**GATE_UP, **packed}

    def own(self, name: str) -> str:
        """The name by vLLM's own mapping, if the model has one and it knows another."""
        found = self._mapper._map_name(name) if self._mapper is not None else None
        return name if found is None else str(found)

    def known_as(self, name: str) -> list[str]:
        return list(dict.fromkeys([name, self.own(name)]))

    def place(self, name: str) -> tuple[str, int]:
        """The parameter, and which of its parts the tensor is; an empty name if there is none."""
        ways = (
            _of_experts(one, self._experts) or _target(one, self._parameters, self._packed)
            for one in self.known_as(name)
        )
        return next(filter(None, ways), ("", 0))


def _mapper(model: torch.nn.Module) -> Any:
    """vLLM's own mapping from a checkpoint's names to the model's, if it has one; by `_map_name`."""
    mapper: Any = getattr(model, "hf_to_vllm_mapper", None)
    # Since 0.33 it also knows which part of a parameter a tensor is, which `packed` says here.
    return replace(mapper, orig_to_new_stacked={}) if hasattr(mapper, "orig_to_new_stacked") else mapper


def _is_left_out(name: str, model: torch.nn.Module) -> bool:
    """Whether the model serves without what its name belongs to: its module is there, as vLLM's stubs are,
    without a single weight."""
    module = model
    for word in name.split("."):
        below = module._modules.get(word)  # a stub hands on every attribute of what it stands for
        if below is None:
            break
        module = below
    return module is not model and next(module.parameters(), None) is None


def _experts(model: torch.nn.Module) -> dict[str, tuple[str, int]]:
    """For the names of experts in a checkpoint, or for what they begin with up to a dot: the parameter, and
    which of its parts the tensor is. Both from vLLM's own mapping."""
    found: dict[str, tuple[str, int]] = {}
    for path, module in model.named_modules():
        if not (hasattr(module, "get_expert_mapping") and hasattr(module, "layer_name")):
            continue
        start = module.layer_name.removesuffix("experts")
        for parameter, name, expert, part in module.get_expert_mapping(include_fused=True):
            target = f"{path}.{parameter.removeprefix('experts.')}"
            position = 2 * expert + (part == "w3")  # w1 and w3 are gate and up, w2 is alone in its parameter
            # A name is there twice where gate and up are one tensor; its first part says where it begins.
            found.setdefault(start + name, (target, position))
    return found


def _of_experts(name: str, experts: Mapping[str, tuple[str, int]]) -> tuple[str, int] | None:
    if name in experts:
        return experts[name][0], 0  # all experts of a layer
    start, dot, kind = name.rpartition(".")
    target, position = experts.get(start + dot, ("", 0))
    return (target + kind, position) if target else None


def _target(name: str, parameters: Mapping[str, torch.Tensor], packed: Packed) -> tuple[str, int] | None:
    """The parameter of a tensor, and which of its parts the tensor is; None if there is none."""
    if name in parameters:
        return name, 0
    words = name.split(".")
    for fused, parts in packed.items():
        for position, part in enumerate(parts):
            target = ".".join(fused if word == part else word for word in words)
            if target in parameters:
                return target, position
    return None


def _slices(fused: str, parameter: torch.Tensor, parts: Named, whole: bool) -> dict[str, torch.Tensor]:
    """The part of a parameter for each of its tensors, which lie one behind the other.

    `whole`: the tensor has the parameter's own name.
    """
    if [tensor.shape for _, tensor in parts] == [parameter.shape]:  # also a number, which has no rows
        return {parts[0][0]: parameter.detach()}
    if parameter.dim() > 1 and all(tensor.dim() == parameter.dim() - 1 for _, tensor in parts):
        if not parameter.is_contiguous():
            raise NoInPlaceLoad(f"{fused} does not lie in one piece")
        parameter = parameter.detach().flatten(0, 1)  # one expert behind the other
    if not all(one.dim() for one in (parameter, *(tensor for _, tensor in parts))):
        raise NoInPlaceLoad(f"{fused} or one of its tensors is a single number")
    rows = sum(len(tensor) for _, tensor in parts)
    # vLLM pads a vocabulary with rows of zeros. Only there: rows that are missing from several parts, or from
    # one that is not all of its parameter, belong to a tensor that was not sent.
    if rows > len(parameter) or (rows < len(parameter) and not whole):
        raise NoInPlaceLoad(f"{fused} has {len(parameter)} rows, its tensors {rows}")
    if bool(parameter[rows:].any()):
        raise NoInPlaceLoad(f"{fused} holds more than zeros behind its {rows} rows")
    found, start = {}, 0
    for name, tensor in parts:
        place = parameter.detach()[start : start + len(tensor)]
        if place.shape != tensor.shape:
            raise NoInPlaceLoad(f"{name} is {list(tensor.shape)}, its place {list(place.shape)}")
        found[name] = place
        start += len(tensor)
    return found


def equal(place: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether the model holds these numbers, in its type, at this place. NoInPlaceLoad for want of memory."""
    # Needs memory for what is compared; for want of it a model that is loaded must not fail.
    rows = max(1, COMPARED // max(1, place[0].numel())) if place.dim() and len(place) else 1
    pieces = zip(place.split(rows), tensor.split(rows)) if place.dim() else [(place, tensor)]
    try:
        return all(torch.equal(one, other.to(one)) for one, other in pieces)
    except torch.OutOfMemoryError:
        raise NoInPlaceLoad(f"no memory is left to compare {list(place.shape)} numbers") from None


def check_nothing_derived(model: torch.nn.Module) -> None:
    """What lies beside parameters and buffers may be computed from weights; copies would leave it old."""
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    for prefix, module in model.named_modules():
        # In the modules, or in what vLLM hands their weights after loading, such as its kinds of attention.
        helpers = [one for one in vars(module).values() if hasattr(one, "process_weights_after_loading")]
        for holder in (module, *(one for one in helpers if not isinstance(one, torch.nn.Module | type))):
            for name, value in getattr(holder, "__dict__", {}).items():
                # Scalars are scales of the cache.
                derived = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim()
                if derived and name != KV_CACHE and value.untyped_storage().data_ptr() not in own:
                    raise NoInPlaceLoad(f"{prefix or 'the model'} holds {name} beside its parameters")


def pointers(model: torch.nn.Module) -> list[int]:
    """Where its parameters lie."""
    return [one.data_ptr() for one in model.parameters()]
