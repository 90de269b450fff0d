"""Sums gradients over unsharded ranks in buckets, beside the backward pass of a step's last micro-batch.

`Learner` says when that pass begins and waits for the sums before it clips. Hooks on the parameters tell when
a gradient is final; a bucket whose gradients are final is summed while the pass goes on with earlier layers.

torch's DistributedDataParallel does not fit. It would sum the bfloat16 gradients of one micro-batch, while
the gradient of a step is the float32 sum that the masters hold over all its micro-batches. And it wants as
many backward passes of every rank, while here a rank may have fewer micro-batches or a sentinel alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from pipelinerl.base.waits import Wait
from pipelinerl.finetune.ranks import HOST_DEADLINE, Ranks

BUCKET_BYTES = 32 * 2**20
"""Small gradients are summed together from this size on; a larger one is summed alone, where it lies."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which gradients are summed together: indices of parameters, in the order of the collectives.

    Only the first `early` buckets may be summed before the backward pass is over.
    """

    buckets: list[list[int]]
    early: int


def plan_buckets(sizes: Sequence[int], finished: Mapping[int, int], limit: int) -> Plan:
    """Cut parameters of `sizes` bytes into buckets of at least `limit` bytes.

    `finished` maps parameters to how often one backward pass added to their gradients, in the order in which
    that began. A parameter that the pass did not reach, or reached several times (nested passes of reentrant
    checkpointing), cannot tell when its gradient is final: it is summed after the pass.
    """
    once = [index for index, times in finished.items() if times == 1]
    early = _cut(once, sizes, limit)
    late = _cut([index for index in range(len(sizes)) if finished.get(index) != 1], sizes, limit)
    return Plan(early + late, len(early))


def _cut(indices: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Buckets in the order in which their last gradients become final."""
    buckets: list[list[int]] = []
    small: list[int] = []
    for index in indices:
        if sizes[index] >= limit:
            buckets.append([index])
            continue
        small.append(index)
        if sum(sizes[one] for one in small) >= limit:
            buckets.append(small)
            small = []
    return [*buckets, small] if small else buckets


@dataclass(slots=True)
class _Step:
    """The sums of one optimizer step on this rank."""

    others: dist.Work
    """Complete once every rank has the data of its last micro-batch."""
    finished: Counter[int] = field(default_factory=Counter)
    filled: dict[int, tuple[torch.Tensor, torch.cuda.Event | None]] = field(default_factory=dict)
    """By bucket: its gradients in one piece, and when they are final on the device."""
    sums: list[dist.Work] = field(default_factory=list)
    """Of the first buckets, in order."""


