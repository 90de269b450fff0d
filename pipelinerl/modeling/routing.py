"""The experts that tokens went to: recorded in an engine, replayed in the trainer (routing replay, R3).

An engine and a trainer round differently, so now and then a router's next best expert wins in one of them,
and the token's probability jumps. The trainer therefore takes the engine's choice, and only that: the weight
of each expert comes from its own router, which keeps its gradient (Ma et al. 2025, arXiv:2510.11370).

Routers of transformers differ in what they do around the choice (softmax before or after, sigmoids with a
bias, factors), but all choose with one `topk`. That call is what is answered differently, so everything else
is computed as the architecture does it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from pipelinerl.modeling.activations import decoder_layers
from pipelinerl.modeling.layer_kinds import ACTIVE, EXPERTS, stated
from pipelinerl.modeling.tensors import to_device

MOST_EXPERTS = 2**15
"""Expert ids travel to a device as 16 bits with a sign."""
_ROUTERS = ("gate", "router")
_TOPK = (torch.topk, torch.Tensor.topk)
_PROBED = 4


class Top(NamedTuple):
    """What `torch.topk` returns."""

    values: torch.Tensor
    indices: torch.Tensor


class LayerChoice:
    """One router: what it is to choose, and what it chose in the last forward."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Of its decoder layer."""
        self.routes: torch.Tensor | None = None
        """int `[T, active]`, the experts to be taken where `known`."""
        self.known: torch.Tensor | None = None
        """bool `[T, 1]`."""
        self.notes = False
        """Whether a forward leaves the values below; the recomputation of one does not."""
        self.keeps_scores = False
        self.chosen: torch.Tensor | None = None
        """int16 `[T, active]`"""
        self.scores: torch.Tensor | None = None
        """`[T, experts]`, what the router chooses by, with its gradient; None unless they are kept."""
        self.differs: torch.Tensor | None = None
        """bool `[T]`: replayed, and the router itself would have chosen others."""

    def forget(self) -> None:
        """Let go of what the last forward left."""
        self.chosen = self.scores = self.differs = None

    def choose(self, scores: torch.Tensor, own: torch.Tensor) -> Top | None:
        """The replayed choice; None where the router's own stands."""
        chosen, routes, known = own, self.routes, self.known
        if routes is not None and known is not None:
            chosen = torch.where(known, routes.to(own.dtype), own)
        if self.notes:
            self.chosen = chosen.to(torch.int16)
            self.scores = scores if self.keeps_scores else None
            if chosen is not own:
                self.differs = (chosen.sort(-1).values != own.sort(-1).values).any(-1)
        return None if chosen is own else Top(scores.gather(-1, chosen), chosen)


class _Choosing(TorchFunctionMode):
    """Answers the `topk` by which a router chooses its experts."""

    def __init__(self, choice: LayerChoice, experts: int, active: int) -> None:
        super().__init__()
        self.choice, self.experts, self.active = choice, experts, active

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _TOPK:
            return found
        scores, own = (args[0] if args else (kwargs or {})["input"]), found[1]
        # Others choose groups of experts first.
        if scores.dim() != 2 or scores.shape[-1] != self.experts or own.shape[-1] != self.active:
            return found
        return self.choice.choose(scores, own) or found


