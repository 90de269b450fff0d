"""One optimizer step: gradients of micro-batches add up to the gradient of the whole step.

`build_learner` makes the `Learner` of a rank. The loop calls `accumulate` for each micro-batch and `apply`
once a step; the broadcaster reads `weights`, and scores the probe of the parity check with `score_rows`.

Legend of tensor names: N labelled tokens of a micro-batch, S samples, P tokens of a row of the probe.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.gradient_sums import GradientSums
from pipelinerl.finetune.metrics import token_statistics
from pipelinerl.finetune.mismatch import age_groups, mismatch_sums
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.finetune.rl.losses import Coefficients, LossInputs, total_loss
from pipelinerl.finetune.rl.losses.base import kl_N
from pipelinerl.finetune.rl.targets import Targets
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.eight_bits import attention_in
from pipelinerl.modeling.logprobs import TokenScores
from pipelinerl.modeling.lora import adapter_tensors
from pipelinerl.modeling.masters import MasterWeights
from pipelinerl.modeling.model import active_parameters, distinct_parameters
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.prefixes import distinct_pairs
from pipelinerl.modeling.routing import Routers
from pipelinerl.modeling.row import Row
from pipelinerl.modeling.row_slices import Slice, filled_row, gathered
from pipelinerl.modeling.sharding import gathered_weights, is_sharded, reshard, whole
from pipelinerl.modeling.tensors import to_device
from pipelinerl.modeling.upcast import Float32Activations
from pipelinerl.weights.parity import PROBE_PIECE, probe_starts


@dataclass(frozen=True, slots=True)
class MicroStatistics:
    """float32 on the device: the vector of `token_statistics`, `_text_means` `[3, S]`, `mismatch_sums`."""

    vector: torch.Tensor
    texts_3S: torch.Tensor
    mismatch: torch.Tensor
    routing: torch.Tensor | None = None
    """Of a mixture of experts, `Routers.measured` and behind it the auxiliary loss."""


@dataclass(slots=True, kw_only=True)
class Learner:
    """The policy and what changes it.

    With `masters` the model computes in bfloat16 and the optimizer changes its float32 masters; logits,
    losses and optimizer state are float32 either way. With a value head the advantage is R - V, V at the
    position that predicts the token.
    """

    policy: Policy
    optimiser: torch.optim.Optimizer
    scheduler: LambdaLR
    rl: RLConfig
    ranks: Ranks
    masters: MasterWeights | None = None
    gradient_clipping_threshold: float | None = None
    bfloat16: bool = False
    """Whether the policy computes in bfloat16."""
    whole_on_host: bool = False
    """Whether the copy of sharded weights for the engines lies in host memory between two updates."""
    computes_on: torch.device | None = None
    """Where the policy computes; None: where its parameters lie."""

    routers: Routers | None = None
    """Of a mixture of experts."""
    adapters_alone: bool = False
    """Whether engines are sent adapters without the weights that they belong to."""
    eight_bits: str | None = None
    """torch's type in which engines keep keys and values, where that has 8 bits."""
    probe: np.ndarray | None = None
    """Ids on which engines and this policy are compared, int32 `[N, P]`; drawn at the first use."""
    sums: GradientSums | None = field(default=None, init=False)
    """Of several ranks that hold all weights each; shards are summed by FSDP."""
    _gathered: list[tuple[str, torch.Tensor]] = field(default_factory=list, init=False)
    _on_host: dict[str, torch.Tensor] = field(default_factory=dict, init=False)
    _moved: torch.cuda.Stream | None = field(default=None, init=False)
    _rounding: float | None = field(default=None, init=False)
    _scored: dict[bytes, np.ndarray] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.ranks.count > 1 and not self.sharded:
            masters = dict(self.masters.pairs) if self.masters is not None else {}
            trained = [p for p in self.policy.parameters() if p.requires_grad]
            held = [(p, masters.get(p, p)) for p in trained]
            self.sums = GradientSums(self.ranks, held, beside=self.ranks.row is None)

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    @property
    def value_head(self) -> nn.Linear | None:
        return self.policy.value_head

    @property
    def device(self) -> torch.device:
        return self.computes_on or next(self.model.parameters()).device

    @property
    def sharded(self) -> bool:
        """Whether this rank holds shards; if so, every method here is collective."""
        return is_sharded(self.policy)

    @property
    def learning_rate(self) -> float:
        return float(self.optimiser.param_groups[0]["lr"])

    def accumulate(
        self, batch: PipelineBatchEncoding, targets: Targets, coefficients: Coefficients
    ) -> MicroStatistics | None:
        """Add one micro-batch's gradient; returns its statistics, still on the device.

        A batch without targets (a sentinel) adds nothing and gives None; a sharded policy takes part in its
        forward and backward all the same, because the other ranks need its shards. Behind the last
        micro-batch of a step (`batch.is_last`) comes `apply`.
        """
        if len(targets.positions) == 0:
            if self.sharded:
                self.take_part(batch)
            return None
        with self._routed(batch):  # the backward may compute layers again
            inputs = self._loss_inputs(batch, targets)
            loss = total_loss(inputs, self.rl, coefficients)
            balance, routing = self._balance(batch)
            differs = self._differing(batch, targets)
            if self.sums is not None and batch.is_last:
                self.sums.begin()
            whole_loss = loss if balance is None else loss + balance
            # Sharded, gradients are averaged over ranks; the objective is their sum.
            (whole_loss * self.ranks.count if self.sharded else whole_loss).backward()
        count = self._move(targets.count)
        vector = token_statistics(inputs, count, loss.detach(), self.rl, batch.n_tokens)
        mismatch = mismatch_sums(inputs.log_ratio_N.detach(), self._move(age_groups(targets)), differs)
        return MicroStatistics(vector, _text_means(inputs, count, self.rl), mismatch, routing)

    def _routed(self, batch: PipelineBatchEncoding) -> AbstractContextManager[None]:
        """In which tokens go to the experts that their engine sent them to, if that is wanted and known."""
        if self.routers is None:
            return nullcontext()
        routes = None if self.rl.routing == "free" else batch.routes
        return self.routers.replaying(routes, batch.unrouted, self.device)

    def _differing(self, batch: PipelineBatchEncoding, targets: Targets) -> torch.Tensor | None:
        """bool `[N]`: some router would not have sent the target's predictor to the engine's experts."""
        differs = None if self.routers is None or self.ranks.row is not None else self.routers.differing()
        if differs is None:
            return None
        return differs.index_select(0, self._move(self._row(batch).computed(targets.positions - 1)))

    def _balance(self, batch: PipelineBatchEncoding) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The weighted auxiliary loss of the forward that is done, and what its routers did."""
        if self.routers is None:
            return None, None
        self.routers.settle()
        measured = self.routers.measured()
        if not self.rl.router_aux_loss_coef:
            return None, torch.cat([measured, measured.new_full((1,), np.nan)])
        # A mean over tokens; micro-batches of a step count by their texts.
        loss = self.routers.balance_loss()
        weight = self.rl.router_aux_loss_coef * batch.n_texts / batch.step_texts
        return weight * loss, torch.cat([measured, loss.detach()[None]])

    def apply(self) -> float:
        """Sum gradients over ranks, clip, step optimizer and scheduler; returns the norm before clipping.

        Raises FloatingPointError, leaving the weights alone, when the norm is not finite.
        """
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        if self.sums is not None:
            self.sums.finish()
        limit = self.gradient_clipping_threshold
        norm = float(whole(clip_grad_norm_(parameters, float("inf") if limit is None else limit)))
        # Before anything is changed: the optimizer's moments would keep a NaN for good.
        if not np.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm}; the weights were not changed")
        self.optimiser.step()
        if self.masters is not None:
            self.masters.publish()  # the model computes with rounded copies of what has just changed
        self.scheduler.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm

    @property
    def elements(self) -> int:
        """Numbers that `weights` holds."""
        named = self.model.named_parameters()
        return sum(p.numel() for name, p in named if is_adapter(name) == self.adapters_alone)

    @property
    def active_elements(self) -> int:
        """Of the weights, those that one token passes through: as many experts as it is given."""
        return active_parameters(self.model)

    def prepare_publishing(self) -> None:
        """Collective, before the main rank calls `weights`, `score_rows` of the probe or `probe_rounding`.

        No effect unless sharded.

        The main rank keeps a whole copy of the weights, so that it can publish the same version again.
        """
        if not self.sharded:
            return
        main, self._gathered = self.ranks.is_main, []
        self._gathered = [(name, tensor) for name, tensor in gathered_weights(self.policy) if main]
        probe = self.probe_ids()
        self._scored, self._rounding = {probe.tobytes(): self._score_rows(probe)}, None
        self._rounding = self.probe_rounding()

    def after_publishing(self) -> None:
        """With `whole_on_host`, move the whole copy to host memory beside what the card does next.

        It stays there for an engine that is started again; the card's memory is free for activations.
        """
        if not self.whole_on_host or not self._gathered:
            return
        gathered, self._gathered = self._gathered, []
        beside = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        with torch.cuda.stream(beside) if beside is not None else nullcontext():
            if beside is not None:
                beside.wait_stream(torch.cuda.default_stream(self.device))
            for name, tensor in gathered:
                self._gathered.append((name, self._host_copy(name, tensor)))
                if beside is not None:
                    tensor.record_stream(beside)  # its memory is not used again before the copy has ended
        self._moved = beside

    def _host_copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._on_host.get(name)
        if kept is None:  # once: pinning takes long
            kept = self._on_host[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return kept.copy_(tensor, non_blocking=True)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors that an engine has to receive, in the type that the trainer computes with."""
        if self.adapters_alone:
            return iter(adapter_tensors(self.model, torch.Tensor.detach).items())
        if not self.sharded:
            return distinct_parameters(self.model)
        if self._moved is not None:  # an engine that was started again may ask before the copy has ended
            self._moved.synchronize()
        return iter(self._gathered)

    def probe_ids(self) -> np.ndarray:
        """Ids that this policy would say, int32 `[4, 64]`; the first call draws them (collective if sharded).

        Not random ids: those are so unlikely to a trained model that rounding alone moves them far.
        """
        if self.probe is None:
            self.probe = self._drawn(probe_starts(self._vocabulary))
        return self.probe

    def probe_rounding(self) -> float:
        """How far bfloat16 moves the probe's log-probabilities from float32 activations, mean in nats.

        Where engines keep keys and values in 8 bits, bfloat16 and attention in these: it is that which an
        engine's scores have, and rounding to 4 bits of precision instead of 8 is the larger part.
        """
        if self._rounding is not None:
            return self._rounding
        ids, kind = self.probe_ids(), self.device.type
        with Float32Activations() if self.bfloat16 else nullcontext():
            exact = self._score_rows(ids) if self.bfloat16 else self.score_rows(ids)
        usual = self.bfloat16 and self.eight_bits is None
        computes = nullcontext() if self.bfloat16 else torch.autocast(kind, torch.bfloat16)
        with computes, attention_in(self.eight_bits):
            rounded = self.score_rows(ids) if usual else self._score_rows(ids)
        return float(np.abs(rounded.astype(np.float64) - exact).mean())

    @property
    def _vocabulary(self) -> int:
        return int(self.model.config.get_text_config(decoder=True).vocab_size)

    @torch.no_grad()
    def _drawn(self, starts: np.ndarray) -> np.ndarray:
        """Rows of pieces, each of which the policy continues from one of `starts` int32 `[N, pieces]`."""
        generator = np.random.default_rng(21)
        shape = starts.size, self._vocabulary
        rows = torch.as_tensor(starts.reshape(-1, 1), dtype=torch.int64, device=self.device)
        self.model.eval()
        with torch.compiler.set_stance("force_eager"):
            while rows.shape[1] < PROBE_PIECE:
                noise = torch.as_tensor(generator.gumbel(size=shape), dtype=torch.float32, device=self.device)
                rows = torch.cat((rows, self.policy.next_tokens(rows, noise)[:, None]), 1)
        self.model.train()
        reshard(self.policy)
        return rows.reshape(len(starts), -1).to(torch.int32).cpu().numpy()

    def score_rows(self, ids: np.ndarray) -> np.ndarray:
        """Log-probabilities at temperature 1 of tokens 1.. of equal-length rows: `[N, P]` to `[N, P - 1]`."""
        known = self._scored.get(ids.tobytes())
        return self._score_rows(ids) if known is None else known

    @torch.no_grad()
    def _score_rows(self, ids: np.ndarray) -> np.ndarray:
        rows = torch.as_tensor(ids, dtype=torch.int64, device=self.device)
        positions = torch.arange(rows.shape[1], device=self.device).expand_as(rows)
        self.model.eval()
        predictors = torch.arange(rows.numel(), device=self.device).reshape(rows.shape)[:, :-1].reshape(-1)
        with torch.compiler.set_stance("force_eager"):  # a few rows are not worth another compilation
            scores, _ = self.policy(rows, positions, None, predictors, rows[:, 1:].reshape(-1))
        self.model.train()
        reshard(self.policy)
        return scores.logprobs.reshape(rows.shape[0], -1).cpu().numpy()

    def _loss_inputs(self, batch: PipelineBatchEncoding, targets: Targets) -> LossInputs:
        row, terms = self._row(batch), None
        predictors, labels = row.computed(targets.positions - 1), targets.labels
        if row.prefixes is not None:  # samples that agree up to a label and on it have one score for it
            predictors, labels, terms = distinct_pairs(predictors, labels)
        scores, values = self._scores(row, predictors, labels)
        if terms is not None:
            at = self._move(terms)
            scores = TokenScores(*(one.index_select(0, at) for one in scores))
            values = None if values is None else values.index_select(0, at)
        rewards = self._move(targets.rewards)
        advantages = self._move(targets.advantages) if values is None else rewards - values.detach()
        return LossInputs(
            logprobs_N=scores.logprobs,
            entropy_N=scores.entropy,
            old_logprobs_N=self._move(targets.old_logprobs),
            ref_logprobs_N=self._move(targets.ref_logprobs),
            advantages_N=advantages,
            rewards_N=rewards,
            weight_N=self._move(targets.weight),
            kl_weight_N=self._move(targets.kl_weight),
            text_N=self._move(targets.sample),
            n_texts=targets.n_samples,
            values_N=values,
        )

    def _scores(
        self, row: Row, predictors: np.ndarray, labels: np.ndarray
    ) -> tuple[TokenScores, torch.Tensor | None]:
        """What the policy says of a row's targets, on every rank that computes a slice of it (collective)."""
        policy, group = self.policy, self.ranks.row
        segments = row.segments(self.device, policy.window, policy.kernel)
        segments.ranks = group
        part = Slice.of(row, predictors, labels, group)
        scores, values = self.policy(
            self._move(part.input_ids),
            self._move(part.position_ids),
            segments,
            self._move(part.predictors),
            self._move(part.labels),
            self.rl.temperature,
        )
        if group is None:
            return scores, values
        columns = scores if values is None else (*scores, values)
        logprobs, entropy, *rest = gathered(
            columns, self._move(part.places), self._move(part.own), part.most, group
        )
        return TokenScores(logprobs, entropy), rest[0] if rest else None

    def take_part(self, batch: PipelineBatchEncoding) -> None:
        """A forward and backward whose gradients are 0 (collective if sharded, or if rows are shared)."""
        row = self._row(batch)
        scores, values = self._scores(row, row.position_ids[0, :2], row.input_ids[0, :2])
        loss = scores.logprobs.sum() if values is None else scores.logprobs.sum() + values.sum()
        (0.0 * loss).backward()

    def _row(self, batch: PipelineBatchEncoding) -> Row:
        columns = batch.input_ids[0], batch.position_ids[0], batch.seq_boundaries, batch.prefixes
        row = self.ranks.row
        return Row.of(*columns) if row is None else filled_row(*columns, row.count)

    def _move(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self.device)


@torch.no_grad()
def _text_means(inputs: LossInputs, count_N: torch.Tensor, rl: RLConfig) -> torch.Tensor:
    """float32 `[3, S]`: each sample's means of the KL to the reference, the advantage and |log ratio|."""
    values = torch.stack([kl_N(inputs, rl), inputs.advantages_N, inputs.log_ratio_N.abs()]) / count_N
    return values.new_zeros(3, inputs.n_texts).index_add(1, inputs.text_N, values)
