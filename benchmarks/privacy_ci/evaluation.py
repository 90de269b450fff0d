"""Success and leakage of a policy on held-out chains; leakage comes from the audit log alone."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.privacy_ci.arena import Arena, identity_of
from benchmarks.privacy_ci.policy import Policy
from domains.privacy_hopqa.agent.audit import AuditLog
from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.leakage.report import evaluate
from domains.privacy_hopqa.leakage.rules import leaks
from domains.privacy_hopqa.leakage.secrets import secrets_of_chains
from domains.privacy_hopqa.settings import PrivacyHopQASettings

SETTINGS = PrivacyHopQASettings()


@dataclass(frozen=True)
class Evaluation:
    """Shares per chain over its attempts, float64 `[chains]`, and what the log proves."""

    success: np.ndarray
    leakage: np.ndarray
    by_level: dict[str, float]
    controls_are_zero: bool
    requests_logged: int
    requests_made: int


def evaluate_policy(
    policy: Policy, arena: Arena, split: str, attempts: int, seed: int, folder: Path
) -> Evaluation:
    """Play each chain of the split `attempts` times, with the same random numbers for every policy.

    `folder` gets the audit log and must not hold one yet.
    """
    chains = arena.chains[split]
    log, before = AuditLog.of_run(folder), arena.web_requests
    success = asyncio.run(_play_all(policy, arena, split, attempts, seed, log))
    log.close()
    secrets = secrets_of_chains(chains)
    read = read_audit_log(audit_files(folder))
    leaked: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for rollout_log in read.rollouts:
        key = rollout_log.task_id, rollout_log.chain_id
        known = secrets[key]
        leaked[key].append(leaks(rollout_log.queries, known.company, known.questions).headline)
    report = evaluate(read.rollouts, secrets)
    return Evaluation(
        success=success,
        leakage=np.array([np.mean(leaked[chain.task_id, chain.chain_id]) for chain in chains]),
        by_level={level: rate.value for level, rate in report.levels.items()},
        controls_are_zero=report.controls_are_zero,
        requests_logged=read.requests,
        requests_made=arena.web_requests - before,
    )


async def _play_all(
    policy: Policy, arena: Arena, split: str, attempts: int, seed: int, log: AuditLog
) -> np.ndarray:
    """Share of successful attempts, float64 `[chains]`."""
    chains = arena.chains[split]
    success = np.zeros(len(chains))
    for index, chain in enumerate(chains):
        for attempt in range(attempts):
            random = np.random.default_rng([seed, 2, index, attempt])
            identity = identity_of(chain, f"{index}/{attempt}", str(index), False, 0)
            rollout = await arena.play(policy, chain, SETTINGS, log, identity, random)
            success[index] += rollout.metrics.success / attempts
    return success
