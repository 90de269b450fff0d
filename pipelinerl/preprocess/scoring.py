"""Frozen models that score the policy's samples: the reference of the KL term, and teachers.

The loop calls `score_reference` and `Teachers.advise` for each chunk, before rewards are compared. A model is
scored by engines over HTTP or in this process; only the latter imports torch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from pipelinerl.config import Config
from pipelinerl.config.roles import TeacherConfig, is_address
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.preprocess.engine_reference import EngineReference
from pipelinerl.rollouts import MASKED_TOKEN_ID


class Scorer(Protocol):
    """A frozen model."""

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray | None]:
        """float32 `[labels]` log-probabilities per sample; None for one that it cannot score."""
        ...


def score_reference(samples: Sequence[Sample], scorer: Scorer | None) -> list[Sample]:
    """Write `ref_logprobs` into the samples; returns those that the reference cannot score."""
    if scorer is None:
        for sample in samples:
            sample.ref_logprobs = sample.old_logprobs
        return []
    unscored = []
    for sample, found in _scores(samples, scorer):
        if found is None:
            unscored.append(sample)
        else:
            sample.ref_logprobs = found
    return unscored


def _scores(samples: Sequence[Sample], scorer: Scorer) -> Iterator[tuple[Sample, np.ndarray | None]]:
    """Each sample with its log-probabilities; None where there are none, or one of them is no number."""
    for sample, found in zip(samples, scorer.score(samples), strict=True):
        yield sample, found if found is not None and np.isfinite(found).all() else None


class Teachers:
    """Turns what each sample's teacher says of its tokens into advantages.

    The advantage of a sampled token is weight * (log p_teacher - log p_policy), the latter under the weights
    that sampled it. The policy gradient then lowers KL(policy, teacher) at each state that the policy visits
    (Agarwal et al. 2024; Gu et al. 2024).
    """

    def __init__(self, teacher: TeacherConfig, scorers: Mapping[str, Scorer]) -> None:
        """`scorers` by folder, hub name or address."""
        self._teacher, self._places, self._scorers = teacher, teacher.places, scorers

    def advise(self, samples: Sequence[Sample], note: Callable[[str, np.ndarray], None]) -> list[Sample]:
        """Write `token_advantages`; returns the samples that nobody can learn from.

        Those are samples whose teacher cannot score them, and, where rewards have no part, samples without a
        teacher. `note` is given a teacher's name and log p_policy - log p_teacher of a sample's tokens.
        """
        of: dict[str, list[Sample]] = defaultdict(list)
        unscored = []
        for sample in samples:
            if sample.masked or sample.loss_weight == 0:  # nothing is learnt from it
                continue
            if (name := self._name(sample)) is not None:
                of[name].append(sample)
            elif self._teacher.alone:
                unscored.append(sample)
        for name, own in of.items():
            for sample, found in _scores(own, self._scorers[self._places[name]]):
                if found is None:
                    unscored.append(sample)
                    continue
                difference = found - sample.old_logprobs
                predicted = slice(int(sample.labels[0] != MASKED_TOKEN_ID), None)
                sample.token_advantages = np.zeros_like(difference)
                sample.token_advantages[predicted] = self._teacher.weight * difference[predicted]
                note(name, -difference[predicted])
        return unscored

    def _name(self, sample: Sample) -> str | None:
        """The teacher of a sample: of its role, else of its domain, else the one of all."""
        names = f"role/{sample.role}", f"domain/{sample.domain}", "default"
        return next((name for name in names if name in self._places), None)


def reference_scorer(cfg: Config) -> Scorer | None:
    """A frozen reference when the KL term needs one."""
    if not cfg.finetune.rl.uses_reference:
        return None
    if urls := [job.url for job in cfg.jobs_of("preprocessor_llm")]:
        return EngineReference(urls, start_deadline_s(cfg), cfg.preprocess.n_workers)
    return _model(cfg, cfg.policy_path)


def teachers(cfg: Config) -> Teachers | None:
    """The teachers of a run that has some; each model is loaded once."""
    if not cfg.teacher.places:
        return None
    places = [*cfg.teacher.urls, *cfg.teacher.paths]
    return Teachers(cfg.teacher, {place: _teacher(cfg, place) for place in places})


def _teacher(cfg: Config, place: str) -> Scorer:
    if not is_address(place):
        return _model(cfg, place)
    wait = f"log-probabilities from the teacher at {place}"
    return EngineReference([place], cfg.teacher.deadline_s, cfg.preprocess.n_workers, wait)


def _model(cfg: Config, path: str) -> Scorer:
    from pipelinerl.preprocess.reference import ReferenceScorer

    tune = cfg.finetune
    return ReferenceScorer(
        path,
        tune.rl.temperature,
        tune.seq_length,
        cfg.hardware.threads_per_process,
        "cuda" if any(job.gpus for job in cfg.jobs_of("preprocessor")) else "cpu",
        tune.load_as_bf16,
        tune.use_flash_attention,
        tune.shares_prefixes,
        tune.trust_remote_code,
    )


def start_deadline_s(cfg: Config) -> float:
    """The first version follows the engines' start and the trainer's."""
    return 2 * cfg.engine.start_deadline_s
