"""A packed row over several ranks (`finetune.seq_parallel`): each computes a slice, attention whole heads.

Ulysses (Jacobs et al. 2023). Everything but attention works token by token, so that a rank needs its slice
alone. Before attention the ranks exchange parts: from all heads of a slice to some heads of the whole row,
and back behind it. Attention itself is what it is on one rank, with windows, shared prefixes and all.

`modeling/attention.py` puts it around attention; `modeling/row_slices.py` cuts rows and gathers their scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

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


def gather_parts(part: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """Collective: `[N, ...]`, what each rank gave, of one shape, in their order. Without gradient."""
    found = part.new_empty(group.count * len(part), *part.shape[1:])
    dist.all_gather_into_tensor(found, part, group=_GROUPS[group.name])
    return found.view(group.count, *part.shape)


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
        segments, _ = getattr(module, "told", (options.get("segments"), None))
        if segments is None or segments.ranks is None:
            return attention(module, query, key, value, *rest, **options)  # type: ignore[no-any-return]
        group = segments.ranks
        times = repeats(query.shape[1], key.shape[1], group.count)
        if times > 1:
            key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
        query, key, value = (heads_of_row(one, group) for one in (query, key, value))
        if (sinks := options.get("s_aux")) is not None:  # one number a head
            options["s_aux"] = sinks.chunk(group.count)[group.index]
        out, weights = attention(module, query, key, value, *rest, **options)
        return tokens_of_slice(out, group), weights

    return attend
