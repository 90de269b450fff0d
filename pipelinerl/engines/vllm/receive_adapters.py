"""Versions of adapters alone for vLLM: their products are added to the weights in place.

The back-ends of `receive_file` and `receive_ahead` are `TakesAdapters`. A token then costs what it cost
before; vLLM's own adapters are computed anew for every token. Each version is the sum of its adapters and the
weights that the engine was started with. These are kept, because differences that are added to bfloat16 again
and again would drift. Where each matrix of the checkpoint lies in vLLM's fused and divided parameters is
worked out from the names, and believed only if the model holds the checkpoint's numbers there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipelinerl.engines.version_file import ALIGNED, HostMemory
from pipelinerl.engines.vllm.in_place_load import (
    COMPARED,
    CheckpointNames,
    Named,
    NoInPlaceLoad,
    Packed,
    check_nothing_derived,
    equal,
    pointers,
)
from pipelinerl.engines.wire import PermanentUpdateError, lacks_memory
from pipelinerl.modeling.adapters import Pairs, adapted, adapter_pairs, check_pair

MERGED = "set weights.lora=merged"
SAME_MODEL = f"start the engine with the trainer's model (model_path), or {MERGED}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank keeps a matrix of the checkpoint, all of it or a block."""

    shape: tuple[int, ...]
    """Of the whole matrix, [D, E]."""
    view: torch.Tensor
    """[d, e]: a view of the parameter."""
    rows: slice
    columns: slice
    """Of the whole matrix."""


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """One version, checked; its tensors are on any device."""

    pairs: Pairs
    scale: float


