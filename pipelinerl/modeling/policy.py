"""The policy as one module: from packed tokens to scores of their targets, and the value head's opinion."""

import torch
from torch import nn
from transformers import PreTrainedModel

from pipelinerl.modeling.capped_attention import capped
from pipelinerl.modeling.delta_net import convolution_width
from pipelinerl.modeling.logprobs import TokenScores, token_scores
from pipelinerl.modeling.model import hidden_states, logit_cap, logit_scale, output_head, sliding_window
from pipelinerl.modeling.segments import Segments


class Policy(nn.Module):
    """Everything that is trained. Its forward uses every parameter, so that it can be sharded as a whole."""

    def __init__(self, model: PreTrainedModel, value_head: nn.Linear | None = None) -> None:
        super().__init__()
        self.model, self.value_head = model, value_head
        self.window = sliding_window(model)
        """Of its layers that have one, for the segments of rows."""
        self.kernel = convolution_width(model)
        """Tokens that the convolutions of its layers with a state look at, for the same."""

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        segments: Segments | None,
        predictors: torch.Tensor,
        targets: torch.Tensor,
        temperature: float = 1.0,
    ) -> tuple[TokenScores, torch.Tensor | None]:
        """Scores of `targets` int64 `[N]`, which the hidden states at `predictors` int64 `[N]` predict.

        input_ids and position_ids int64 `[B, L]`; predictors are indices into the `B * L` flattened rows.
        Values are float32 `[N]`, of the same positions; None without a value head.
        """
        hidden = hidden_states(self.model, input_ids, position_ids, segments)
        # Not hidden[predictors], whose backward sorts the indices.
        chosen = hidden.flatten(0, 1).index_select(0, predictors)
        weight, bias = output_head(self.model)
        scale, cap = temperature / logit_scale(self.model), logit_cap(self.model)
        cap = None if cap is None else cap / temperature
        scores = token_scores(chosen, weight, targets, scale, bias, cap=cap)
        if self.value_head is None:
            return scores, None
        head = self.value_head  # in float32 whatever it was loaded as
        return scores, nn.functional.linear(chosen.float(), head.weight.float(), head.bias.float())[:, 0]

    def next_tokens(self, input_ids: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """One token behind each row, int64 `[B]`, of input_ids int64 `[B, L]`.

        noise float32 `[B, V]` is added to the logits: Gumbel noise draws from the model's own distribution.
        """
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        hidden = hidden_states(self.model, input_ids, position_ids, None)[:, -1]
        weight, bias = output_head(self.model)
        logits = nn.functional.linear(hidden.to(weight.dtype), weight, bias)
        own = capped(logits.float() * logit_scale(self.model), logit_cap(self.model))
        return (own + noise).argmax(-1)
