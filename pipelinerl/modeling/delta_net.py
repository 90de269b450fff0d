"""Gated DeltaNets (Yang et al. 2024) over packed rows: state and convolution begin anew with each text.

In a row of shared prefixes they go on from the parent of each branch (`branches`, `delta_branches`).
`prepare_model` puts this forward in place of transformers', whose torch form carries both from text to text.
The embedded engine uses the same parts with the states of its slots. T tokens of all texts, D model width, H
value heads, G key heads, K and V sizes of a head's key and value, W width of the convolution, M its channels.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from pipelinerl.base.logs import REMARK
from pipelinerl.modeling import delta_kernel
from pipelinerl.modeling.branches import Branches, Call
from pipelinerl.modeling.delta_branches import branched, branched_by_kernel, fake_gradients, fake_result
from pipelinerl.modeling.delta_kernel import Missing
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.tensors import to_device

CHUNK = 32
"""Tokens whose updates of the state become one matrix product, in the torch form."""
NAME = "pipelinerl::gated_delta"
_KINDS = ("Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")
_NORM_EPS = 1e-6

log = logging.getLogger(__name__)


class Mixed(NamedTuple):
    """A layer's projections: `[T, M]` for the convolution, gate `[T, H, V]`, β and decay `[T, H]`."""

    channels: torch.Tensor
    gate: torch.Tensor
    beta: torch.Tensor
    decay: torch.Tensor


class Delta(NamedTuple):
    """Arguments of the delta rule: query and key `[T, G, K]`, value `[T, H, V]`, log decay and β `[T, H]`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


def delta_nets(model: nn.Module) -> list[nn.Module]:
    """The gated DeltaNets of a model that are known here."""
    return [one for one in model.modules() if type(one).__name__ in _KINDS]


def use_packed_delta_nets(model: nn.Module) -> None:
    """Give them the forward that keeps the texts of a row apart, in place."""
    replace_forward(model, _packed_forward)


def replace_forward(model: nn.Module, forward: Callable[..., torch.Tensor]) -> None:
    """Let all gated DeltaNets of the model compute this, in place."""
    has_kernel = kernel_missing() is None
    for one in delta_nets(model):
        # By the class and not the object: compiled layers share code only where nothing differs by object.
        kind: Any = type(one)
        one.__class__, one.has_kernel = _class_with(kind, forward), has_kernel


@cache
def _class_with(kind: Any, forward: Callable[..., torch.Tensor]) -> Any:
    return type(kind.__name__, (kind,), {"forward": forward})


def _packed_forward(
    module: Any, hidden_states: torch.Tensor, segments: Segments | None = None, **_: Any
) -> torch.Tensor:
    """`[B, L, D]` to the same; without segments every row is one text."""
    rows, length, _width = hidden_states.shape
    if segments is None:
        ends = np.arange(0, (rows + 1) * length, length)
        segments = Segments.from_offsets(ends, hidden_states.device)
    elif segments.keys is not None and segments.branches is None:
        raise ValueError(
            f"{type(module).__name__} has a state, and segments do not say what branches begin with"
        )
    branches = segments.branches
    mixed = mix(module, hidden_states.flatten(0, 1))
    channels = _convolved(module, mixed.channels, segments.offsets, branches)
    given = delta_of(module, channels, mixed)
    if module.has_kernel and _on_card(given.value):
        if branches is not None:
            out = branched_by_kernel(given, branches)
        else:
            out = _attend(*(one[None].contiguous() for one in given), segments.offsets)[0]
    else:
        if _on_card(given.value):
            _say_slow()
        with torch.autocast(given.value.device.type, enabled=False):  # it computes in float32 throughout
            if branches is not None:
                out = branched(given, branches, _by_torch)
            else:
                out, _state = gated_delta(given, segments.lengths)
    return finish(module, out, mixed.gate).view(hidden_states.shape)


def mix(module: Any, hidden: torch.Tensor) -> Mixed:
    """The projections of hidden states `[T, D]`."""
    if hasattr(module, "in_proj_qkvz"):  # Qwen3-Next has the four of each key head side by side
        joined = module.in_proj_qkvz(hidden)[None], module.in_proj_ba(hidden)[None]
        query, key, value, gate, beta, decay = module.fix_query_key_value_ordering(*joined)
        channels = torch.cat([one[0].flatten(1) for one in (query, key, value)], dim=-1)
        return Mixed(channels, gate[0], beta[0], decay[0])
    gate = module.in_proj_z(hidden).unflatten(-1, (-1, module.head_v_dim))
    return Mixed(module.in_proj_qkv(hidden), gate, module.in_proj_b(hidden), module.in_proj_a(hidden))


def convolution_width(model: nn.Module) -> int | None:
    """Tokens that the convolutions of its gated DeltaNets look at, the one itself included; None without."""
    nets: list[Any] = delta_nets(model)
    return int(nets[0].conv_kernel_size) if nets else None


def convolution_weight(module: Any) -> torch.Tensor:
    """float32 `[M, W]`, or wider; the last column is of the token itself."""
    weight = module.conv1d.weight.squeeze(1)
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def _convolved(
    module: Any, channels: torch.Tensor, offsets: torch.Tensor, branches: Branches | None = None
) -> torch.Tensor:
    """The causal convolution of `[T, M]` inside each text, and its activation; summed in float32.

    The first tokens of a branch see the last ones before it, wherever those lie in the row.

    Sums of shifted rows, which a compiler makes one kernel of: no kernel with boundaries is needed for it.
    """
    weight = convolution_weight(module)
    wide, width = channels.to(weight.dtype), weight.shape[1]
    token = torch.arange(len(wide), device=wide.device, dtype=offsets.dtype)
    place = token - offsets[torch.bucketize(token, offsets, right=True) - 1]
    out = wide * weight[:, -1]
    for back in range(1, width):
        shifted = functional.pad(wide, (0, 0, back, 0))[: len(wide)]
        inside = (place >= back)[:, None]
        out = out + torch.where(inside, shifted, 0.0) * weight[:, width - 1 - back]
    if branches is not None:
        there = (branches.sources >= 0)[..., None]
        before = torch.where(there, wide[branches.sources.clamp(min=0)], 0.0)
        out = out.index_add(0, branches.heads, (before.flip(0) * weight.T[:-1, None]).sum(0))
    return activated(module, out).to(channels.dtype)


def activated(module: Any, channels: torch.Tensor) -> torch.Tensor:
    """What follows the convolution."""
    return ACT2FN[module.activation](channels)  # type: ignore[no-any-return]


def delta_of(module: Any, channels: torch.Tensor, mixed: Mixed) -> Delta:
    """The arguments of the delta rule from convolved channels `[T, M]`."""
    query, key, value = channels.split([module.key_dim, module.key_dim, module.value_dim], dim=-1)
    # As the architecture has it: the decay in float32, β in the type of the model.
    decay = -module.A_log.float().exp() * functional.softplus(mixed.decay.float() + module.dt_bias)
    return Delta(
        query.unflatten(-1, (-1, module.head_k_dim)),
        key.unflatten(-1, (-1, module.head_k_dim)),
        value.unflatten(-1, (-1, module.head_v_dim)),
        decay,
        mixed.beta.sigmoid(),
    )


def finish(module: Any, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Gated norm and output projection of `[T, H, V]`; returns `[T, D]`."""
    return module.out_proj(module.norm(out.flatten(0, 1), gate.flatten(0, 1)).view(len(out), -1))


