"""One optimizer step: gradients of micro-batches add up to the gradient of the whole step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from pipelinerl.finetune.logprobs import token_scores
from pipelinerl.finetune.masters import MasterWeights
from pipelinerl.finetune.metrics import text_means, token_statistics
from pipelinerl.finetune.model import hidden_states, output_head
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.config import RLConfig
from pipelinerl.finetune.rl.losses import Coefficients, LossInputs, total_loss
from pipelinerl.finetune.segments import Segments
from pipelinerl.finetune.targets import Targets
from pipelinerl.finetune.types import PipelineBatchEncoding
from pipelinerl.finetune.value_head import values_of


@dataclass(frozen=True, slots=True)
class MicroStatistics:
    """float32 on the device: the vector of `token_statistics`, and `text_means` `[2, S]`."""

    vector: torch.Tensor
    texts_2S: torch.Tensor


@dataclass(slots=True)
class Learner:
    """The policy and what changes it.

    With `masters` the model computes in bfloat16 and the optimizer changes its float32 masters; logits,
    losses and optimizer state are float32 either way. With a value head the advantage is R - V, V at the
    position that predicts the token.
    """

    model: PreTrainedModel
    optimiser: torch.optim.Optimizer
    scheduler: LambdaLR
    rl: RLConfig
    ranks: Ranks
    masters: MasterWeights | None = None
    gradient_clipping_threshold: float | None = None
    value_head: nn.Linear | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def learning_rate(self) -> float:
        return float(self.optimiser.param_groups[0]["lr"])

    def accumulate(
        self, batch: PipelineBatchEncoding, targets: Targets, coefficients: Coefficients
    ) -> MicroStatistics | None:
        """Add one micro-batch's gradient; returns its statistics, still on the device.

        A batch without targets (a sentinel) adds nothing, costs no forward and gives None.
        """
        if len(targets.positions) == 0:
            return None
        inputs = self._loss_inputs(batch, targets)
        loss = total_loss(inputs, self.rl, coefficients)
        loss.backward()
        count = self._move(targets.count)
        vector = token_statistics(inputs, count, loss.detach(), self.rl, batch.n_tokens)
        return MicroStatistics(vector, text_means(inputs, count, self.rl))

    def apply(self) -> float:
        """Sum gradients over ranks, clip, step optimizer and scheduler; returns the norm before clipping.

        Raises FloatingPointError, leaving the weights alone, when the norm is not finite.
        """
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.ranks.sum_gradients(parameters)
        limit = self.gradient_clipping_threshold
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit))
        if not np.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm}; the weights were not changed")
        self.optimiser.step()
        if self.masters is not None:
            self.masters.publish()
        self.scheduler.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm

    @torch.no_grad()
    def score_rows(self, ids: np.ndarray) -> np.ndarray:
        """Log-probabilities at temperature 1 of tokens 1.. of equal-length rows: `[N, P]` to `[N, P - 1]`."""
        rows = torch.as_tensor(ids, dtype=torch.int64, device=self.device)
        positions = torch.arange(rows.shape[1], device=self.device).expand_as(rows)
        self.model.eval()
        with torch.compiler.set_stance("force_eager"):  # a few rows are not worth another compilation
            hidden = hidden_states(self.model, rows, positions, None)[:, :-1]
        self.model.train()
        weight, bias = output_head(self.model)
        scores = token_scores(
            hidden.reshape(-1, hidden.shape[-1]), weight, rows[:, 1:].reshape(-1), 1.0, bias
        )
        return scores.logprobs.reshape(rows.shape[0], -1).float().cpu().numpy()

    def _loss_inputs(self, batch: PipelineBatchEncoding, targets: Targets) -> LossInputs:
        input_ids = self._move(batch.input_ids.astype(np.int64))
        position_ids = self._move(batch.position_ids.astype(np.int64))
        segments = Segments.from_offsets(batch.seq_boundaries, self.device)
        hidden = hidden_states(self.model, input_ids, position_ids, segments)[0]
        weight, bias = output_head(self.model)
        predictors = hidden[self._move(targets.positions - 1)]
        scores = token_scores(predictors, weight, self._move(targets.labels), self.rl.temperature, bias)
        values = None if self.value_head is None else values_of(self.value_head, predictors)
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
            text_N=self._move(targets.text),
            n_texts=targets.n_texts,
            values_N=values,
        )

    def _move(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor
