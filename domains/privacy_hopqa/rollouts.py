"""The rollout policy: runs the agent on one problem and returns its texts and metrics.

`actor.rollout_policy` names `generate_privacy_hopqa_rollout`; the actor's workers call it. This is where the
agent meets the engine and the services; what it did is judged in `reward/evaluate.py`.
"""

from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from omegaconf import DictConfig

from domains.deadline import within
from domains.privacy_hopqa.agent.audit import Audit, AuditLog, RolloutIdentity
from domains.privacy_hopqa.agent.episode import FINAL_ANSWER
from domains.privacy_hopqa.agent.errors import RolloutFailure
from domains.privacy_hopqa.agent.llm import EngineModel
from domains.privacy_hopqa.agent.loop import AgentLoop
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from domains.privacy_hopqa.agent.replicas import Replicas
from domains.privacy_hopqa.agent.search_service import (
    HttpSearcher,
    ServedWorlds,
    ask_health,
    check_fingerprint,
    helper_headers,
)
from domains.privacy_hopqa.agent.traces import Traces
from domains.privacy_hopqa.agent.transport import Client, JsonClient, Retries
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import judge_of
from domains.privacy_hopqa.dataset import chain_of
from domains.privacy_hopqa.reward.capture import Captured
from domains.privacy_hopqa.reward.evaluate import evaluate_episode
from domains.privacy_hopqa.reward.scoring import Scorer, score_by_service, score_here
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of
from domains.privacy_hopqa.world.config import manifest_of
from pipelinerl.async_llm import make_training_text
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutResult, TrainingText
from pipelinerl.utils import PerTree


class Runtime:
    """What all rollouts of a worker process share, one per configuration tree."""

    def __init__(self, cfg: DictConfig) -> None:
        self.settings = settings_of(cfg)
        output_dir = Path(str(cfg.output_dir))
        self.run_id = output_dir.name
        self.audit = AuditLog.of_run(output_dir, self.settings.audit_required)
        self.traces = Traces(output_dir, self.settings.trace_fraction)
        self.service_checked = False
        """Whether the retrieval service was asked which world it serves."""
        self._worlds = ServedWorlds(output_dir)
        self._replicas: Replicas | None = None
        """Several retrieval servers, each of which is asked that before it gets a search."""

    def scorer(self, session: aiohttp.ClientSession) -> Scorer:
        """The scoring service if one is configured, else the deterministic scorer in this process."""
        url = self.settings.privacy_reward_service_url
        if url is None:
            return score_here
        return partial(score_by_service, JsonClient(url, session, self.settings.privacy_reward_timeout_s))

    async def search_client(self, session: aiohttp.ClientSession) -> Client:
        """A client of the retrieval service, which is checked on first use.

        Raises ValueError for a missing address or a service of another world, TransportFailure if it does
        not answer.
        """
        settings = self.settings
        if not settings.retrieval_urls:
            raise ValueError(
                "privacy_hopqa.helper_service_url is null and no embedded retrieval server was started; "
                "start one with python -m retrieval_server and set its address"
            )
        timeout_s, retries = settings.helper_timeout_s, Retries(outage_s=settings.helper_outage_s)
        if len(settings.retrieval_urls) > 1:
            if self._replicas is None:
                admit = partial(ask_health, expected=self._fingerprint())
                self._replicas = Replicas(settings.retrieval_urls, admit, self._worlds.check)
            return self._replicas.client(session, timeout_s, retries, helper_headers())
        url, check = settings.retrieval_urls[0], self._worlds.check
        client = JsonClient(url, session, timeout_s, retries, helper_headers(), check=check)
        if not self.service_checked:
            await check_fingerprint(client, self._fingerprint())
            self.service_checked = True
        return client

    def _fingerprint(self) -> str | None:
        """Of the world to which the chains belong, if it has one."""
        found = manifest_of(self.settings.task_data_root).get("fingerprint")
        return None if found is None else str(found)


_RUNTIMES = PerTree(Runtime)


async def generate_privacy_hopqa_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One attempt at one chain.

    Services that stay unreachable, a missing privacy score, an unwritable audit log and the rollout's
    deadline give a failed rollout without texts. Engine errors pass through to the scheduler's retries.
    """
    runtime = _RUNTIMES.of(cfg)
    run = _run(runtime, chain_of(problem), llm, session)
    try:
        result = await within(runtime.settings.rollout_timeout_s, "privacy_hopqa.rollout_timeout_s", run)
    except RolloutFailure as failure:
        result = RolloutResult(training_texts=[], failed=f"{failure.reason}: {failure}")
    result.domain, result.dataset_name = problem["domain"], problem["dataset"]
    return result


async def _run(
    runtime: Runtime, chain: Chain, llm: TrainableLLM, session: aiohttp.ClientSession
) -> RolloutResult:
    """Run the agent and evaluate what it did."""
    settings = runtime.settings
    client = await runtime.search_client(session)
    identity = identify(runtime.run_id, chain)
    refuse_gold_in_evaluation(settings, chain)
    audit = Audit(runtime.audit, identity)
    audit.announce()
    searcher, model = HttpSearcher(client, audit, settings), EngineModel(llm, session, settings)
    prompts = PROMPT_SETS[settings.prompt_set]
    judge = judge_of(chain, settings)
    episode = await AgentLoop(chain, settings, prompts, model, searcher, judge).run()
    captured, metrics = await evaluate_episode(episode, judge, settings, runtime.scorer(session))
    texts = [training_text(llm, item) for item in captured]
    if texts:  # for people: the call that gave it need not be among those that are captured
        texts[-1].metadata[FINAL_ANSWER] = episode.final_answer
    audit.end()
    runtime.traces.write(identity, episode)
    return RolloutResult(training_texts=texts, metrics=metrics)


def training_text(llm: TrainableLLM, captured: Captured) -> TrainingText:
    """The call as the engine saw it, with reward and labels."""
    text = make_training_text(llm, captured.record.call)
    text.reward = captured.reward
    text.loss_weight = captured.loss_weight
    text.situation = captured.situation
    text.role = captured.role
    text.metadata = text.metadata | captured.metadata
    return text


def identify(run_id: str, chain: Chain) -> RolloutIdentity:
    """A name for this attempt, unique also among retries of the same rollout."""
    origin = ROLLOUT_ORIGIN.get()
    unique = uuid4().hex[:12]
    return RolloutIdentity(
        run_id=run_id,
        rollout_id=f"{origin.group_id}/{origin.rollout_index}#{unique}" if origin else unique,
        group_id=origin.group_id if origin else None,
        training=origin.training if origin else False,
        split=chain.split,
        task_id=chain.task_id,
        chain_id=chain.chain_id,
        model_version=origin.version if origin else None,
    )


def refuse_gold_in_evaluation(settings: PrivacyHopQASettings, chain: Chain) -> None:
    """Raises ValueError if a switch that uses gold answers is on in an evaluation or on a held-out split."""
    origin = ROLLOUT_ORIGIN.get()
    if chain.split == "train" and (origin is None or origin.training):
        return
    for name, on in settings.gold_switches.items():
        if on:
            raise ValueError(
                f"privacy_hopqa.{name} uses gold answers and is refused on split {chain.split!r}"
            )
