"""The gated delta rule over a row of shared prefixes: each branch goes on from its parent's state.

`delta_net` calls `branched` with the torch form, and `branched_by_kernel` on a card with the kernel of
flash-linear-attention. Both compute the calls of `branches` one behind the other; only the kernel differs.
Letters as in `delta_net` and `branches`; fields are query, key, value, decay and β of `delta_net.Delta`.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from pipelinerl.modeling import delta_kernel
from pipelinerl.modeling.branches import Branches, Call, calls_of

NAME = "pipelinerl::gated_delta_branches"
Fields = Sequence[torch.Tensor]
Kernel = Callable[[Fields, Call, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor | None]]
"""Of a call's fields `[N, …]` and float32 states `[n, H, K, V]`, or None for zeros: the result `[N, H, V]`,
and the last states if the call keeps them."""


def branched(fields: Fields, branches: Branches, kernel: Kernel) -> torch.Tensor:
    """`[U, H, V]` of fields `[U, …]`, differentiable where the kernel is."""
    return _computed(fields, _tensors(branches), kernel)


def branched_by_kernel(fields: Fields, branches: Branches) -> torch.Tensor:
    """The same on a card, as one operation."""
    query, key, value, decay, beta = fields
    return _attend(query, key, value, decay, beta, _tensors(branches))


def _tensors(branches: Branches) -> list[torch.Tensor]:
    one = branches
    return [one.rows, one.back, one.order, one.starts, one.parents, one.offsets, one.on_host, one.table]


def _computed(fields: Fields, told: list[torch.Tensor], kernel: Kernel) -> torch.Tensor:
    rows, back, order, starts = told[:4]
    placed = [_Gather.apply(one, rows, order, starts) for one in fields]
    found, states = list[torch.Tensor](), list[torch.Tensor]()
    for call in _calls(told):
        before = _begun(states, call.parents) if call.begins else None
        out, last = kernel([one[call.places] for one in placed], call, before)
        found.append(out)
        if last is not None:
            states.append(last)
    return torch.cat(found)[back]


def _begun(states: Sequence[torch.Tensor], parents: torch.Tensor) -> torch.Tensor:
    """The states that sequences begin with, those without a parent with zeros."""
    # Only leaves, which come last, may have no parent: one of zeros lies behind all that are kept.
    return torch.cat([*states, torch.zeros_like(states[0][:1])])[parents]


class _Gather(torch.autograd.Function):
    """`[U, …]` to `[P, …]`. A token's gradient is the sum over its places, in float32 and in their order."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, rows: torch.Tensor, order: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(order, starts)
        return values.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _summed(gradient, *ctx.saved_tensors), None, None, None


def _summed(gradient: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    if len(order) == len(starts):  # each token has one place
        return gradient[order]
    sums = torch.embedding_bag(gradient.flatten(1), order, starts)[0]
    return sums.view(-1, *gradient.shape[1:])


# Row after row and layer after layer gets the same few slices, because the package remembers what it computed
# for offsets by the object: other objects would make it wait for the device in each layer.
_SLICES = WeakIdKeyDictionary()


def _calls(told: list[torch.Tensor]) -> list[Call]:
    offsets = told[5]
    if (known := _SLICES.get(offsets)) is None:
        # Views would hold the tensor that they are of, which would never be forgotten then.
        known = [
            one._replace(
                offsets=one.offsets.clone(), on_host=one.on_host.clone(), parents=one.parents.clone()
            )
            for one in calls_of(*told[4:])
        ]
        _SLICES[offsets] = known
    return known  # type: ignore[no-any-return]


def _by_kernel(
    fields: Fields, call: Call, before: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    out, last = _launched([one[None] for one in fields], call, before)
    return out[0], last


def _launched(
    fields: Fields, call: Call, before: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same with a first dimension of 1, as the package has it."""
    query, key, value, decay, beta = fields
    # Every call has first and last states, needed or not: the kernel is compiled and tuned, which takes most
    # of a minute, once for each choice of those that are there.
    if before is None:
        shape = len(call.offsets) - 1, value.shape[2], key.shape[3], value.shape[3]
        before = torch.zeros(shape, dtype=torch.float32, device=value.device)
    options: dict[str, Any] = {"cu_seqlens_cpu": call.on_host} if _takes_host_offsets() else {}
    out, last = delta_kernel.chunk_rule()(
        query,
        key,
        value,
        g=decay,
        beta=beta,
        initial_state=before,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=call.offsets,
        **options,
    )
    return out, last if call.keeps else None


@cache
def _takes_host_offsets() -> bool:
    """Whether this release of the package does; it need not ask the device for them then."""
    return "cu_seqlens_cpu" in inspect.signature(delta_kernel.chunk_rule()).parameters


@torch.library.custom_op(NAME, mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    told: list[torch.Tensor],
) -> torch.Tensor:
    with torch.no_grad():
        return _computed((query, key, value, decay, beta), told, _by_kernel)


# As in `delta_net`, the forward is computed once more. The kernel is one autograd function, and only such are
# recorded inside of an operation: what lies between the calls is differentiated here.
@torch.library.custom_op(f"{NAME}_backward", mutates_args=())
def _attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    told: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    runs = list[tuple[list[torch.Tensor], torch.Tensor, torch.Tensor | None]]()

    def recorded(
        fields: Fields, call: Call, before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        taken = [*(one[None] for one in fields), *([] if before is None else [before])]
        given = [one.detach().requires_grad_() for one in taken]
        with torch.enable_grad():
            out, last = _launched(given[:5], call, None if before is None else given[5])
        runs.append((given, out, last))
        return out.detach()[0], None if last is None else last.detach()

    with torch.no_grad():
        _computed((query, key, value, decay, beta), told, recorded)
        rows, back, order, starts = told[:4]
        of_out = gradient.new_zeros((len(rows), *gradient.shape[1:])).index_copy_(0, back, gradient)
        of_states: torch.Tensor | None = None
        parts = list[tuple[torch.Tensor, ...]]()
        for call, (given, out, last) in zip(reversed(_calls(told)), reversed(runs), strict=True):
            outputs, wanted = [out], [of_out[None, call.places]]
            if last is not None and of_states is not None:
                outputs, wanted = [out, last], [*wanted, of_states[call.states]]
            found = torch.autograd.grad(outputs, given, wanted)
            parts.append(found[:5])
            if call.begins:
                if of_states is None:  # of all that are kept, and one that nobody has
                    count = sum(len(one) for _, _, one in runs if one is not None)
                    of_states = found[5].new_zeros((count + 1, *found[5].shape[1:]))
                of_states.index_put_((call.parents,), found[5], accumulate=True)
        placed = [torch.cat(one[::-1], 1)[0] for one in zip(*parts, strict=True)]
        sums = [_summed(one, order, starts) for one in placed]
    return sums[0], sums[1], sums[2], sums[3], sums[4]


def fake_result(query: Any, key: Any, value: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The form of what an operation on Delta's five returns, for a compiler."""
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def fake_gradients(gradient: Any, *given: Any) -> Any:
    """The form of what its backward returns."""
    return tuple(torch.empty_like(one, memory_format=torch.contiguous_format) for one in given[:5])


_attend.register_fake(fake_result)
_attend_backward.register_fake(fake_gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *fields, told = inputs
    ctx.save_for_backward(*fields, *told)


def _differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    found = _attend_backward(gradient.contiguous(), *saved[:5], list(saved[5:]))
    return *found, [None] * len(saved[5:])


_attend.register_autograd(_differentiate, setup_context=_save)
