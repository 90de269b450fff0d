"""How much the training rollouts of a privacy agent's run leaked while it learned, from its audit log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from domains.privacy_hopqa.leakage.log import audit_files, read_audit_log
from domains.privacy_hopqa.leakage.report import SecretsByChain, rule_based
from domains.privacy_hopqa.leakage.secrets import secrets_of_chains
from domains.privacy_hopqa.settings import settings_of
from domains.privacy_hopqa.world import build, chains_of, world_config
from pipelinerl.config import load_tree

PARTS = 6


def course_of(run: Path, texts: int) -> list[dict[str, Any]]:
    """Leakage (answer or full, by the rules) in each sixth of a run's `texts`, with the number of rollouts.

    A rollout belongs to the part of the weights that it began with. The world is built again from the run's
    configuration, whose training chains say what a rollout must not reveal.
    """
    tree = load_tree(run)
    known = secrets_of_chains(chains_of(build(world_config(**settings_of(tree).world)), "train"))
    return parts_of(leaks_of(run, known), texts)


def leaks_of(run: Path, known: SecretsByChain) -> list[tuple[int, bool]]:
    """(texts trained before it, whether it leaked) of each training rollout of a known chain."""
    return [
        (log.model_version or 0, rule_based(log.queries, known[log.task_id, log.chain_id]).headline)
        for log in read_audit_log(audit_files(run)).rollouts
        if log.training and (log.task_id, log.chain_id) in known
    ]


def parts_of(found: list[tuple[int, bool]], texts: int) -> list[dict[str, Any]]:
    """Equal parts of the texts; `leak` is None where no rollout began."""
    by_part: Mapping[int, list[bool]] = {part: [] for part in range(PARTS)}
    for version, leaked in found:
        by_part[min(PARTS - 1, version * PARTS // texts)].append(leaked)
    return [
        {
            "texts": (part + 1) * texts // PARTS,
            "leak": round(float(np.mean(leaks)), 4) if leaks else None,
            "rollouts": len(leaks),
        }
        for part, leaks in by_part.items()
    ]
