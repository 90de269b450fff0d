"""Arms of the experiment: rollouts in groups, the project's advantages and loss weights, gradient steps."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.privacy_ci.arena import Arena, Attempt
from benchmarks.privacy_ci.policy import Policy, Sampled
from domains.privacy_hopqa.audit import AuditLog
from domains.privacy_hopqa.capture import Captured
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from pipelinerl.finetune.rl.config import RLConfig
from pipelinerl.preprocess.chunk import apply_scales, process_chunk
from pipelinerl.preprocess.ready import scale_table
from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText
from pipelinerl.situations import emit_situations

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

    def update(self, records: list[dict[str, Any]], decisions: Decisions, rate: float) -> None:
        """One optimizer step on whole groups: advantages, filter, loss weights, gradient of the softmaxes.

        As in the trainer, a text counts `scale * advantage * grad log p / batch size`.
        """
        chunk = process_chunk(records, self.arm.rl)
        self.filtered_groups += chunk.filtered_groups
        self.baseline_only += sum(reason == "baseline_only" for _, reason in chunk.dropped)
        if not chunk.ready:
            return
        apply_scales(chunk.ready, scale_table(chunk.ready), self.arm.rl)
        size = len(chunk.ready)
        weights = [
            (decisions[t.group_id, t.rollout_index, t.step_index], t.loss_scale * t.advantage / size)
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
        records: list[dict[str, Any]] = []
        for index in draw.choice(len(arena.chains["train"]), recipe.groups, replace=False).tolist():
            for number in range(recipe.attempts):
                attempt = Attempt(arena.chains["train"][index], f"{step}/{index}", number, True, step)
                random = np.random.default_rng([seed, step, index, number])
                played = arena.play(training.policy, attempt, arm.settings, log, random)
                records += records_of(asyncio.run(played)[0], attempt, decisions)
                training.rollouts += 1
        training.update(records, decisions, recipe.rate)
    training.mark()
    log.close()
    return training


def records_of(rollout: Sequence[Captured], attempt: Attempt, decisions: Decisions) -> list[dict[str, Any]]:
    """The rollout's texts as the preprocessor gets them; their decisions are added to `decisions`."""
    texts = [text_of(captured) for captured in rollout]
    emit_situations(texts, attempt.identity.rollout_id)
    for step, (text, captured) in enumerate(zip(texts, rollout)):
        text.group_id = attempt.group
        text.metadata |= {
            "rollout_index": attempt.number,
            "step_index": step,
            "model_version": attempt.version,
        }
        decisions[attempt.group, attempt.number, step] = captured.record.call
    return [text.to_record() for text in texts]


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
