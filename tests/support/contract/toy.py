"""The smallest back end that keeps the contract: one sequence after the other, in transformers' own cache."""

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from pipelinerl.engines.serving.backend import Backend, Drawn, ServerSettings
from pipelinerl.engines.serving.module_weights import ModuleWeights
from pipelinerl.engines.serving.sampling import sample, score
from pipelinerl.engines.serving.sequence import Sequence


class ToyBackend(Backend):
    def __init__(self, settings: ServerSettings) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32).eval()
        super().__init__(settings, ModuleWeights(self.model), self.model.config)

    def step(self, admit: bool) -> list[Drawn] | None:
        if admit:
            self.queue.admit()
        running = list(self.queue.running)
        if not running:
            return None
        logits = torch.stack([self._computed(one) for one in running])
        return list(zip(running, *sample(logits, running), strict=True))

    @torch.inference_mode()
    def _computed(self, one: Sequence) -> torch.Tensor:
        """float32 [V]: logits of the sequence's next token."""
        if one.computed == 0:
            one.state = DynamicCache()
        ids = torch.from_numpy(one.tokens[one.computed : one.length])
        logits = self.model(ids[None], past_key_values=one.state).logits[0]
        if one.request.scores_prompt and one.index == 0:
            one.request.prompt_scores.extend(zip(*score(logits[:-1], ids[1:]), strict=True))
        one.computed = one.length
        return logits[-1]
