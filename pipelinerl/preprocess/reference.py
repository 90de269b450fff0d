"""Log-probabilities under a frozen reference model, at the policy's temperature. Imports torch."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from pipelinerl.finetune.rl.batch import packed_rows
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.modeling.masters import MasterWeights
from pipelinerl.modeling.model import load_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.prefixes import Prefixes, shared_with_previous
from pipelinerl.modeling.row import Row
from pipelinerl.modeling.tensors import to_device
from pipelinerl.rollouts import MASKED_TOKEN_ID


class ReferenceScorer:
    """A frozen copy of the model that training starts from."""

    def __init__(
        self,
        model_path: str,
        temperature: float,
        seq_length: int,
        threads: int = 1,
        device: str = "cpu",
        bfloat16: bool = False,
        flash_attention: bool = True,
        share_prefixes: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        torch.set_num_threads(threads)
        model = load_model(model_path, device, trust_remote_code, flash_attention=flash_attention)
        self._policy = Policy(model.eval().requires_grad_(False))
        self._window, self._kernel = self._policy.window, self._policy.kernel
        self._temperature, self._seq_length, self._device = temperature, seq_length, device
        self._share = share_prefixes
        if bfloat16:
            MasterWeights(model)  # of frozen parameters it keeps none

    @torch.inference_mode()
    def score(self, samples: Sequence[Sample]) -> list[np.ndarray | None]:
        """float32 `[labels]` per sample; a label on the first token, which nothing predicts, gets 0."""
        out: list[np.ndarray | None] = [np.zeros(0, np.float32)] * len(samples)
        (rows,) = packed_rows(samples, self._seq_length, share=self._share)  # as the trainer's are chosen
        for row in rows:
            for index, scores in zip(row, self._score_row([samples[i] for i in row])):
                out[index] = scores
        return out

    def _score_row(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        lengths = np.array([len(sample.input_ids) for sample in samples])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        labels = np.concatenate([sample.labels for sample in samples])
        positions = np.arange(len(labels)) - np.repeat(offsets[:-1], lengths)
        learned = labels != MASKED_TOKEN_ID
        at = np.flatnonzero(learned & (positions > 0))
        ids = [sample.input_ids for sample in samples]
        prefixes = Prefixes(offsets, shared_with_previous(ids)) if self._share else None
        row = Row.of(np.concatenate(ids), positions, offsets, prefixes)
        scores, _ = self._policy(
            to_device(row.input_ids, self._device),
            to_device(row.position_ids, self._device),
            row.segments(self._device, self._window, self._kernel),
            to_device(row.computed(at - 1), self._device),
            to_device(labels[at].astype(np.int64), self._device),
            self._temperature,
        )
        spread = np.zeros(len(labels), np.float32)
        spread[at] = scores.logprobs.cpu().numpy()
        return [spread[a:b][learned[a:b]] for a, b in itertools.pairwise(offsets)]