class AdapterLoad:
    """Puts versions of adapters into a served model; makes and keeps the copies that this needs."""

    @torch.no_grad()
    def __init__(
        self,
        model: torch.nn.Module,
        base: Named,
        packed: Packed,
        *,
        rank: int = 0,
        ranks: int = 1,
        on_card: bool = False,
    ) -> None:
        """`model` was started with `base`, under the names of the checkpoint, on any device.

        `packed`: as for `InPlaceLoad`. `rank` of the `ranks` among which tensor parallelism divides layers.
        `on_card`: weights without adapters are kept beside those in use, otherwise in host memory. Raises
        NoInPlaceLoad for a model that holds numbers computed from its weights.
        """
        check_nothing_derived(model)
        self._names, self._on_card = CheckpointNames(model, packed), on_card
        self._places = dict(_places(model, base, self._names, rank, ranks))
        self._pointers = pointers(model)
        # Of weights that had adapters in some version, what they were before.
        self._base: dict[str, torch.Tensor] = {}
        self._memories: list[HostMemory] = []

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether the model's parameters still lie where they lay."""
        return pointers(model) == self._pointers

    def prepare(self, tensors: Mapping[str, torch.Tensor], scale: float) -> AdapterVersion:
        """Check a version, and keep what it is added to; beside the engine's steps, before `load`.

        Raises PermanentUpdateError for adapters that do not belong to this model, or for want of memory.
        """
        try:
            named = adapter_pairs(tensors)
            for name, pair in named.items():
                if (place := self._places.get(self._names.own(name))) is None:
                    raise ValueError(f"the engine does not hold {name} as the folder of its model has it")
                check_pair(name, place.shape, *pair)
        except ValueError as error:
            raise PermanentUpdateError(f"{error}; {SAME_MODEL}") from None
        pairs = {self._names.own(name): pair for name, pair in named.items()}
        if new := [name for name in pairs if name not in self._base]:
            self._base |= self._keep(new)
        return AdapterVersion(pairs, scale)

    @torch.no_grad()
    def load(self, version: AdapterVersion) -> None:
        """Enqueue the version on the current stream, in place of any other; weights without adapters get
        back what they were."""
        for name, base in self._base.items():
            place, pair = self._places[name], version.pairs.get(name)
            if pair is None:
                place.view.copy_(base, non_blocking=True)
                continue
            down, up = (one.to(place.view.device, non_blocking=True) for one in pair)
            down, up = down[:, place.columns], up[place.rows]
            # In pieces: sums in float32 take several times the memory of the weights.
            for rows in _pieces(base):
                weight = base[rows].to(place.view.device, non_blocking=True)
                place.view[rows].copy_(adapted(weight, down, up[rows], version.scale, False))

    def release(self) -> None:
        """Give the host's memory back."""
        self._base = {}
        while self._memories:
            self._memories.pop().release()

    @torch.no_grad()
    def _keep(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Copies of these weights, which no version has changed yet."""
        views = {name: self._places[name].view for name in names}
        size = sum(one.nbytes for one in views.values())
        try:
            if not self._on_card:
                return self._on_host(views)
            kept = {name: one.clone() for name, one in views.items()}
            torch.accelerator.synchronize()  # `load` is on another stream
            return kept
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            where = "the engine's GPU" if self._on_card else "its host, page-locked,"
            remedy = (
                "lower vllm_config.vllm_kwargs.gpu-memory-utilization, set weights.transport=file"
                if self._on_card
                else "raise the limit of the engine's host (ulimit -l)"
            )
            raise PermanentUpdateError(
                f"weights.lora=adapter needs {size / 2**30:.2g} GiB on {where} for a copy of the weights "
                f"below adapters; {remedy}, or {MERGED}"
            ) from None

    def _on_host(self, views: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found, ends, end = {}, [], 0
        for one in views.values():
            ends.append(end)
            end += -(-one.nbytes // ALIGNED) * ALIGNED
        memory = HostMemory()
        block = memory.reserve(end)
        for (name, one), start in zip(views.items(), ends, strict=True):
            found[name] = block[start : start + one.nbytes].view(one.dtype).view(one.shape)
            found[name].copy_(one)
        if any(one.is_cuda for one in views.values()):
            memory.pin(end)
        self._memories.append(memory)
        return found


class TakesAdapters:
    """What a worker's back-end does with adapters; the other half of it is vLLM's `WeightTransferEngine`."""

    device: torch.device
    model: torch.nn.Module
    model_config: Any
    vllm_config: Any
    keeps_on_card = False
    """Where the weights that adapters are added to are kept; the memory plan counts a copy there."""
    _adapters: AdapterLoad | None = None

    def expect_adapters(self) -> None:
        """At the rendezvous: find the place of each weight while the engine has those that it was started
        with. A later rendezvous with the same process finds what the first one kept.

        Raises PermanentUpdateError for a model that adapters cannot be added to.
        """
        if self._adapters is not None and self._adapters.fits(self.model):
            return
        try:
            if self.device.type != "cuda" or self.vllm_config.quant_config is not None:
                raise NoInPlaceLoad(f"on {self.device.type}, or quantised, weights are converted")
            parallel = self.vllm_config.parallel_config
            ranks = parallel.tensor_parallel_size
            self._adapters = AdapterLoad(
                self.model,
                list(self._checkpoint()),
                getattr(self.model, "packed_modules_mapping", None) or {},
                rank=parallel.rank % ranks,
                ranks=ranks,
                on_card=self.keeps_on_card,
            )
        except NoInPlaceLoad as reason:
            raise PermanentUpdateError(
                f"adapters alone cannot be added to vLLM's {type(self.model).__name__} ({reason}); {MERGED}"
            ) from None

    def ready(self, tensors: dict[str, torch.Tensor], scale: float | None) -> Named | AdapterVersion:
        """A version as it was received, to be put into the model; `scale`: of adapters, None for weights."""
        if scale is None:
            return list(tensors.items())
        if self._adapters is None:
            raise PermanentUpdateError(
                "the engine was sent whole weights, to which adapters do not belong; start it again, or "
                f"{MERGED}"
            )
        return self._adapters.prepare(tensors, scale)

    def put_adapters(self, version: AdapterVersion) -> None:
        """Between two steps."""
        assert self._adapters is not None
        self._adapters.load(version)
        torch.accelerator.synchronize()

    def forget_adapters(self) -> None:
        """Whole weights have taken the place of those that adapters belong to."""
        if self._adapters is not None:
            self._adapters.release()
        self._adapters = None

    def _checkpoint(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What the engine was started with, read by vLLM's own loader."""
        from vllm.model_executor.model_loader import get_model_loader

        load = self.vllm_config.load_config
        if not hasattr(loader := get_model_loader(load), "get_all_weights"):
            raise NoInPlaceLoad(f"load-format={load.load_format} cannot be read again")
        yield from loader.get_all_weights(self.model_config, self.model)


def _places(
    model: torch.nn.Module, base: Named, names: CheckpointNames, rank: int, ranks: int
) -> Iterator[tuple[str, Place]]:
    """By vLLM's own name for it, every matrix of which the model holds exactly a block."""
    parameters = dict(model.named_parameters())
    parts: dict[str, list[tuple[int, str, torch.Tensor]]] = {}
    for name, tensor in base:
        target, position = names.place(name)
        if target in parameters and tensor.dim() == parameters[target].dim() == 2:
            parts.setdefault(target, []).append((position, names.own(name), tensor))
    for target, found in parts.items():
        parameter, in_order = parameters[target].detach(), sorted(found, key=lambda one: one[0])
        heights = _heights(len(parameter), [len(tensor) for _, _, tensor in in_order], ranks)
        start = 0
        for (_, name, tensor), height in zip(in_order, heights):
            view = parameter[start : start + height]
            start += height
            rows, columns = (_block(tensor.shape[i], view.shape[i], rank, ranks) for i in (0, 1))
            block = tensor[rows, columns]
            if block.shape == view.shape and equal(view, block):
                yield name, Place(tuple(tensor.shape), view, rows, columns)


def _heights(rows: int, wholes: Sequence[int], ranks: int) -> list[int]:
    """How many of a parameter's rows belong to each of its tensors; none if that cannot be.

    Tensor parallelism divides rows, or columns alone; heads of keys and values that are fewer than the ranks
    are there more than once.
    """
    if sum(wholes) == rows:
        return [*wholes]
    if sum(wholes) == rows * ranks:
        return [one // ranks for one in wholes]
    queries = wholes[0] // ranks
    if len(wholes) == 3 and (rest := rows - queries) > 0 and rest % 2 == 0:
        return [queries, rest // 2, rest // 2]
    return []


def _block(whole: int, local: int, rank: int, ranks: int) -> slice:
    """Which of the equal blocks of `local` rows or columns this rank has; ranks beside each other share one
    where there are fewer blocks."""
    blocks = whole // local if local else 0
    start = rank * blocks // ranks * local
    return slice(start, start + local)


def _pieces(matrix: torch.Tensor) -> Iterator[slice]:
    rows = max(1, COMPARED // matrix.shape[1])
    return (slice(start, start + rows) for start in range(0, len(matrix), rows))
