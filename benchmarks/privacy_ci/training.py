"""Arms of the experiment: rollouts in groups, the project's advantages and loss weights, gradient steps."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.privacy_ci.arena import Arena, Attempt
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

    def update(self, samples: list[Sample], decisions: Decisions, rate: float) -> None:
        """One optimizer step on whole groups: advantages, filter, loss weights, gradient of the softmaxes.

        As in the trainer, a text counts `scale * advantage * grad log p / batch size`.
        """
        chunk = process_chunk(samples, self.arm.rl)
        self.filtered_groups += chunk.filtered_groups
        self.baseline_only += sum(reason == "baseline_only" for _, reason in chunk.dropped)
        if not chunk.ready:
            return
        apply_scales(chunk.ready, self.arm.rl)
        size = len(chunk.ready)
        weights = [
            (decisions[t.group_id, t.rollout_index, t.step_index], t.loss_weight_scale * t.advantage / size)
            for t in chunk.ready
        ]
        self.policy.step(weights, rate)
        self.samples += size


def train(arm: Arm, arena: Arena, recipe: Recipe, seed: int, folder: Path) -> Training:
    """Train from the base policy. The audit log of the rollouts lies in `folder`."""
    training, log = Training(arm), AuditLog.of_run(folder)
    draw = np.random.default_rng([seed, 1])
    for step in range(recipe.steps):
        if step % recipe.evaluate_every == 0:
            training.mark()
        decisions: Decisions = {}
        samples: list[Sample] = []
        for index in draw.choice(len(arena.chains["train"]), recipe.groups, replace=False).tolist():
            for number in range(recipe.attempts):
                attempt = Attempt(arena.chains["train"][index], f"{step}/{index}", number, True, step)
                random = np.random.default_rng([seed, step, index, number])
                played = arena.play(training.policy, attempt, arm.settings, log, random)
                samples += played_samples(asyncio.run(played)[0], attempt, decisions)
                training.rollouts += 1
        training.update(samples, decisions, recipe.rate)
    training.mark()
    log.close()
    return training


def played_samples(rollout: Sequence[Captured], attempt: Attempt, decisions: Decisions) -> list[Sample]:
    """The rollout's samples; their decisions are added to `decisions`."""
    for step, captured in enumerate(rollout):
        decisions[attempt.group, attempt.number, step] = captured.record.call
    origin = RolloutOrigin(attempt.group, attempt.number, attempt.version, training=True)
    return samples_of([text_of(captured) for captured in rollout], origin)


def text_of(captured: Captured) -> TrainingText:
    """The decision as a sample. Tokens are bytes; the choice's log-probability stands on the first one."""
    sampled: Sampled = captured.record.call
    prompt, output = sampled.prompt.encode(), sampled.text.encode()
    ids = np.frombuffer(prompt + output, np.uint8).astype(np.int32)
    logprobs = np.zeros(len(output), np.float32)
    logprobs[0] = sampled.logprob
    return TrainingText(
        text=sampled.prompt + sampled.text,
        n_predicted=len(sampled.text),
        reward=captured.reward,
        input_ids=ids,
        labels=np.where(np.arange(len(ids)) < len(prompt), MASKED_TOKEN_ID, ids),
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