@dataclass(slots=True)
class RoutingCounts:
    """What one micro-batch's routers did, or those of a step; plain values."""

    loads: np.ndarray
    """float64 `[layers, experts]`: tokens that each expert got."""
    tokens: int = 0
    """Tokens that were computed."""
    replayed: int = 0
    """Of them, those with a record."""
    differing: float = 0.0
    """Choices, one for each replayed token and layer, that the trainer's router would have made otherwise."""
    choices: int = 0
    disagreeing: int = 0
    """Tokens that samples share and that their engines sent to different experts."""
    record_bytes: int = 0
    aux: list[float] = field(default_factory=list)
    """Auxiliary loss of each micro-batch."""

    def __add__(self, other: "RoutingCounts") -> "RoutingCounts":
        return RoutingCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class Routers:
    """The routers of a mixture of experts; `of` finds them and puts itself between them and their choice."""

    def __init__(self, layers: int, experts: int, active: int) -> None:
        self.layers, self.experts, self.active = layers, experts, active
        """Decoder layers, dense ones included; experts of a layer; experts of a token."""
        self.choices: list[LayerChoice] = []
        self.probabilities = False
        """Whether routers choose by probabilities that sum up to 1; otherwise by logits."""
        self.may_balance = True
        self._replayed = 0

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Routers | None":
        """None for a dense model. Raises ValueError for one whose routers choose in a way that is not known.

        To be called once for a model, whose layers may have been compiled, and before it is sharded.
        """
        config = model.config.get_text_config(decoder=True)
        experts, active = (stated(config, names) for names in (EXPERTS, ACTIVE))
        blocks = _blocks(model) if experts > 1 else {}
        if not blocks:
            return None
        name = type(model).__name__
        if not 0 < active < experts or experts > MOST_EXPERTS:
            raise ValueError(f"{name} gives a token {active} of {experts} experts, which are not recorded")
        routers = cls(config.num_hidden_layers, experts, active)
        for number, block in blocks.items():
            routers.choices.append(_wrapped(block, LayerChoice(number), experts, active))
        routers._probe(model)
        return routers

    @torch.no_grad()
    def _probe(self, model: PreTrainedModel) -> None:
        """One forward of a few tokens, to see that every router chooses as is known here, and by what."""
        device = next(model.parameters()).device
        ids = (
            torch.arange(_PROBED, device=device)[None] % model.config.get_text_config(decoder=True).vocab_size
        )
        training = model.training
        model.eval()
        self.keep_scores(True)
        with self.noting(), torch.compiler.set_stance("force_eager"):
            model(input_ids=ids, use_cache=False)
            found = [one.scores for one in self.choices]
        self.keep_scores(False)
        model.train(training)
        if unknown := [c.number for c, one in zip(self.choices, found, strict=True) if one is None]:
            raise ValueError(
                f"{type(model).__name__} chooses {self.active} of {self.experts} experts in a way that is "
                f"not known (layer {unknown[0]})"
            )
        scores = torch.cat([one.float() for one in found if one is not None])
        sums = scores.sum(-1)
        self.probabilities = bool((scores >= 0).all() and (sums - 1).abs().max() < 1e-2)
        # A sigmoid's scores and those with a bias or masked groups are neither.
        logits = bool(torch.isfinite(scores).all() and ((scores < 0).any() or not sums.any()))
        self.may_balance = self.probabilities or logits

    def keep_scores(self, keeps: bool) -> None:
        """Whether forwards keep what `balance_loss` reads."""
        for one in self.choices:
            one.keeps_scores = keeps

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Forwards in this block note what was chosen; at its end that is forgotten."""
        for one in self.choices:
            one.notes = True
        try:
            yield
        finally:
            for one in self.choices:
                one.notes = False
                one.forget()

    def recorded(self) -> torch.Tensor:
        """What the last forward chose: int16 `[T, layers, active]`, 0 for dense layers."""
        first = self.choices[0].chosen
        assert first is not None
        out = first.new_zeros((len(first), self.layers, self.active))
        for one in self.choices:
            assert one.chosen is not None
            out[:, one.number] = one.chosen
        return out

    def check(self, routes: np.ndarray) -> None:
        """Raises ValueError for a record, `[T, layers, active]`, of another model."""
        if routes.shape[1:] != (self.layers, self.active):
            raise ValueError(
                f"routes of {routes.shape[1]} layers with {routes.shape[2]} experts each, but the policy has "
                f"{self.layers} layers and gives a token {self.active} experts; engines and trainer must "
                "have the same model"
            )
        if (most := int(routes.max(initial=0))) >= self.experts:
            raise ValueError(f"a route names expert {most}; the policy has {self.experts} in each layer")

    @contextmanager
    def replaying(
        self, routes: np.ndarray | None, unrouted: np.ndarray | None, device: torch.device
    ) -> Iterator[None]:
        """Forwards in this block, and their backward, take the experts of `routes`.

        uint8 or uint16 `[T, layers, active]`, of the T tokens that are computed; None: every router chooses
        for itself. So it does for the tokens `unrouted`, int `[m]`, and where a record names an expert
        twice, as memory does that no engine has written. Raises ValueError as `check`.
        """
        if routes is not None:
            self._set(routes, unrouted, device)
        try:
            with self.noting():
                yield
        finally:
            self._replayed = 0
            for one in self.choices:
                one.routes = one.known = None

    def _set(self, routes: np.ndarray, unrouted: np.ndarray | None, device: torch.device) -> None:
        self.check(routes)
        known = np.ones(len(routes), bool)
        if unrouted is not None:
            known[unrouted] = False
        self._replayed = int(known.sum())
        # torch has few operations for unsigned numbers of 16 bits.
        plain = routes.view(np.int16) if routes.dtype == np.uint16 else routes
        moved = to_device(np.ascontiguousarray(plain.transpose(1, 0, 2)), device)
        wanted = to_device(known, device)
        ordered = moved.sort(-1).values
        distinct = (ordered[..., 1:] != ordered[..., :-1]).all(-1) & wanted
        for one in self.choices:
            one.routes, one.known = moved[one.number], distinct[one.number, :, None]

    def settle(self) -> None:
        """The forward is done: what its backward computes again is not noted."""
        for one in self.choices:
            one.notes = False

    def differing(self) -> torch.Tensor | None:
        """bool `[T]`: tokens of the last forward that some router would have sent elsewhere."""
        found = [one.differs for one in self.choices if one.differs is not None]  # where routes are replayed
        return torch.stack(found).any(0) if found else None

    def balance_loss(self) -> torch.Tensor:
        """Auxiliary loss of the last forward (Fedus et al. 2021, eq. 4), as transformers computes it.

        Experts times the sum over experts of share of tokens and mean probability, both means over all
        layers; the number of active experts where every expert gets as much. Scalar with the gradient.
        """
        scores = [one.scores.float() for one in self.choices if one.scores is not None]
        given = [s if self.probabilities else s.softmax(-1) for s in scores]
        mean = torch.stack([probabilities.mean(0) for probabilities in given]).mean(0)
        loads = self._loads()
        return self.experts * (loads.mean(0) / len(scores[0]) * mean).sum()

    def _loads(self) -> torch.Tensor:
        """float32 `[routers, experts]`: tokens that each expert got."""
        out = []
        for one in self.choices:
            assert one.chosen is not None
            flat = one.chosen.flatten().long()
            ones = torch.ones(len(flat), device=flat.device)
            out.append(torch.zeros(self.experts, device=flat.device).scatter_add_(0, flat, ones))
        return torch.stack(out)

    @torch.no_grad()
    def measured(self) -> torch.Tensor:
        """Of the last forward, float32 on the device: tokens, replayed ones, differing choices, and loads."""
        first = self.choices[0].chosen
        assert first is not None
        differing = torch.zeros((), device=first.device)
        for one in self.choices:
            if one.differs is not None:
                differing = differing + one.differs.sum()
        counts = torch.tensor([len(first), self._replayed], dtype=torch.float32, device=first.device)
        return torch.cat([counts, differing[None].float(), self._loads().flatten()])

    def counts(self, measured: torch.Tensor) -> RoutingCounts:
        """`measured`, and behind it the auxiliary loss (NaN: none), brought to the host."""
        tokens, replayed, differing, *loads, aux = measured.double().tolist()
        choices = int(replayed) * len(self.choices)
        table = np.array(loads).reshape(len(self.choices), self.experts)
        known = [] if math.isnan(aux) else [aux]
        return RoutingCounts(table, int(tokens), int(replayed), differing, choices, aux=known)


def _blocks(model: PreTrainedModel) -> dict[int, nn.Module]:
    """The module with experts of each decoder layer that has one."""
    found: dict[int, nn.Module] = {}
    for number, layer in enumerate(decoder_layers(model)):
        for module in layer.modules():
            if isinstance(getattr(module, "experts", None), nn.Module):
                found.setdefault(number, module)
    return found


def _wrapped(block: nn.Module, choice: LayerChoice, experts: int, active: int) -> LayerChoice:
    """Put a choice into the router of a block; a plain matrix leaves the choosing to the block itself."""
    named = [getattr(block, name, None) for name in _ROUTERS]
    own = [one for one in named if isinstance(one, nn.Module) and not isinstance(one, nn.Linear)]
    router = own[0] if own else block
    forward = router.forward

    def choosing(*arguments: Any, **named: Any) -> Any:
        with _Choosing(choice, experts, active):
            return forward(*arguments, **named)

    router.forward = choosing  # type: ignore[method-assign]
    return choice
