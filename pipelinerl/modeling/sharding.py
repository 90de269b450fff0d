"""Sharding the policy over several ranks with torch's FSDP2 (`fully_shard`); accelerate starts the ranks.

Each decoder layer is one group that is gathered, used and let go; embedding, last norm and heads are the
root's. Parameters, gradients and optimizer state are float32 shards (dim 0); a gathered layer computes in
`param_dtype`. With `Sharding.offload` shards lie in host memory, also those of a lone rank, and are copied to
the card to be gathered. Whatever leaves the trainer (weights for engines, checkpoints) is put together again,
so it does not depend on the number of ranks.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from pipelinerl.config.finetune import Sharding
from pipelinerl.modeling.activations import decoder_layers
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.modeling.policy import Policy


def shard_policy(policy: Policy, sharding: Sharding, bfloat16: bool) -> None:
    """Shard in place over all ranks; to be called before the optimizer is built.

    A policy that lies in host memory is moved to the rank's card, layer by layer, where it has one; with
    `sharding.offload` the shards go back.
    """
    computing = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bfloat16 else None,
        reduce_dtype=torch.bfloat16 if sharding.reduce_bfloat16 else torch.float32,
        cast_forward_inputs=False,  # they have that type, unless `Float32Activations` measures its rounding
    )
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    pinned = device == "cuda"  # so that copies run beside the computation
    lies = CPUOffloadPolicy(pin_memory=pinned) if sharding.offload else OffloadPolicy()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in decoder_layers(policy.model):
        fully_shard(
            layer,
            mesh=mesh,
            mp_policy=computing,
            offload_policy=lies,
            reshard_after_forward=not sharding.keep_gathered,
        )
    fully_shard(policy, mesh=mesh, mp_policy=computing, offload_policy=lies)
    register_fsdp_forward_method(policy, "next_tokens")


def reshard(policy: Policy) -> None:
    """Let weights go after a forward without backward; no effect on a policy that is whole."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gathered_weights(policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and whole parameters in the type that the model computes with, gathered layer by layer.

    Collective: every rank iterates to the end. Adapters are merged, ties removed.
    """
    own = {name: module for name, module in policy.model.named_modules() if isinstance(module, FSDPModule)}
    for prefix, layer in own.items():
        layer.unshard()
        for name, tensor in distinct_parameters(layer):
            yield f"{prefix}.{name}", tensor.clone()
        layer.reshard()
    assert isinstance(policy, FSDPModule)
    policy.unshard()
    inside = tuple(f"{prefix}." for prefix in own)
    for name, parameter in policy.model.named_parameters():
        if not name.startswith(inside):
            yield name, parameter.detach().clone()
    policy.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The complete tensor of a shard (collective); any other tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    # Shards in host memory are put together on the card, where ranks are connected faster.
    return tensor.to(tensor.device_mesh.device_type).full_tensor()


def shard_like(full: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a complete tensor, if `parameter` is sharded and has that shape."""
    if not isinstance(parameter, DTensor) or full.shape != parameter.shape:
        return full
    mesh, placements = parameter.device_mesh, parameter.placements
    shard = distribute_tensor(full.to(mesh.device_type), mesh, placements, src_data_rank=None)
    return shard.to(parameter.device)


def is_sharded(module: nn.Module) -> bool:
    """Whether `shard_policy` was called on it."""
    return isinstance(module, FSDPModule)
