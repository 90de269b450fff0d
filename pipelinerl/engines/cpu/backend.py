"""The back end of the embedded engine: one packed forward per step, over KV slots that its scheduler fills.

Made by `__main__`; `serving/thread.py` calls it between commands.
"""

import torch

from pipelinerl.engines.cpu.model import PackedModel
from pipelinerl.engines.cpu.scheduler import Chunk, Scheduler
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.serving.backend import Backend, Drawn
from pipelinerl.engines.serving.module_weights import ModuleWeights
from pipelinerl.engines.serving.sampling import sample, score


class CpuBackend(Backend):
    """A causal LM of transformers on the CPU."""

    queue: Scheduler

    def __init__(self, settings: EngineSettings) -> None:
        """Raises UnsupportedModel, OSError or ValueError for a folder that it cannot load."""
        self.model = model = PackedModel(settings)
        self._threads = settings.threads
        self._shown = f"{settings.dtype}, {settings.threads} threads, {model.forward_name}"
        scheduler = Scheduler(
            settings.max_num_seqs, settings.max_prefill_tokens, settings.max_model_len, model.pool_rows
        )
        super().__init__(settings, ModuleWeights(model.module), model.config, scheduler)

    def __str__(self) -> str:
        return self._shown

    def begin(self) -> None:
        torch.set_num_threads(self._threads)

    def step(self, admit: bool) -> list[Drawn] | None:
        plan = self.queue.plan(admit=admit)
        if not (chunks := plan.chunks):
            return None
        sampling, rows = [], []
        scoring: list[tuple[Chunk, int]] = []
        row = 0
        for chunk in chunks:
            # The sequences of a request have one prompt; the first of them scores it.
            if chunk.sequence.index == 0 and chunk.sequence.request.scores_prompt:
                scoring.append((chunk, row))
            row += chunk.end - chunk.start
            if chunk.samples:
                sampling.append(chunk.sequence)
                rows.append(row - 1)
        targets = [_prompt_targets(chunk, first) for chunk, first in scoring]
        # Behind the rows that sample, since the logits are split there.
        for wanted, _ in targets:
            rows.extend(wanted)
        logits = self.model.logits(plan, rows)
        for chunk in chunks:
            chunk.sequence.computed = chunk.end
        for chunk in plan.prefills:
            self.queue.save_prefix(chunk.sequence)
        self._score_prompts(scoring, targets, logits[len(sampling) :])
        if not sampling:
            return []
        return list(zip(sampling, *sample(logits[: len(sampling)], sampling), strict=True))

    def _score_prompts(
        self,
        scoring: list[tuple[Chunk, int]],
        targets: list[tuple[list[int], list[int]]],
        logits: torch.Tensor,
    ) -> None:
        begin = 0
        for (chunk, _), (_, ids) in zip(scoring, targets, strict=True):
            if ids:
                values, ranks = score(logits[begin : begin + len(ids)], torch.tensor(ids))
                chunk.sequence.request.prompt_scores.extend(zip(values, ranks, strict=True))
                begin += len(ids)


def _prompt_targets(chunk: Chunk, first_row: int) -> tuple[list[int], list[int]]:
    """Rows of a step, and for each the prompt id after it, as far as they are not scored yet."""
    request = chunk.sequence.request
    # A cleared cache has the prompt computed a second time; what was scored then stays.
    begin = max(chunk.start, len(request.prompt_scores))
    end = min(chunk.end, request.prompt_length - 1)
    rows = [first_row + position - chunk.start for position in range(begin, end)]
    return rows, chunk.sequence.tokens[begin + 1 : end + 1].tolist() if rows else []