class GradientSums:
    """Replaces the gradient of every trained parameter by its sum over ranks, once a step.

    The collectives of all ranks must be the same in the same order, whatever their backward passes do. So one
    plan holds for all: the order in which gradients became final in the first step, on the rank where most
    did. A bucket is launched when it and all before it are final; `finish` launches what is left, so that a
    rank without a backward pass takes part.

    The gradients of a bucket are copied into one tensor and from then on are views of it: memory for one
    bucket is needed twice, for no longer than the copy. Sums of two ranks do not depend on the buckets, bit
    for bit. With more ranks the order in which a collective adds depends on where in its tensor a number
    lies, so that the last bit may differ from sums of single gradients.
    """

    def __init__(
        self, ranks: Ranks, trained: Sequence[tuple[nn.Parameter, nn.Parameter]], beside: bool = True
    ) -> None:
        """`trained`: parameters of the model, and the one that holds the gradient (itself, or its master).

        Without `beside` sums begin behind the backward pass: where that has collectives of its own, the order
        of both would differ from rank to rank.
        """
        self._beside = beside
        self._ranks = ranks
        self._holders = [holder for _, holder in trained]
        self._plan: Plan | None = None
        self._bucket_of: dict[int, int] = {}
        self._step: _Step | None = None
        self._stream: torch.cuda.Stream | None = None
        for index, (parameter, _) in enumerate(trained):
            # Hooks run in the order of their registration: the masters' own has added the gradient before.
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._add(index))

    def begin(self) -> None:
        """The backward pass that comes next is the last one of this step on this rank."""
        assert self._step is None, "a step has one last micro-batch; `finish` ends the step"
        self._step = _Step(self._ranks.arrive())

    def finish(self) -> None:
        """Sum what is not summed yet; returns when the sums are there (on a GPU: for what is queued next)."""
        if self._step is None:  # this rank had no backward pass
            self.begin()
        step = self._step
        assert step is not None
        with Wait("the last micro-batches of the other trainer ranks", HOST_DEADLINE.total_seconds()):
            step.others.wait()
        plan = self._plan or self._agree(step)
        for bucket in range(len(step.sums), len(plan.buckets)):
            if bucket not in step.filled:
                self._fill(step, bucket, plan)
            self._launch(step, bucket)
        with Wait("the sums of gradients over trainer ranks", HOST_DEADLINE.total_seconds()):
            for one in step.sums:
                one.wait()
        self._step = None

    def _agree(self, step: _Step) -> Plan:
        """Collective: the plan of this step, kept if some rank has had a backward pass."""
        orders = self._ranks.gather(step.finished)
        plan = plan_buckets([one.nbytes for one in self._holders], max(orders, key=len), BUCKET_BYTES)
        if any(orders):
            self._plan = plan
            early = enumerate(plan.buckets[: plan.early])
            self._bucket_of = {index: bucket for bucket, members in early for index in members}
        return plan

    def _add(self, index: int) -> None:
        """A backward pass has added to a gradient."""
        step, plan = self._step, self._plan
        if step is None:  # a later micro-batch will add to it
            return
        step.finished[index] += 1
        if plan is None or (bucket := self._bucket_of.get(index)) is None:
            return
        if step.finished[index] > 1:
            shape = tuple(self._holders[index].shape)
            raise RuntimeError(
                f"a backward pass added twice to the gradient of a parameter of shape {shape}, and in the "
                "first step once, so that its sum over ranks may lack the second; set "
                "finetune.reentrant_checkpointing=false"
            )
        if all(step.finished[one] for one in plan.buckets[bucket]):
            self._fill(step, bucket, plan)
        # NCCL gives up on a rank after minutes, and samples may come later than that: before the other ranks
        # have theirs, nothing is launched.
        while self._beside and len(step.sums) in step.filled and step.others.is_completed():
            self._launch(step, len(step.sums))

    @torch.no_grad()
    def _fill(self, step: _Step, bucket: int, plan: Plan) -> None:
        """Put the final gradients of a bucket into one piece; a parameter without one has zeros."""
        holders = [self._holders[index] for index in plan.buckets[bucket]]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in holders]
        flat = gradients[0]
        if len(holders) > 1:
            flat = torch.cat([one.flatten() for one in gradients])
            pieces = flat.split([one.numel() for one in holders])
            gradients = [piece.view_as(holder) for piece, holder in zip(pieces, holders, strict=True)]
        for holder, gradient in zip(holders, gradients, strict=True):
            holder.grad = gradient
        final = torch.cuda.current_stream(flat.device).record_event() if flat.is_cuda else None
        step.filled[bucket] = flat, final

    def _launch(self, step: _Step, bucket: int) -> None:
        """Begin the sum of a bucket, behind its own gradients alone.

        The host runs ahead of a GPU. A collective launched on the stream of the backward pass would wait for
        all that was queued by then, often the whole pass.
        """
        flat, final = step.filled[bucket]
        with nullcontext() if final is None else torch.cuda.stream(self._behind(final, flat.device)):
            step.sums.append(dist.all_reduce(flat, async_op=True))

    def _behind(self, event: torch.cuda.Event, device: torch.device) -> torch.cuda.Stream:
        """A stream of this object's own, in which nothing runs before `event`."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_event(event)
        return self._stream
