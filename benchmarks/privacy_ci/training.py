"""Arms of the experiment: rollouts in groups, the project's advantages and loss weights, gradient steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.privacy_ci.arena import Arena, Rollout, identity_of
from benchmarks.privacy_ci.policy import Policy, Sampled
from domains.privacy_hopqa.agent.audit import AuditLog
from domains.privacy_hopqa.reward.capture import Captured
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.sample import Sample, samples_of
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.rollouts import MASKED_TOKEN_ID, RolloutOrigin, TrainingText

Decisions = dict[tuple[str, int, int], Sampled]
"""What was decided, by the name of its text: group, rollout, step."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What a policy is trained with."""

    name: str
    settings: PrivacyHopQASettings
    rl: RLConfig


def arms() -> tuple[Arm, Arm, Arm]:
    """Outcome reward; situational reward; situational reward with the privacy penalty at full weight."""
    by_rollout = RLConfig(batch_size_normalization="rollouts")
    by_situation = RLConfig(
        batch_size_normalization="rollouts", step_reward_advantages=True, filter_zero_advantage_groups=True
    )
    situational = PrivacyHopQASettings(training_reward_mode="hop_step_situational")
    penalised = situational.model_copy(update={"privacy_reward_weight": 1.0})
    return (
        Arm(name="outcome", settings=PrivacyHopQASettings(), rl=by_rollout),
        Arm(name="situational", settings=situational, rl=by_situation),
        Arm(name="penalty", settings=penalised, rl=by_situation),
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Sizes of the experiment; the same for every arm."""

    size: str = "small"
    """The world's."""
    steps: int = 24
    groups: int = 12
    attempts: int = 8
    rate: float = 4.0
    """Length of a gradient step."""
    evaluate_every: int = 3
    """Steps between two points of the curve on validation chains."""
    curve_attempts: int = 1
    final_attempts: int = 3
    """Attempts at each held-out chain."""


@dataclass(frozen=True)
class Point:
    """A policy on the way: after so many texts that reached an update, and so many rollouts."""

    samples: int
    rollouts: int
    policy: Policy


@dataclass
class Training:
    """One arm on its way. `filtered_groups` and `baseline_only` count what never reached an update."""

    arm: Arm
    policy: Policy = field(default_factory=Policy.base)
    points: list[Point] = field(default_factory=list)
    samples: int = 0
    rollouts: int = 0
    filtered_groups: int = 0
    baseline_only: int = 0

    def mark(self) -> None:
        """Keep the policy as it is now."""
        self.points.append(Point(self.samples, self.rollouts, Policy(dict(self.policy.logits))))


def train(arm: Arm, arena: Arena, recipe: Recipe, seed: int, folder: Path) -> Training:
    """Train from the base policy. The audit log of the rollouts lies in `folder`."""
    training = Training(arm)
    log = AuditLog.of_run(folder)
    for step, indices in enumerate(_batches(len(arena.chains["train"]), recipe, seed)):
        if step % recipe.evaluate_every == 0:
            training.mark()
        decisions: Decisions = {}
        samples = asyncio.run(
            _groups(training, arena, indices, recipe.attempts, (seed, step), log, decisions)
        )
        _update(training, samples, decisions, recipe.rate)
    training.mark()
    log.close()
    return training


async def _groups(
    training: Training,
    arena: Arena,
    indices: np.ndarray,
    attempts: int,
    key: tuple[int, int],
    log: AuditLog,
    decisions: Decisions,
) -> list[Sample]:
    """The samples of one step: a group of attempts at each chain. `key` is (seed, step)."""
    samples: list[Sample] = []
    for index in indices.tolist():
        chain, group = arena.chains["train"][index], f"{key[1]}/{index}"
        for attempt in range(attempts):
            random = np.random.default_rng([*key, index, attempt])
            identity = identity_of(chain, f"{group}/{attempt}", group, True, key[1])
            settings = training.arm.settings
            rollout = await arena.play(training.policy, chain, settings, log, identity, random)
            samples += _samples(rollout, group, attempt, key[1], decisions)
            training.rollouts += 1
    return samples


def _batches(n_chains: int, recipe: Recipe, seed: int) -> Iterator[np.ndarray]:
    """Indices of the chains of each step, without repeats within a step."""
    random = np.random.default_rng([seed, 1])
    for _ in range(recipe.steps):
        yield random.choice(n_chains, recipe.groups, replace=False)


def _samples(rollout: Rollout, group: str, attempt: int, version: int, decisions: Decisions) -> list[Sample]:
    """The rollout's samples; their decisions are added to `decisions`."""
    for step, captured in enumerate(rollout.texts):
        decisions[group, attempt, step] = captured.record.call
    texts = [_text(captured) for captured in rollout.texts]
    return samples_of(texts, RolloutOrigin(group, attempt, version, training=True))


def _text(captured: Captured) -> TrainingText:
    """The decision as a sample. Tokens are bytes; the choice's log-probability stands on the first one."""
    sampled: Sampled = captured.record.call
    prompt, output = sampled.prompt.encode(), sampled.text.encode()
    logprobs = np.zeros(len(output), np.float32)
    logprobs[0] = sampled.logprob
    return TrainingText(
        text=sampled.prompt + sampled.text,
        n_predicted=len(sampled.text),
        reward=captured.reward,
        input_ids=np.frombuffer(prompt + output, np.uint8).astype(np.int32),
        labels=np.concatenate(
            [np.full(len(prompt), MASKED_TOKEN_ID, np.int32), np.frombuffer(output, np.uint8)]
        ),
        logprobs=logprobs,
        ref_logprobs=logprobs,
        finished=True,
        finish_reason="stop",
        prompt_tokens=len(prompt),
        output_tokens=len(output),
        situation=captured.situation,
        loss_weight=captured.loss_weight,
        role=captured.role,
        metadata=dict(captured.metadata),
    )


def _update(training: Training, samples: list[Sample], decisions: Decisions, rate: float) -> None:
    """One optimizer step on whole groups: advantages, filter, loss weights, gradient of the softmaxes.

    As in the trainer, a text counts `scale * advantage * grad log p / batch size`.
    """
    rl = training.arm.rl
    chunk = process_chunk(samples, rl)
    training.filtered_groups += chunk.filtered_groups
    training.baseline_only += sum(reason == "baseline_only" for _, reason in chunk.dropped)
    if not chunk.ready:
        return
    apply_scales(chunk.ready, rl)
    size = len(chunk.ready)
    weights = [
        (decisions[t.group_id, t.rollout_index, t.step_index], t.loss_weight_scale * t.advantage / size)
        for t in chunk.ready
    ]
    training.policy.step(weights, rate)
    training.samples += size
