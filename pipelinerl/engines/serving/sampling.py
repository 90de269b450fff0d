"""The next token of every sequence of a step, and its log-probability.

Gumbel-max (Gumbel 1954; Maddison et al. 2014): argmax(log p + g) with g = -log(-log u) is a draw from p. The
noise comes from a generator of each sequence, so that it does not depend on who else is in the batch.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch

from pipelinerl.engines.answers import LOGPROB_FLOOR
from pipelinerl.engines.serving.sequence import Sequence


@torch.inference_mode()
def sample(logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> tuple[list[int], list[float]]:
    """Draw one id per row of float32 `logits` [B, V]; its log-probability under the distribution drawn from.

    Temperature 0 takes the most likely id and reports its log-probability at temperature 1. A sequence whose
    request asks for `logprobs: 1` is told the most likely id as well.
    """
    _penalise(logits, sequences)
    temperatures = np.array([one.request.sampling.temperature for one in sequences], dtype=np.float32)
    greedy = temperatures == 0.0
    # Sampling for training is mostly at temperature 1, which needs no pass over the logits.
    if (temperatures[~greedy] != 1.0).any():
        divisors = torch.from_numpy(np.where(greedy, np.float32(1.0), temperatures))
        logits = logits / divisors[:, None]
    _reshape(logits, sequences)
    logprobs = logits.log_softmax(-1)
    keys = logprobs if greedy.all() else logprobs + _noise(logprobs.shape[1], sequences, greedy)
    ids = keys.max(-1).indices
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    for row, one in enumerate(sequences):
        if one.request.sampling.logprobs:  # the pipeline asks for 0, and pays nothing
            value, token = logprobs[row].max(-1)
            one.likeliest.append((int(token), max(float(value), LOGPROB_FLOOR)))
    return ids.tolist(), chosen.tolist()


@torch.inference_mode()
def score(logits: torch.Tensor, targets: torch.Tensor) -> tuple[list[float], list[int]]:
    """Log-probability at temperature 1 and rank (1 = most likely) of `targets` [B] under `logits` [B, V]."""
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, targets[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    return chosen[:, 0].tolist(), ranks.tolist()


def _noise(vocab_size: int, sequences: SequenceOf[Sequence], greedy: np.ndarray) -> torch.Tensor:
    """Gumbel noise [B, V]; zero for greedy rows.

    u is a multiple of 2^-24 in [0, 1): u = 0 gives -inf, that id is not drawn, and the noise ends at 16.6, so
    a probability is wrong by less than 6e-8.
    """
    uniform = np.empty((len(sequences), vocab_size), dtype=np.float32)
    for row, one in enumerate(sequences):
        if not greedy[row]:
            one.generator.random(dtype=np.float32, out=uniform[row])
    noise = torch.from_numpy(uniform)
    noise.log_().neg_().log_().neg_()
    if greedy.any():
        noise[torch.from_numpy(greedy)] = 0.0
    return noise


def _penalise(logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> None:
    """Lower, in place, logits of ids that occurred, before the temperature, as vLLM does.

    Repetition (Keskar et al. 2019) counts prompt and output, presence and frequency the output alone.
    """
    for row, one in enumerate(sequences):
        if not one.request.penalised:
            continue
        fields, prompt = one.request.sampling, one.request.prompt_length
        if fields.repetition_penalty != 1.0:
            seen = torch.from_numpy(np.unique(one.tokens[: one.length]))
            values = logits[row, seen]
            penalty = fields.repetition_penalty
            logits[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
        if fields.presence_penalty or fields.frequency_penalty:
            ids, counts = np.unique(one.tokens[prompt : one.length], return_counts=True)
            lowered = fields.presence_penalty + fields.frequency_penalty * counts.astype(np.float32)
            logits[row, torch.from_numpy(ids)] -= torch.from_numpy(lowered)


def _reshape(logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> None:
    """Set logits to -inf, in place, where a sequence may not draw: `min_tokens`, top_k, top_p, min_p."""
    for row, one in enumerate(sequences):
        fields, end_ids = one.request.sampling, one.request.end_ids
        if end_ids and one.output_length < fields.min_tokens:
            logits[row, end_ids] = -torch.inf
        # Every filter leaves the most likely id, and its log-probability is reported unfiltered.
        if fields.temperature == 0.0:
            continue
        if fields.top_k > 0 or fields.top_p < 1.0 or fields.min_p > 0.0:
            keep = _kept(logits[row], fields.top_k, fields.top_p, fields.min_p)
            logits[row].masked_fill_(~keep, -torch.inf)


def _kept(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Bool [V]: ids that top_k, then top_p, then min_p leave; the most likely id always stays."""
    ordered, order = logits.sort(descending=True, stable=True)
    if top_k > 0:
        ordered[top_k:] = -torch.inf
    probabilities = ordered.softmax(-1)
    # An id stays while the mass before it is below top_p.
    keep = (probabilities.cumsum(-1) - probabilities < top_p) & torch.isfinite(ordered)
    keep &= probabilities >= min_p * probabilities[0]
    keep[0] = True
    return torch.zeros_like(keep).scatter_(0, order, keep)
