"""A packed row over several ranks (`finetune.seq_parallel`): each computes a slice, attention whole heads.

Ulysses (Jacobs et al. 2023). Everything but attention works token by token, so that a rank needs its slice
alone. Before attention the ranks exchange parts: from all heads of a slice to some heads of the whole row,
and back behind it. Attention itself is what it is on one rank, with windows, shared prefixes and all. Scores
of targets are computed where the token lies that predicts them, and then gathered: every rank has those of
the whole row, so that losses and metrics, also of samples that cross ranks, are computed as on one rank.

Called by the trainer (`finetune/step.py`) for each row, and by attention (`modeling/attention.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from pipelinerl.modeling.prefixes import Prefixes
from pipelinerl.modeling.row import Row

NAME = "pipelinerl::swap_parts"
_GROUPS: dict[str, dist.ProcessGroup] = {}
"""By name, because an operation takes no process group as an argument."""


# Not frozen, for the sake of the compiler, as in `segments.py`.
@dataclass(eq=False)
class RowGroup:
    """The `count` ranks that compute a row together; this one has slice `index` of each row.

    `name` says which process group exchanges tensors; `hosts` is one over gloo for plain values.
    """

    index: int
    count: int
    name: str
    hosts: dist.ProcessGroup

    @property
    def leads(self) -> bool:
        """Whether this rank reads the rows and counts what they hold."""
        return self.index == 0

    def share(self, value: Any) -> Any:
        """The first rank's value, on every rank of the group; the others' is not looked at."""
        values = [value]
        dist.broadcast_object_list(values, group=self.hosts, group_src=0)
        return values[0]


def join_row(index: int, count: int, size: int, patience: Any) -> RowGroup:
    """Collective over all `count` ranks: the group of rank `index`, `size` neighbours.

    `patience`: timedelta for plain values. Raises ValueError when `size` does not divide `count`.
    """
    if count % size:
        raise ValueError(
            f"finetune.seq_parallel={size}: does not divide {count} trainer ranks; set a divisor"
        )
    for first in range(0, count, size):  # every rank has to take part in making every group
        members = list(range(first, first + size))
        group, hosts = dist.new_group(members), dist.new_group(members, backend="gloo", timeout=patience)
        if first <= index < first + size:
            name = f"row_{first // size}"
            _GROUPS[name] = group
            own = RowGroup(index - first, size, name, hosts)
    return own


def check_model(model: PreTrainedModel, size: int) -> None:
    """Raises ValueError, in one line, for a model whose layers cannot be divided over `size` ranks."""
    config = model.config.get_text_config(decoder=True)
    heads, key = int(config.num_attention_heads), f"finetune.seq_parallel={size}"
    if heads % size:
        raise ValueError(f"{key}: does not divide the {heads} attention heads of the model; set a divisor")
    others = {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    if others:
        raise ValueError(f"{key}: layers of {', '.join(sorted(others))} pass a state on along a row; set 1")


@torch.library.custom_op(NAME, mutates_args=())
def swap_parts(parts: torch.Tensor, group: str) -> torch.Tensor:
    """Give part i of `[N, ...]` to rank i of the group; returns what each rank gave, in their order."""
    found = torch.empty_like(parts, memory_format=torch.contiguous_format)
    dist.all_to_all_single(found, parts.contiguous(), group=_GROUPS[group])
    return found


@swap_parts.register_fake
def _(parts: torch.Tensor, group: str) -> torch.Tensor:
    return torch.empty_like(parts, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[torch.Tensor, str], output: torch.Tensor) -> None:
    ctx.group = inputs[1]


def _differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return swap_parts(gradient, ctx.group), None  # its own adjoint


swap_parts.register_autograd(_differentiate, setup_context=_save)


def heads_of_row(states: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """All heads of this rank's slice `[1, H, L / N, D]` to its heads of the row, `[1, H / N, L, D]`."""
    _, heads, tokens, size = states.shape
    parts = states[0].view(group.count, heads // group.count, tokens, size)
    row = swap_parts(parts.transpose(1, 2), group.name)  # by token, as kernels want them
    return row.view(1, group.count * tokens, heads // group.count, size).transpose(1, 2)


def tokens_of_slice(states: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """The way back: this rank's heads of the row `[1, L, H / N, D]` to its slice `[1, L / N, H, D]`."""
    _, tokens, heads, size = states.shape
    parts = states[0].reshape(group.count, tokens // group.count, heads, size)
    return swap_parts(parts, group.name).transpose(0, 1).flatten(1, 2)[None]


def repeats(heads: int, key_heads: int, ranks: int) -> int:
    """How often each key head is sent, so that all ranks get as many and those that their queries read."""
    shared = heads // key_heads
    return next(n for n in range(1, shared + 1) if shared % n == 0 and key_heads * n % ranks == 0)


def over_ranks(attention: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function that exchanges heads where `segments` say that the row has several ranks."""

    @wraps(attention)
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> tuple[torch.Tensor, Any]:
        segments = options.get("segments")
        if segments is None or segments.ranks is None:
            return attention(module, query, key, value, *rest, **options)  # type: ignore[no-any-return]
        group = segments.ranks
        times = repeats(query.shape[1], key.shape[1], group.count)
        if times > 1:
            key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
        query, key, value = (heads_of_row(one, group) for one in (query, key, value))
        out, weights = attention(module, query, key, value, *rest, **options)
        return tokens_of_slice(out, group), weights

    return attend


def filled_row(
    input_ids: np.ndarray,
    position_ids: np.ndarray,
    boundaries: np.ndarray,
    prefixes: Prefixes | None,
    count: int,
) -> Row:
    """`Row.of`, with as many computed tokens as `count` slices of one size have.

    What is missing is a sample of its own at the end, which nobody learns from.
    """
    missing = -(len(input_ids) if prefixes is None else len(prefixes.computed)) % count
    if missing:
        input_ids = np.concatenate([input_ids, np.zeros(missing, input_ids.dtype)])
        position_ids = np.concatenate([position_ids, np.arange(missing, dtype=position_ids.dtype)])
        boundaries = np.append(boundaries, boundaries[-1] + missing)
        prefixes = prefixes and Prefixes(boundaries, np.append(prefixes.shared, 0))
    return Row.of(input_ids, position_ids, boundaries, prefixes)


@dataclass(frozen=True)
class Slice:
    """This rank's part of a row and of its N targets.

    input_ids, position_ids int64 `[1, L / N]`. predictors (in the slice), labels int64 `[n]`: its targets; a
    rank without one has a stand-in, so that it takes part in the backward. own int64 `[n]`: which of the N
    they are, without the stand-in. places int64 `[N]`: where each target lies behind one another in all
    ranks' columns, `most` long each.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    predictors: np.ndarray
    labels: np.ndarray
    own: np.ndarray
    places: np.ndarray
    most: int

    @classmethod
    def of(cls, row: Row, predictors: np.ndarray, labels: np.ndarray, group: RowGroup | None) -> "Slice":
        """predictors int64 `[N]` among the row's computed tokens, labels int64 `[N]`; all without a group."""
        if group is None:
            every = np.arange(len(labels))
            return cls(row.input_ids, row.position_ids, predictors, labels, every, every, len(labels))
        length = row.input_ids.shape[1] // group.count
        owner = predictors // length
        counts = np.bincount(owner, minlength=group.count)
        order = np.argsort(owner, kind="stable")
        starts = np.cumsum(counts) - counts
        most = max(1, int(counts.max()))
        places = np.empty(len(owner), np.int64)
        places[order] = owner[order] * most + np.arange(len(owner)) - starts[owner[order]]
        own = order[starts[group.index] : starts[group.index] + counts[group.index]]
        here = slice(group.index * length, (group.index + 1) * length)
        absent = np.zeros(1, np.int64)
        return cls(
            row.input_ids[:, here],
            row.position_ids[:, here],
            predictors[own] - here.start if len(own) else absent,
            labels[own] if len(own) else absent,
            own,
            places,
            most,
        )


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, places: torch.Tensor, own: torch.Tensor, most: int, group: RowGroup, *columns: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(own)
        ctx.size = len(columns[0])
        # Without an entropy bonus its gradient stays None, as in `logprobs.py`.
        ctx.set_materialize_grads(False)
        packed = columns[0].new_zeros(len(columns), most)
        packed[:, : ctx.size] = torch.stack(columns)
        found = packed.new_empty(group.count * len(columns), most)
        dist.all_gather_into_tensor(found, packed, group=_GROUPS[group.name])
        of_ranks = found.view(group.count, len(columns), most)
        return of_ranks.transpose(0, 1).flatten(1).index_select(1, places).unbind()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        (own,) = ctx.saved_tensors
        # Every rank computes the same loss. Of its gradient a rank passes on what concerns its own scores;
        # the sum over ranks is then the gradient of one loss.
        found = []
        for gradient in gradients:
            if gradient is not None:
                column = gradient.new_zeros(ctx.size)
                column[: len(own)] = gradient.index_select(0, own)
                gradient = column
            found.append(gradient)
        return None, None, None, None, *found


def gathered(
    columns: Sequence[torch.Tensor], places: torch.Tensor, own: torch.Tensor, most: int, group: RowGroup
) -> tuple[torch.Tensor, ...]:
    """Collective: float32 columns `[n]` of a `Slice`'s targets to those of the row, `[N]`, with gradient."""
    found: tuple[torch.Tensor, ...] = _Gather.apply(places, own, most, group, *columns)
    return found