def gated_delta(
    given: Delta, lengths: Sequence[int], states: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule over texts of these lengths: `[T, H, V]` in the value's type, and the last states.

    A head's state S `[K, V]` becomes `exp(g) S + β k (v - exp(g) Sᵀk)ᵀ` with each token, whose result is
    `Sᵀq` (Yang et al. 2024, equation 10); q and k have length 1, q is divided by √K. Computed chunk by chunk
    (their section 3.3): each text begins a chunk of its own, and chunk number i of all texts is one batch.
    states, as those that are returned: float32 `[texts, H, K, V]`; None: 0.
    """
    dtype = torch.promote_types(given.value.dtype, torch.float32)
    places = _Chunks.of(lengths, given.value.device)
    query, key, value, beta, decay = (places.spread(one.to(dtype)) for one in _prepared(given))
    # Of tokens s <= t of a chunk: the logarithm of what is left of s when t comes. Sums of those in between;
    # differences of sums from the start would in float32 cost the decay's gradient three digits.
    left = decay[..., None].expand(*decay.shape, CHUNK).tril(-1).cumsum(-2)
    kept = left.exp().tril()
    decay = decay.cumsum(-1)
    weighted = key * beta[..., None]
    # The updates of a chunk depend on each other through a unit triangular system.
    system = (weighted @ key.transpose(-1, -2)) * kept
    wanted = torch.cat([value * beta[..., None], weighted * decay.exp()[..., None]], -1)
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    updates, reads = solved.split([value.shape[-1], key.shape[-1]], -1)
    inside = (query @ key.transpose(-1, -2)) * kept
    query = query * decay.exp()[..., None]
    key = (key * left[..., -1, :].exp()[..., None]).transpose(-1, -2)
    last = decay[..., -1].exp()[..., None, None]
    heads, sizes = value.shape[1], (key.shape[-2], value.shape[-1])
    state = value.new_zeros((len(lengths), heads, *sizes)) if states is None else states.to(dtype)
    state = state[places.order]
    found, finals, begin = [], [], 0
    for active, going_on in zip(places.active, [*places.active[1:], 0], strict=True):
        now = slice(begin, begin + active)
        new = updates[now] - reads[now] @ state
        found.append(query[now] @ state + inside[now] @ new)
        state = state * last[now] + key[now] @ new
        finals.append(state[going_on:])
        state, begin = state[:going_on], begin + active
    out = torch.cat(found).transpose(1, 2).flatten(0, 1)[places.back]
    return out.to(given.value.dtype), torch.cat(finals[::-1])[places.rank]


def gated_delta_step(given: Delta, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each of T texts: `[T, H, V]`, and the states after it; states `[T, H, K, V]` as above."""
    query, key, value, beta, decay = (one.to(states.dtype) for one in _prepared(given))
    states = states * decay.exp()[..., None, None]
    known = (key[..., None, :] @ states).squeeze(-2)
    states = states + key[..., None] * ((value - known) * beta[..., None])[..., None, :]
    return (query[..., None, :] @ states).squeeze(-2).to(given.value.dtype), states


def _prepared(given: Delta) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys of length 1, one for each value head, and queries divided by √K; the rest as it is."""
    query, key = _of_length_one(given.query), _of_length_one(given.key)
    repeats = given.value.shape[1] // key.shape[1]
    if repeats > 1:
        query, key = query.repeat_interleave(repeats, dim=1), key.repeat_interleave(repeats, dim=1)
    return query * query.shape[-1] ** -0.5, key, given.value, given.beta, given.decay


def _by_torch(
    fields: Sequence[torch.Tensor], call: Call, before: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The torch form as a kernel of `delta_branches`."""
    out, last = gated_delta(Delta(*fields), call.on_host.diff().tolist(), before)
    return out, last if call.keeps else None


def _of_length_one(values: torch.Tensor) -> torch.Tensor:
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return wide * (wide.square().sum(-1, keepdim=True) + _NORM_EPS).rsqrt()


class _Chunks(NamedTuple):
    """Texts cut into chunks: the first chunk of each, longest text first, then each second one …"""

    index: torch.Tensor
    """int64 `[chunks * CHUNK]`: the token in each place; T where there is none."""
    back: torch.Tensor
    """int64 `[T]`: the place of each token."""
    active: list[int]
    """Texts that have a first, second … chunk."""
    order: torch.Tensor
    """int64 `[texts]`, by number of chunks."""
    rank: torch.Tensor
    """int64 `[texts]`: where each text is in `order`."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "_Chunks":
        sizes = np.asarray(lengths, np.int64)
        counts = -(-sizes // CHUNK)
        order = np.argsort(-counts, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        active = (counts[:, None] > np.arange(counts.max())).sum(0)
        first = np.cumsum(active) - active
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chunk = first[within // CHUNK] + np.repeat(rank, sizes)
        back = chunk * CHUNK + within % CHUNK
        index = np.full(active.sum() * CHUNK, sizes.sum())
        index[back] = np.arange(sizes.sum())
        index, back, order, rank = (to_device(one, device) for one in (index, back, order, rank))
        return cls(index, back, active.tolist(), order, rank)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """`[T, H, …]` to `[chunks, H, CHUNK, …]`; 0 where there is no token, which changes no state."""
        padded = torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
        return padded[self.index].unflatten(0, (-1, CHUNK)).transpose(1, 2)


def _on_card(values: torch.Tensor) -> bool:
    return values.is_cuda


@cache
def _say_slow() -> None:
    line = "layers of gated DeltaNet take torch's own form: a few launches for each %d tokens of a text; %s"
    log.warning(line, CHUNK, kernel_missing(), extra=REMARK)


def kernel_missing() -> Missing | None:
    """Why this host cannot use the kernel of flash-linear-attention on its cards; None if it can."""
    if not torch.cuda.is_available():
        return Missing("there is no GPU", "torch's form is for CPUs")
    return delta_kernel.kernel_missing(hopper=torch.cuda.get_device_capability()[0] == 9)


def _by_kernel(given: Sequence[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
    """`[1, T, H, V]` of Delta's five, each with a first dimension of 1."""
    query, key, value, decay, beta = given
    options = {"use_qk_l2norm_in_kernel": True, "cu_seqlens": offsets}
    return delta_kernel.chunk_rule()(query, key, value, g=decay, beta=beta, **options)[0]


# One operation whatever the row, so that compiled layers have one graph. Its backward computes the forward
# once more: that takes only public names of the package, and nothing but the arguments is kept.
@torch.library.custom_op(NAME, mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """As Delta, each with a first dimension of 1; offsets int32 `[texts + 1]`. Returns `[1, T, H, V]`."""
    return _by_kernel((query, key, value, decay, beta), offsets)


@torch.library.custom_op(f"{NAME}_backward", mutates_args=())
def _attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    offsets: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    with torch.enable_grad():
        # The kernel is one autograd function, and only such are recorded inside of an operation.
        given = [one.detach().requires_grad_() for one in (query, key, value, decay, beta)]
        found = torch.autograd.grad(_by_kernel(given, offsets), given, gradient)
    return found[0], found[1], found[2], found[3], found[4]


_attend.register_fake(fake_result)
_attend_backward.register_fake(fake_gradients)


def _save(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return *_attend_backward(gradient.contiguous(), *ctx.saved_tensors), None


_attend.register_autograd(_differentiate, setup_context=_save)
