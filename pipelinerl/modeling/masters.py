"""Computing in bfloat16 while the optimizer keeps float32 weights and float32 gradients.

The model's parameters become bfloat16 copies: what every matrix product reads, what engines receive, and what
log-probabilities are computed with on both sides. The float32 originals (masters) stay with the optimizer.
"""

import torch
from torch import nn


class MasterWeights:
    """Float32 masters of a model whose own parameters were replaced by copies in another dtype.

    A parameter's gradient is added to its master's float32 gradient, and freed, as soon as a backward pass
    has finished it, so that many micro-batches add up without rounding. Frozen parameters have no master.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        """Replace the parameters of `module` in place; tied parameters stay tied."""
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        """What the model computes with, and its master, of each trained parameter."""
        replaced: dict[int, nn.Parameter] = {}
        for owner in module.modules():
            for name, master in list(owner._parameters.items()):
                if master is None:
                    continue
                if id(master) not in replaced:
                    replaced[id(master)] = self._copy(master, dtype)
                owner._parameters[name] = replaced[id(master)]

    def _copy(self, master: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
        copy = nn.Parameter(master.detach().to(dtype, copy=True), requires_grad=master.requires_grad)
        if master.requires_grad:
            self.pairs.append((copy, master))

            def add_to_master(parameter: torch.Tensor) -> None:
                gradient, parameter.grad = parameter.grad, None
                if gradient is None:
                    return
                if master.grad is None:
                    master.grad = gradient.to(master.dtype)
                else:
                    master.grad += gradient

            copy.register_post_accumulate_grad_hook(add_to_master)
        return copy

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model: to be called after each optimizer step."""
        copies, masters = zip(*self.pairs, strict=True)
        torch._foreach_copy_(list(copies), list(masters))

    def master_of(self) -> dict[int, torch.Tensor]:
        """Master by the id of the model's parameter."""
        return {id(copy): master.detach() for copy, master in self.pairs}
