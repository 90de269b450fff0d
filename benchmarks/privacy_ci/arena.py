"""The world, its search index and audit log, and rollouts of the policy in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.privacy_ci.policy import Policy, PolicyModel
from domains.privacy_hopqa.agent.audit import Audit, AuditLog, RolloutIdentity
from domains.privacy_hopqa.agent.interfaces import Hit, Search
from domains.privacy_hopqa.agent.loop import AgentLoop
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.reward.capture import Captured
from domains.privacy_hopqa.reward.evaluate import evaluate_episode
from domains.privacy_hopqa.reward.metrics import PrivacyHopQAMetrics
from domains.privacy_hopqa.reward.scoring import score_here
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.teacher.inprocess import StoreSearcher
from domains.privacy_hopqa.world import build, chains_of, world_config, world_store
from domains.privacy_hopqa.world.write import write


@dataclass
class AuditedSearcher:
    """Search in this process behind the same log that guards searches over HTTP."""

    searcher: StoreSearcher
    audit: Audit
    web_requests: int = 0

    async def search(self, search: Search) -> Sequence[Hit]:
        """Hits, best first. Raises AuditFailure before a web request that cannot be noted."""
        if search.source == "local":
            return await self.searcher.search(search)
        with self.audit.attempt(search) as attempt:
            self.web_requests += 1
            hits = await self.searcher.search(search)
            attempt.n_hits = len(hits)
        return hits


@dataclass(frozen=True)
class Attempt:
    """Which attempt at which chain, as the audit log names it."""

    chain: Chain
    group: str
    number: int
    training: bool = False
    version: int = 0

    @property
    def identity(self) -> RolloutIdentity:
        return RolloutIdentity(
            run_id="ci_tier",
            rollout_id=f"{self.group}/{self.number}",
            group_id=self.group,
            training=self.training,
            split=self.chain.split,
            task_id=self.chain.task_id,
            chain_id=self.chain.chain_id,
            model_version=self.version,
        )


class Arena:
    """One world in memory. `web_requests` counts those of all rollouts."""

    def __init__(self, size: str, seed: int) -> None:
        world = build(world_config(size, seed=seed))
        with TemporaryDirectory() as folder:
            self.fingerprint: str = write(world, Path(folder))["fingerprint"]
        self.chains = {split: chains_of(world, split) for split in ("train", "val", "test")}
        self._searcher = StoreSearcher(world_store(world))
        self._prompts = PROMPT_SETS["full"]
        self.web_requests = 0

    async def play(
        self,
        policy: Policy,
        attempt: Attempt,
        settings: PrivacyHopQASettings,
        log: AuditLog,
        random: np.random.Generator,
    ) -> tuple[list[Captured], PrivacyHopQAMetrics]:
        """One rollout: its texts with rewards, and its metrics. Raises RolloutFailure."""
        chain, audit = attempt.chain, Audit(log, attempt.identity)
        audit.announce()
        searcher = AuditedSearcher(self._searcher, audit)
        judge = Judge(chain, settings.answer_match_mode, settings.answer_match_f1_threshold)
        model = PolicyModel(policy, chain, self._prompts, random)
        episode = await AgentLoop(chain, settings, self._prompts, model, searcher, judge).run()
        self.web_requests += searcher.web_requests
        return await evaluate_episode(episode, judge, settings, score_here)
